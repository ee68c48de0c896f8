"""Agent and arm over a real Unix socket: one rank, two ranks, and everything that can go wrong between them."""

from __future__ import annotations

import errno
import os
import random
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from syncline import faults
from syncline.clock import SystemClock
from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, LayoutRefused, ProtocolViolation
from syncline.testing.weight_run import WeightRun, Weights
from syncline.versions import Policy
from syncline_agent.arm import framing, messages
from syncline_agent.arm.channel import Channel
from syncline_agent.arm.client import ArmClient, ArmIdentity, Backoff
from syncline_agent.arm.committing import ArmTimeouts
from syncline_agent.arm.connected import Arm
from syncline_agent.arm.gate import OpenGate
from syncline_agent.arm.island import Island
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.parts import stage_message
from syncline_agent.arm.server import GREETED_AT_ONCE, ArmServer
from syncline_agent.engine import StageRequest

Ask = Callable[..., StageRequest]
HELLO = messages.Hello(
    protocol=3,
    engine="e",
    pool="p",
    pod="o",
    rank=0,
    ranks=1,
    gate=True,
    token="t",
    holds=None,
    state=messages.State(applied=None, error=None, failed=None),
)
QUICK = Backoff(0.01, 0.05)


@dataclass
class Rank:
    client: ArmClient
    live: LiveWeights
    memory: Weights


@pytest.fixture
def node(run: WeightRun) -> Path:
    for _ in range(3):
        run.step()
    return run.folder


@pytest.fixture
def server(node: Path) -> Iterator[ArmServer]:
    with ArmServer(node / "arm.sock", timeouts=ArmTimeouts(stage_s=10, ready_s=5, scatter_s=5, other_s=5)) as server:
        yield server


