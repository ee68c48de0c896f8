"""The gate of an SGLang server, by its routes: it stands on every rank, goes on, and never with KV of older weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
import structlog

from syncline.clock import ManualClock
from syncline.errors import EngineUnavailable
from syncline.testing.engine_routes import Call, Reply
from syncline.testing.sglang_routes import SglangStandIn
from syncline.versions import Policy
from syncline_agent.reload.routes import Routes
from syncline_agent.sglang.gate import SglangGate
from syncline_agent.sglang.settings import KvPolicy


@pytest.fixture
def server() -> Iterator[SglangStandIn]:
    with SglangStandIn(ranks=2) as server:
        server.running, server.waiting = 3, 1
        yield server


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False) as client:
        yield client


MakeGate = Callable[..., SglangGate]


@pytest.fixture
def make_gate(server: SglangStandIn, client: httpx.Client) -> MakeGate:
    def make(
        kv: KvPolicy = KvPolicy.FLUSH, *, ranks: int = 2, patience_s: float = 60.0, failed: bool = False
    ) -> SglangGate:
        return SglangGate(
            Routes(server.url, client),
            ranks=ranks,
            kv=kv,
            clock=ManualClock(),
            log=structlog.get_logger(),
            spans=lambda: {"a": server.waiting},
            failed=failed,
            patience_s=patience_s,
        )

    return make


def test_a_commit_stands_stamps_flushes_and_goes_on_when_it_is_read_back(
    server: SglangStandIn, make_gate: MakeGate
) -> None:
    gate = make_gate()
    server.stale_cache = True
    assert {"a": 4} == gate.hold(Policy.KEEP)
    assert server.stands
    gate.write()
    assert gate.resume(7) >= 0
    assert (True, "7", False) == (server.stands, server.weight_version, server.stale_cache)
    gate.publish()
    assert (False, 4, 0) == (server.paused, server.running, server.ended)
    assert [
        "/pause_generation",
        "/weights_checker",
        "/update_weight_version",
        "/flush_cache",
        "/continue_generation",
    ] == server.paths


def test_what_comes_to_a_stand_hashes_no_tensor(server: SglangStandIn, make_gate: MakeGate) -> None:
    server.weights = {"a": b"1", "b": b"2"}
    seen: list[object] = []

    def look(call: Call) -> Reply:
        reply = server.routes["POST", "/weights_checker"](call)
        assert reply is not None
        seen.extend(rank["checksums"] for rank in reply.body["ranks"])
        return reply

    server.breaks["/weights_checker"] = look
    make_gate().hold(Policy.KEEP)
    assert [{}, {}] == seen


def test_requests_stand_in_place_and_keep_their_kv_where_each_version_has_its_own_key(
    server: SglangStandIn, make_gate: MakeGate
) -> None:
    gate = make_gate(KvPolicy.KEYED)
    gate.hold(Policy.KEEP)
    assert ("in_place", 3) == (server.mode, server.running)
    gate.write()
    gate.resume(2)
    gate.publish()
    assert "/flush_cache" not in server.paths


def test_what_weights_in_doubt_computed_is_flushed_whatever_its_key(server: SglangStandIn, make_gate: MakeGate) -> None:
    gate = make_gate(KvPolicy.KEYED)
    gate.fail("bits in doubt")
    gate.hold(Policy.KEEP)
    gate.write()
    gate.resume(2)
    gate.prove(2)
    assert "/flush_cache" in server.paths
    assert not server.paused


@pytest.mark.parametrize("kv", list(KvPolicy))
def test_under_abort_requests_end_with_the_write_and_not_before(
    server: SglangStandIn, make_gate: MakeGate, kv: KvPolicy
) -> None:
    gate = make_gate(kv)
    gate.hold(Policy.ABORT)
    gate.release()
    assert (0, 4, False) == (server.ended, server.running, server.paused)
    gate.hold(Policy.ABORT)
    gate.write()
    gate.resume(2)
    gate.publish()
    assert (4, 0, False) == (server.ended, server.running, server.paused)


def test_a_drain_is_refused_by_name_before_anything_is_paused(server: SglangStandIn, make_gate: MakeGate) -> None:
    with pytest.raises(EngineUnavailable, match="set the policy keep or abort"):
        make_gate().hold(Policy.DRAIN)
    assert [] == server.paths


@pytest.mark.parametrize("path", ["/pause_generation", "/weights_checker"])
@pytest.mark.parametrize(
    "failure", [lambda _: Reply(500, {"detail": "broke"}), lambda _: None], ids=["500", "hangs up"]
)
def test_an_engine_that_does_not_come_to_a_stand_goes_on(
    server: SglangStandIn, make_gate: MakeGate, path: str, failure: Callable[[Call], Reply | None]
) -> None:
    server.breaks[path] = failure
    gate = make_gate()
    with pytest.raises(EngineUnavailable):
        gate.hold(Policy.KEEP)
    assert not server.paused
    with pytest.raises(EngineUnavailable, match="the hold has ended"):
        gate.write()
    gate.hold(Policy.KEEP)  # the next one stands


def test_an_engine_whose_requests_cannot_be_counted_goes_on(server: SglangStandIn, client: httpx.Client) -> None:
    def broken() -> dict[str, int]:
        raise AttributeError("running_batch")

    gate = SglangGate(
        Routes(server.url, client),
        ranks=2,
        kv=KvPolicy.FLUSH,
        clock=ManualClock(),
        log=structlog.get_logger(),
        spans=broken,
    )
    with pytest.raises(AttributeError):
        gate.hold(Policy.KEEP)
    assert not server.paused


def test_a_rank_that_did_not_come_is_missed(server: SglangStandIn, make_gate: MakeGate) -> None:
    with pytest.raises(EngineUnavailable, match="2 ranks came to a stand, the engine has 4"):
        make_gate(ranks=4).hold(Policy.KEEP)
    assert not server.paused


def test_a_hold_without_a_write_ends_by_itself(server: SglangStandIn, make_gate: MakeGate) -> None:
    gate = make_gate(patience_s=0.05)
    gone_on = threading.Event()
    goes_on = server.routes["POST", "/continue_generation"]

    def heard(call: Call) -> Reply | None:
        gone_on.set()
        return goes_on(call)

    server.routes["POST", "/continue_generation"] = heard
    gate.hold(Policy.KEEP)
    assert gone_on.wait(20)
    with pytest.raises(EngineUnavailable, match="the hold has ended"):
        gate.write()


def test_a_hold_that_is_written_under_waits_without_patience(server: SglangStandIn, make_gate: MakeGate) -> None:
    gate = make_gate(patience_s=0.05)
    gate.hold(Policy.KEEP)
    gate.write()
    gate.release()  # harmless now
    assert not threading.Event().wait(0.2)
    assert server.paused


@pytest.mark.parametrize("kv", list(KvPolicy))
@pytest.mark.parametrize("when", ["open", "held", "writing", "written"])
def test_a_gate_that_failed_serves_nothing_until_it_is_proven(
    server: SglangStandIn, make_gate: MakeGate, when: str, kv: KvPolicy
) -> None:
    gate = make_gate(kv)
    if when != "open":
        gate.hold(Policy.KEEP)
    if when in ("writing", "written"):
        gate.write()
    if when == "written":
        gate.resume(2)
    gate.fail("digest")
    assert (True, 4, 0) == (server.stands, server.ended, server.running + server.waiting)
    gate.release()
    gate.publish()
    assert server.paused
    server.stale_cache = True
    gate.prove(3)
    assert (False, "3", False) == (server.paused, server.weight_version, server.stale_cache)


def test_a_failed_gate_is_written_under_and_a_hold_that_ends_leaves_it_failed(
    server: SglangStandIn, make_gate: MakeGate
) -> None:
    gate = make_gate()
    gate.fail("digest")
    gate.hold(Policy.KEEP)
    gate.release()
    assert server.paused
    gate.hold(Policy.KEEP)
    gate.write()
    gate.resume(2)
    gate.prove(2)
    assert not server.paused


def test_a_cache_that_is_not_flushed_keeps_the_engine_standing(server: SglangStandIn, make_gate: MakeGate) -> None:
    gate = make_gate()
    gate.hold(Policy.KEEP)
    gate.write()
    server.breaks["/flush_cache"] = lambda _: Reply(400, "Flush cache failed.\n")
    with pytest.raises(EngineUnavailable, match="did not flush its cache: 400"):
        gate.resume(2)
    assert server.paused
    gate.publish()
    assert server.paused


def test_an_engine_of_several_ranks_begins_failed_as_soon_as_its_server_is_up(
    server: SglangStandIn, make_gate: MakeGate
) -> None:
    server.stop()
    gate, stopping = make_gate(failed=True), threading.Event()
    beginning = threading.Thread(target=gate.pause_first, args=(stopping,), daemon=True)
    beginning.start()
    server.start()
    beginning.join(20)
    assert server.paused
    gate.prove(1)
    assert not server.paused


def test_a_proof_in_service_only_stamps(server: SglangStandIn, make_gate: MakeGate) -> None:
    make_gate().prove(5)
    assert (["/update_weight_version"], "5", 0) == (server.paths, server.weight_version, server.ended)


def test_a_hold_that_ends_by_itself_when_the_process_has_closed_its_client_raises_nowhere(
    server: SglangStandIn,
) -> None:
    client = httpx.Client(trust_env=False)
    gate = SglangGate(
        Routes(server.url, client),
        ranks=2,
        kv=KvPolicy.FLUSH,
        clock=ManualClock(),
        log=structlog.get_logger(),
        spans=dict,
        patience_s=60.0,
    )
    gate.hold(Policy.KEEP)
    client.close()
    gate.release()
    assert server.stands