class Gate(OpenGate):
    """An engine with one request in flight, whose hold can be made to fail or to hang."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.calls: list[str] = []
        self.refuses = False
        self.hangs: threading.Event | None = None

    def hold(self, policy: Policy) -> Mapping[str, int]:
        self.calls.append(f"hold {policy}")
        if self.hangs is not None:
            self.hangs.wait(20)
        if self.refuses:
            raise EngineUnavailable("busy")
        super().hold(policy)
        return {"request-0": 3}

    def write(self) -> None:
        self.calls.append("write")

    def resume(self, version: int) -> float:
        self.calls.append(f"resume {version}")
        return super().resume(version)

    def publish(self) -> None:
        self.calls.append("publish")

    def release(self) -> None:
        self.calls.append("release")

    def fail(self, reason: str) -> None:
        self.calls.append("fail")

    def prove(self, version: int) -> None:
        self.calls.append(f"prove {version}")


@pytest.fixture
def connect(run: WeightRun, node: Path) -> Iterator[Callable[..., Rank]]:
    clients: list[ArmClient] = []

    def make(rank: int = 0, ranks: int = 1, *, gate: Gate | None = None, version: int = 1, pod: str = "pod") -> Rank:
        memory = run.copy(version)
        live = LiveWeights(run.table, run.tiling.tiling, memory)
        live.prove(run.lineage, "main", version, run.digest(version))
        client = ArmClient(
            node / "arm.sock",
            ArmIdentity("test", "pool", pod, rank, ranks),
            live,
            gate or (Gate() if rank == 0 else None),
            randomness=random.Random(rank),
            backoff=QUICK,
        )
        client.start()
        clients.append(client)
        return Rank(client, live, memory)

    yield make
    for client in clients:
        client.stop()


def wait_until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen within ten seconds")


def same(memory: Weights, expected: Weights) -> bool:
    return all(np.array_equal(memory[name], units) for name, units in expected.items())


def test_an_arm_connects_and_says_what_it_holds(
    run: WeightRun, server: ArmServer, connect: Callable[..., Rank]
) -> None:
    with pytest.raises(EngineUnavailable, match="no engine is connected"):
        server.describe()
    connect()
    assert server.wait_connected(10)
    description = server.describe()
    assert ("test", "pool", "pod", 1) == (
        description.engine,
        description.pool,
        description.pod,
        description.ranks,
    )
    assert description.applied is not None
    assert (1, run.digest(1), True) == (
        description.applied.version,
        description.applied.digest,
        description.applied.proven,
    )


def test_two_versions_are_staged_committed_undone_and_swept_through_the_socket(
    run: WeightRun, server: ArmServer, connect: Callable[..., Rank], ask: Ask, reached: list[str]
) -> None:
    gate = Gate()
    rank = connect(gate=gate)
    assert server.wait_connected(10)
    staged = server.stage(ask(1, 3))
    assert staged.changed > 0
    assert staged.staged_bytes > 0
    done = server.commit(3, Policy.KEEP)
    assert (3, run.digest(3), {"request-0": 3}) == (done.version, done.digest, done.spans)
    assert done.pause_seconds > 0
    assert ["hold keep", "write", "resume 3", "publish"] == gate.calls
    points = ["apply.ready", "apply.writing", "apply.scattering", "apply.scattered", "apply.resumed"]
    assert points == reached
    assert same(rank.memory, run.weights(3))
    assert server.describe().applied == server.sweep()
    assert 1 == server.undo(1).version
    applied = server.describe().applied
    assert applied is not None
    assert not applied.proven
    assert server.sweep().proven
    assert same(rank.memory, run.weights(1))
    server.stage(ask(1, 2))
    server.discard()
    with pytest.raises(EngineUnavailable, match="not staged"):
        server.commit(2, Policy.KEEP)


def test_an_error_of_the_arm_is_that_error_at_the_agent(
    server: ArmServer, connect: Callable[..., Rank], ask: Ask, tmp_path: Path
) -> None:
    with capture_logs() as lines:
        connect()
        assert server.wait_connected(10)
        with pytest.raises(DigestMismatch):
            server.stage(ask(2, 3))
        with pytest.raises(LayoutRefused):
            server.undo(2)
        with pytest.raises(EngineUnavailable, match="FileNotFoundError"):
            server.stage(ask(1, 2, table=tmp_path / "gone.json"))
    failed = [(line["call"], line["log_level"]) for line in lines if line["event"] == "arm call failed"]
    # To ask for an undo that is not kept is the usual way back, and no fault.
    assert [("stage", "warning"), ("ready", "info"), ("stage", "warning")] == failed


def test_two_ranks_commit_as_one(run: WeightRun, server: ArmServer, connect: Callable[..., Rank], ask: Ask) -> None:
    first = connect(0, 2)
    wait_until(lambda: first.client.connection == "connected")
    with pytest.raises(EngineUnavailable, match=r"ranks \[1\] of 2"):
        server.stage(ask(1, 2))
    second = connect(1, 2)
    assert server.wait_connected(10)
    server.stage(ask(1, 3))
    assert 3 == server.commit(3, Policy.KEEP).version
    assert same(first.memory, run.weights(3))
    assert same(second.memory, run.weights(3))
    assert server.sweep().proven


def test_a_rank_that_is_not_ready_keeps_all_others_from_writing(
    run: WeightRun, server: ArmServer, connect: Callable[..., Rank], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    first, second = connect(0, 2, gate=gate), connect(1, 2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))

    def busy(target: int) -> None:
        raise EngineUnavailable("busy")

    monkeypatch.setattr(second.live, "ready", busy)
    with pytest.raises(EngineUnavailable, match="busy"):
        server.commit(2, Policy.KEEP)
    assert ["prove 1"] == gate.calls
    monkeypatch.undo()
    gate.refuses = True
    with pytest.raises(EngineUnavailable, match="busy"):
        server.commit(2, Policy.KEEP)
    assert ["prove 1", "hold keep", "release"] == gate.calls
    assert same(first.memory, run.weights(1))
    assert same(second.memory, run.weights(1))
    gate.refuses = False
    assert 2 == server.commit(2, Policy.KEEP).version  # what was staged still is


def test_a_rank_that_dies_in_its_write_makes_the_island_uncertain_until_it_is_whole_again(
    run: WeightRun, server: ArmServer, connect: Callable[..., Rank], ask: Ask, tmp_path: Path
) -> None:
    first, second = connect(0, 2), connect(1, 2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    failed = threading.Event()

    def fail_once(point: str) -> None:
        if point == "apply.scattering" and not failed.is_set():
            failed.set()
            raise MemoryError("one rank only")

    faults.install_hook(fail_once)
    try:
        with pytest.raises(EngineUncertain, match="one rank only"):
            server.commit(2, Policy.KEEP)
    finally:
        faults.install_hook(None)
    described = server.describe()
    assert described.error is not None
    assert described.applied is None or not described.applied.proven
    run.checkpoint(tmp_path / "whole", 3)
    server.stage(ask(1, 3, checkpoint=tmp_path / "whole"))
    server.commit(3, Policy.KEEP)
    assert server.sweep().proven
    assert server.describe().error is None
    assert same(first.memory, run.weights(3))
    assert same(second.memory, run.weights(3))


def test_ranks_that_hold_different_versions_are_not_proven(server: ArmServer, connect: Callable[..., Rank]) -> None:
    connect(0, 2, version=1)
    connect(1, 2, version=2)
    assert server.wait_connected(10)
    described = server.describe()
    assert described.applied is not None
    assert not described.applied.proven
    assert "different versions (1, 2)" in str(described.error)


def test_an_arm_whose_agent_restarts_connects_again(
    node: Path, connect: Callable[..., Rank], ask: Ask, run: WeightRun
) -> None:
    with ArmServer(node / "arm.sock") as before:
        rank = connect()
        assert before.wait_connected(10)
        before.stage(ask(1, 2))
        before.commit(2, Policy.KEEP)
    wait_until(lambda: rank.client.connection == f"connecting: {node / 'arm.sock'}: No such file or directory")
    with ArmServer(node / "arm.sock") as after:
        assert after.wait_connected(10)
        applied = after.describe().applied
        assert applied is not None
        assert 2 == applied.version
        after.stage(ask(2, 3))
        after.commit(3, Policy.KEEP)
    assert same(rank.memory, run.weights(3))


def test_an_engine_that_restarts_takes_the_place_of_its_earlier_connection(
    server: ArmServer, connect: Callable[..., Rank]
) -> None:
    first = connect(version=3)
    assert server.wait_connected(10)
    first.client.stop()
    connect(version=1)
    wait_until(lambda: described_version(server) == 1)


def described_version(server: ArmServer) -> int | None:
    try:
        applied = server.describe().applied
    except EngineUnavailable:
        return None
    return applied.version if applied else None


def test_a_rank_that_does_not_answer_is_disconnected_and_comes_back(
    node: Path, connect: Callable[..., Rank], ask: Ask
) -> None:
    gate = Gate()
    gate.hangs = threading.Event()
    with ArmServer(node / "arm.sock", timeouts=ArmTimeouts(ready_s=0.2, other_s=0.2)) as server:
        connect(gate=gate)
        assert server.wait_connected(10)
        server.stage(ask(1, 2))
        with pytest.raises(EngineUnavailable, match=r"no answer within 0\.2 s"):
            server.commit(2, Policy.KEEP)
        gate.hangs.set()
        gate.hangs = None
        assert server.wait_connected(10)
        wait_until(lambda: described_version(server) == 1)
        assert 2 == server.commit(2, Policy.KEEP).version


def test_a_rank_that_was_disconnected_is_gone_before_its_thread_has_left() -> None:
    ours, theirs = socket.socketpair()
    there, island = Arm(Channel(ours), HELLO), Island()
    island.join(there, lambda: None)
    assert [there] == list(island.whole().ranks)
    there.close("it gave no answer")
    with pytest.raises(EngineUnavailable, match="no engine is connected"):
        island.whole()
    ours, _ = socket.socketpair()
    island.join(Arm(Channel(ours), HELLO.model_copy(update={"pod": "another"})), lambda: None)
    theirs.close()


def test_the_state_after_an_engine_s_own_sweep_reaches_the_agent(
    server: ArmServer, connect: Callable[..., Rank]
) -> None:
    rank = connect()
    assert server.wait_connected(10)
    rank.memory["a.weight"][7] ^= 1
    with pytest.raises(DigestMismatch):
        rank.live.sweep()
    rank.client.notify()
    wait_until(lambda: server.describe().error is not None)
    assert "a.weight" in str(server.describe().error)
    applied = server.describe().applied
    assert applied is not None
    assert not applied.proven


# --- who may connect ---------------------------------------------------------------------------------------------------


def test_socket_and_token_are_not_for_everybody(server: ArmServer, node: Path) -> None:
    assert 0o660 == stat.S_IMODE((node / "arm.sock").stat().st_mode)
    assert 0 == stat.S_IMODE((node / "arm.token").stat().st_mode) & 0o137
    assert 64 == len((node / "arm.token").read_text().strip())


def test_a_wrong_token_is_refused_and_the_right_one_welcome_later(
    server: ArmServer, node: Path, connect: Callable[..., Rank]
) -> None:
    token = (node / "arm.token").read_text()
    (node / "arm.token").write_text("wrong\n")
    rank = connect()
    wait_until(lambda: rank.client.refused)
    assert "wrong token" in rank.client.connection
    with pytest.raises(EngineUnavailable):
        server.describe()
    (node / "arm.token").write_text(token)
    assert server.wait_connected(10)
    wait_until(lambda: rank.client.connection == "connected")


def test_a_user_who_is_not_allowed_is_refused(node: Path, connect: Callable[..., Rank]) -> None:
    with ArmServer(node / "arm.sock", allowed_uids=[os.geteuid() + 1]):
        rank = connect()
        wait_until(lambda: rank.client.refused)
        assert f"user {os.geteuid()} may not connect" in rank.client.connection


def test_an_arm_that_comes_again_and_again_is_said_once_a_reason(node: Path, connect: Callable[..., Rank]) -> None:
    tries: list[object] = []
    with capture_logs() as lines, ArmServer(node / "arm.sock", pool="other") as server:
        greet = server._greet
        server._greet = lambda channel: (tries.append(channel), greet(channel))[1]  # pyright: ignore[reportAttributeAccessIssue]
        connect()
        wait_until(lambda: len(tries) >= 4)
        (node / "arm.token").write_text("wrong\n")
        wait_until(lambda: "wrong token" in lines[-1].get("reason", ""))
    turned_away = [line["reason"] for line in lines if line["event"] == "arm turned away"]
    assert [
        "this agent serves pool other, pod is of pool pool; start one of them with the other's --pool"
    ] == turned_away[:1]
    assert 2 == len(turned_away)


@pytest.mark.parametrize("left", [b"", b"\n"])
def test_a_token_file_without_a_token_lets_nobody_in(node: Path, connect: Callable[..., Rank], left: bytes) -> None:
    (node / "arm.token").write_bytes(left)
    with ArmServer(node / "arm.sock") as server:
        token = (node / "arm.token").read_text().strip()
        assert 64 == len(token)
        connect()
        assert server.wait_connected(5)  # who can read the new one is let in


def test_a_token_file_of_garbage_is_refused_by_name_when_the_agent_starts(node: Path) -> None:
    (node / "arm.token").write_bytes(b"\xff\xfe")
    with pytest.raises(ProtocolViolation, match=r"arm\.token holds no token"):
        ArmServer(node / "arm.sock").start()


def test_an_arm_of_another_pool_or_pod_is_refused_by_name(node: Path, connect: Callable[..., Rank]) -> None:
    with ArmServer(node / "arm.sock", pool="other") as server:
        rank = connect()
        wait_until(lambda: rank.client.refused)
        with pytest.raises(EngineUnavailable, match="the last arm was turned away: this agent serves pool other"):
            server.describe()
        assert "serves pool other" in rank.client.connection
        rank.client.stop()
    with ArmServer(node / "arm.sock", pool="pool") as server:
        connect(pod="first")
        assert server.wait_connected(10)
        second = connect(pod="second")
        wait_until(lambda: second.client.refused)
        assert "second" in second.client.connection
        assert "first" == server.describe().pod


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (framing.LENGTH.pack(2) + b"{}", "not a message"),
        (framing.LENGTH.pack(1 << 30), "beyond"),
        (framing.encode(messages.Done(id=1)), "not a hello"),
        (framing.LENGTH.pack(32) + b'{"type": "hello", "protocol": 9}', "speaks protocol 9"),
        (framing.LENGTH.pack(50) + b'{"type": "hello", "protocol": 1, "holds": "whole"}', "speaks protocol 1"),
        (framing.encode(HELLO.model_copy(update={"protocol": 2})), "speaks protocol 2"),
    ],
    ids=["no message", "too long", "no hello", "a later protocol", "an earlier protocol", "one that looks alike"],
)
def test_whoever_does_not_say_hello_properly_is_refused_in_words(
    server: ArmServer, node: Path, first: bytes, says: str
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(node / "arm.sock"))
        stranger.sendall(first)
        answer = Channel(stranger).receive(timeout_s=5)
    assert isinstance(answer, messages.Refused)
    assert says in answer.message


def test_connections_that_say_nothing_are_bounded_and_keep_nobody_out_for_long(
    server: ArmServer, node: Path, connect: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline_agent.arm.server.HANDSHAKE_TIMEOUT_S", 60.0)  # of a machine that is busy
    with ExitStack() as held:
        silent = [held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in range(GREETED_AT_ONCE)]
        for one in silent:
            one.connect(str(node / "arm.sock"))
        rank = connect()
        wait_until(lambda: rank.client.connection != "connecting")
        assert "refused: 64 connections have not said hello yet; come again" == rank.client.connection
        with pytest.raises(EngineUnavailable, match="64 connections have not said hello yet"):
            server.describe()
        silent[0].close()
        assert server.wait_connected(10)


def test_a_peer_that_answers_and_hangs_up_without_reading_is_heard() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(framing.encode(messages.Refused(message="too many")))
    theirs.close()
    assert messages.Refused(message="too many") == Channel(ours).greet(HELLO, timeout_s=5)
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(EngineUnavailable, match="sending hello failed"):
        Channel(ours).greet(HELLO, timeout_s=5)


BAND = messages.BandPart(tensor="a.weight", axis=0, low=0, high=7, digest="ef" * 16)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rank": 2, "ranks": 2}, "rank 2 of 2 cannot be"),
        ({"rank": None, "gate": False}, "must be a gate and hold nothing"),
        ({"rank": None, "holds": [BAND]}, "must be a gate and hold nothing"),
        ({"holds": [BAND, BAND]}, "names a.weight, indices 0 to 6 of axis 0 twice"),
        ({"holds": [BAND.model_copy(update={"low": 7})]}, "holds nothing of a.weight"),
        ({"holds": [BAND, BAND.model_copy(update={"low": 6, "high": 9})]}, "neither the same nor apart"),
        ({"holds": [BAND, BAND.model_copy(update={"axis": 1, "low": 90, "high": 99})]}, "neither the same nor apart"),
    ],
)
def test_an_arm_that_cannot_be_served_is_refused_by_name(
    server: ArmServer, node: Path, change: dict[str, object], says: str
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(node / "arm.sock"))
        channel = Channel(stranger)
        channel.send(HELLO.model_copy(update={"token": (node / "arm.token").read_text().strip()} | change))
        answer = channel.receive(timeout_s=5)
    assert isinstance(answer, messages.Refused)
    assert says in answer.message


@pytest.mark.parametrize(
    "later",
    [
        messages.Done(id=12345),
        HELLO,
        messages.Sweep(id=1),
        messages.Refused(message="no"),
    ],
    ids=lambda m: m.type,
)
def test_an_arm_that_breaks_the_protocol_later_is_disconnected(
    server: ArmServer, node: Path, later: messages.Message
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(node / "arm.sock"))
        channel = Channel(stranger)
        channel.send(HELLO.model_copy(update={"token": (node / "arm.token").read_text().strip()}))
        assert isinstance(channel.receive(timeout_s=5), messages.Welcome)
        assert server.wait_connected(5)
        channel.send(later)
        with pytest.raises(EngineUnavailable):
            channel.receive(timeout_s=5)
        wait_until(lambda: not server.wait_connected(0))


STAGED = messages.Staged(id=1, target=2, changed=1, staged_bytes=1, seconds=0.0, digests=[])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (messages.Done(id=1), "rank 0 of o answered done, not Staged"),
        (messages.Held(id=1, spans={}, ended=[]), "rank 0 of o answered held, not Staged"),
        (STAGED, "rank 0 told 0 digests of the 1 bands that it holds"),
        (STAGED.model_copy(update={"digests": ["ef" * 16] * 2}), "rank 0 told 2 digests of the 1 bands"),
        (STAGED.model_copy(update={"digests": None}), "rank 0 told 0 digests of the 1 bands"),
        (STAGED.model_copy(update={"target": 3}), "rank 0 of o staged version 3, not 2"),
    ],
    ids=["done", "held", "too few", "too many", "none", "another"],
)
def test_an_answer_that_fits_no_call_commits_nothing(
    server: ArmServer, node: Path, ask: Ask, answer: messages.Answer, says: str
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger, ThreadPoolExecutor(1) as agent:
        stranger.connect(str(node / "arm.sock"))
        channel = Channel(stranger)
        token = (node / "arm.token").read_text().strip()
        channel.send(HELLO.model_copy(update={"token": token, "holds": [BAND]}))
        assert isinstance(channel.receive(timeout_s=5), messages.Welcome)
        assert server.wait_connected(5)
        staging = agent.submit(server.stage, ask(1, 2))
        call = channel.receive(timeout_s=5)
        assert isinstance(call, messages.Stage)
        channel.send(answer.model_copy(update={"id": call.id}))
        if answer.type == "staged":
            dropped = channel.receive(timeout_s=5)
            assert isinstance(dropped, messages.Discard)
            channel.send(messages.Done(id=dropped.id))
        with pytest.raises(ProtocolViolation, match=says):
            staging.result(10)


def test_a_stranger_who_says_hello_a_byte_at_a_time_is_turned_away_in_time() -> None:
    ended = threading.Event()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.sendall(framing.LENGTH.pack(200))

    def trickle() -> None:
        for _ in range(100):
            if ended.wait(0.05):
                return
            theirs.send(b"{")

    talker = threading.Thread(target=trickle)
    talker.start()
    try:
        with ours, pytest.raises(EngineUnavailable, match="silent"):
            Channel(ours).receive(timeout_s=0.3)
        assert talker.is_alive()
    finally:
        ended.set()
        talker.join(10)
        theirs.close()


def test_an_agent_that_once_cannot_accept_goes_on_accepting(server: ArmServer, connect: Callable[..., Rank]) -> None:
    listening = server._listening
    assert listening is not None
    failures: list[int] = []

    class Exhausted:
        """A listening socket for whose first connection the process had no descriptor left."""

        def accept(self) -> tuple[socket.socket, object]:
            if len(failures) < 2:
                failures.append(errno.EMFILE)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return listening.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(listening, name)

    server._listening = Exhausted()  # type: ignore[assignment]
    first = connect(pod="pod")  # the call to accept that is under way takes this one
    assert server.wait_connected(10)
    first.client.stop()
    connect(pod="pod", version=2)
    wait_until(lambda: described_version(server) == 2)
    assert [errno.EMFILE] * 2 == failures


def test_a_token_file_of_garbage_does_not_end_the_arm(
    server: ArmServer, node: Path, connect: Callable[..., Rank]
) -> None:
    token = (node / "arm.token").read_bytes()
    (node / "arm.token").write_bytes(b"\xff\xfe\x00")
    connect()
    assert not server.wait_connected(0.3)
    (node / "arm.token").write_bytes(token)
    assert server.wait_connected(10)


def test_what_a_call_of_a_lost_agent_did_is_told_to_the_next(
    run: WeightRun, node: Path, connect: Callable[..., Rank], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, told = threading.Event(), threading.Event()
    with ArmServer(node / "arm.sock") as first:
        rank = connect()
        assert first.wait_connected(10)
        first.stage(ask(1, 2))
        confirm = rank.live.confirm

        def slow(target: int) -> object:
            written.set()
            told.wait(20)
            return confirm(target)

        monkeypatch.setattr(rank.live, "confirm", slow)

        def commit_and_lose() -> None:
            with pytest.raises(EngineUncertain):
                first.commit(2, Policy.KEEP)

        commit = threading.Thread(target=commit_and_lose)
        commit.start()
        assert written.wait(10)
    commit.join(10)
    with ArmServer(node / "arm.sock") as second:
        assert second.wait_connected(10)
        assert 1 == described_version(second)  # the hello could say no more
        told.set()
        wait_until(lambda: described_version(second) == 2)
        second.stage(ask(2, 3))
        second.commit(3, Policy.KEEP)
    assert same(rank.memory, run.weights(3))


def test_a_hold_that_a_lost_agent_asked_for_is_never_begun(
    node: Path, connect: Callable[..., Rank], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    staging, lost = threading.Event(), threading.Event()
    with ArmServer(node / "arm.sock") as first:
        rank = connect(gate=gate)
        assert first.wait_connected(10)
        stage = rank.live.stage

        def slow(request: StageRequest) -> object:
            staging.set()
            lost.wait(20)
            return stage(request)

        monkeypatch.setattr(rank.live, "stage", slow)
        (ours,) = first._island.whole().ranks
        ours.begin(lambda i: stage_message(i, ask(1, 2), node))
        assert staging.wait(10)
        ours.begin(lambda i: messages.Hold(id=i, policy=Policy.KEEP))
    with ArmServer(node / "arm.sock") as second:
        assert second.wait_connected(10)
        lost.set()
        assert second.sweep().proven
        second.discard()  # behind all that the first asked for
        assert not [call for call in gate.calls if call.startswith("hold")]
