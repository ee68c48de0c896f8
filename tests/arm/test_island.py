"""Ranks that hold parts and a gate that holds none, over real sockets: they commit, fail and come back as one engine."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from syncline import faults
from syncline.clock import SystemClock
from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, LayoutRefused
from syncline.testing.weight_run import WeightRun, Weights
from syncline.versions import Policy
from syncline_agent.arm.client import ArmClient, ArmIdentity, Backoff
from syncline_agent.arm.committing import ArmTimeouts
from syncline_agent.arm.gate import OpenGate
from syncline_agent.arm.host_memory import HostMemory
from syncline_agent.arm.layout import Block, Layout, row_major, shape_of
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.messages import Sweep, Swept
from syncline_agent.arm.server import ArmServer
from syncline_agent.engine import Applied, StageRequest

Ask = Callable[..., StageRequest]
QUICK = Backoff(0.01, 0.05)
CUT = {"a.weight": 0, "b.down_proj.weight": 1, "c.codes": 0}
"""Axis that ranks share a tensor along; of any other each holds a copy."""
TIMES = ArmTimeouts(stage_s=10, ready_s=5, scatter_s=5, other_s=5)


class Gone(BaseException):
    """What kill -9 of the agent is to this process."""


class Gate(OpenGate):
    """An engine with one request in flight. It keeps the order of its calls, and can be made to break at one of them."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.calls: list[str] = []
        self.breaks: dict[str, Callable[[], None]] = {}
        self.serves: int | None = None
        self.stands = self.withholds = False
        self.released = threading.Event()

    def _called(self, call: str, said: object = "") -> None:
        self.calls.append(f"{call} {said}".rstrip())
        self.breaks.pop(call, lambda: None)()

    def hold(self, policy: Policy) -> Mapping[str, int]:
        self._called("hold", policy)
        super().hold(policy)
        return {"request-0": 3}

    def write(self) -> None:
        self._called("write")
        self.stands = True

    def resume(self, version: int) -> float:
        self._called("resume", version)
        assert self.stands
        self.stands, self.withholds = False, True
        self.serves = version if self.serves is not None else None
        return super().resume(version)

    def publish(self) -> None:
        self._called("publish")
        self.withholds = False

    def release(self) -> None:
        self.released.set()

    def fail(self, reason: str) -> None:
        self._called("fail")
        self.stands, self.withholds, self.serves = False, False, None

    def prove(self, version: int) -> None:
        self._called("prove", version)
        assert not self.stands
        self.withholds, self.serves = False, version


@dataclass
class Rank:
    number: int
    ranks: int
    layout: Layout
    live: LiveWeights
    stores: list[np.ndarray]
    client: ArmClient

    def holds(self, weights: Weights) -> bool:
        return all(np.array_equal(s, b) for s, b in zip(self.stores, slices(self.layout, weights), strict=True))


@dataclass
class Engine:
    ranks: list[Rank]
    gate: Gate
    client: ArmClient
    """The gate's."""
    clients: list[ArmClient] = field(default_factory=list[ArmClient])

    def holds(self, weights: Weights) -> bool:
        return all(rank.holds(weights) for rank in self.ranks)


def layout_of(run: WeightRun, rank: int, ranks: int) -> Layout:
    """Bands of what is cut, copies of the rest; each lies in a store of its own."""
    blocks: list[Block] = []
    for tensor, spec in enumerate(run.table.tensors):
        shape = shape_of(spec)
        start, size, axis = [0] * len(shape), list(shape), CUT.get(spec.name)
        if axis is not None:
            low, high = (shape[axis] * n // ranks for n in (rank, rank + 1))
            start[axis], size[axis] = low, high - low
        if spec.units:
            blocks.append(Block(tensor, tuple(start), tuple(size), len(blocks), 0, row_major(size)))
    return Layout.of(run.table, blocks)


def slices(layout: Layout, weights: Weights) -> list[np.ndarray]:
    """What the blocks' stores hold at these weights."""
    found: list[np.ndarray] = []
    for block in (b for held in layout.blocks for b in held):
        spec = layout.table.tensors[block.tensor]
        box = tuple(slice(start, start + size) for start, size in zip(block.start, block.size, strict=True))
        found.append(weights[spec.name].reshape(shape_of(spec))[box].reshape(-1).copy())
    return found


def wait_until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen within ten seconds")


@pytest.fixture
def node(run: WeightRun) -> Path:
    for _ in range(3):
        run.step()
    return run.folder


@pytest.fixture
def server(node: Path) -> Iterator[ArmServer]:
    with ArmServer(node / "arm.sock", timeouts=TIMES) as server:
        yield server


@pytest.fixture
def clients() -> Iterator[list[ArmClient]]:
    made: list[ArmClient] = []
    yield made
    for client in made:
        client.stop()


@pytest.fixture
def join(run: WeightRun, node: Path, clients: list[ArmClient]) -> Callable[..., Rank]:
    """Start a rank; `layout` and `spoil` (done to its stores after they were loaded) are the test's to change."""

    def make(
        rank: int,
        ranks: int,
        *,
        layout: Layout | None = None,
        version: int = 1,
        gate: Gate | None = None,
        spoil: Callable[[list[np.ndarray]], None] = lambda stores: None,
    ) -> Rank:
        layout = layout or layout_of(run, rank, ranks)
        stores = slices(layout, run.weights(version))
        spoil(stores)
        memory = HostMemory(layout, run.tiling.tiling, stores, loaded=run.weights(version).__getitem__)
        live = LiveWeights(run.table, run.tiling.tiling, memory)
        live.prove(run.lineage, "main", version, run.digest(version))
        client = ArmClient(
            node / "arm.sock",
            ArmIdentity("test", "pool", "pod", rank, ranks),
            live,
            gate,
            randomness=random.Random(rank),
            backoff=QUICK,
        )
        client.start()
        clients.append(client)
        return Rank(rank, ranks, layout, live, stores, client)

    return make


@pytest.fixture
def join_gate(node: Path, clients: list[ArmClient]) -> Callable[..., tuple[Gate, ArmClient]]:
    def make(ranks: int) -> tuple[Gate, ArmClient]:
        gate = Gate()
        client = ArmClient(
            node / "arm.sock",
            ArmIdentity("test", "pool", "pod", None, ranks),
            None,
            gate,
            randomness=random.Random(99),
            backoff=QUICK,
        )
        client.start()
        clients.append(client)
        return gate, client

    return make


@pytest.fixture
def start(join: Callable[..., Rank], join_gate: Callable[..., tuple[Gate, ArmClient]]) -> Callable[[int], Engine]:
    """A whole engine."""

    def make(ranks: int) -> Engine:
        gate, client = join_gate(ranks)
        return Engine([join(rank, ranks) for rank in range(ranks)], gate, client)

    return make


def described_error(server: ArmServer) -> str | None:
    try:
        return server.describe().error
    except EngineUnavailable:
        return None


def is_proven(server: ArmServer, version: int) -> bool:
    try:
        described = server.describe()
    except EngineUnavailable:
        return False
    applied = described.applied
    return described.error is None and applied is not None and (version, True) == (applied.version, applied.proven)


@pytest.mark.parametrize("ranks", [2, 4])
def test_parts_are_proven_committed_undone_and_swept_as_one(
    run: WeightRun, server: ArmServer, start: Callable[[int], Engine], ask: Ask, ranks: int
) -> None:
    engine = start(ranks)
    assert server.wait_connected(10)
    assert is_proven(server, 1)
    assert all(rank.live.in_service for rank in engine.ranks)
    staged = server.stage(ask(1, 3))
    assert staged.changed > 0
    done = server.commit(3, Policy.KEEP)
    assert (3, run.digest(3), {"request-0": 3}) == (done.version, done.digest, done.spans)
    assert engine.holds(run.weights(3))
    assert is_proven(server, 3)
    assert ["prove 1", "hold keep", "write", "resume 3", "publish"] == engine.gate.calls
    assert server.sweep().proven
    server.undo(1)
    assert engine.holds(run.weights(1))
    assert not is_proven(server, 1)
    assert engine.gate.withholds  # nothing leaves before a sweep
    assert server.sweep().proven
    assert is_proven(server, 1)
    assert (1, False) == (engine.gate.serves, engine.gate.withholds)
    server.stage(ask(1, 2))
    assert 2 == server.commit(2, Policy.KEEP).version
    assert engine.holds(run.weights(2))


def test_an_island_of_one_part_and_a_gate_in_its_process_is_proven_too(
    run: WeightRun, server: ArmServer, join: Callable[..., Rank], ask: Ask
) -> None:
    gate = Gate()
    ranks = [join(0, 2, gate=gate), join(1, 2)]
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    server.commit(2, Policy.ABORT)
    assert all(rank.holds(run.weights(2)) for rank in ranks)
    assert ["prove 1", "hold abort", "write", "resume 2", "publish"] == gate.calls


def test_nobody_calls_an_island_of_which_a_rank_or_the_gate_is_missing(
    server: ArmServer, join: Callable[..., Rank], join_gate: Callable[..., tuple[Gate, ArmClient]], ask: Ask
) -> None:
    gate, _ = join_gate(2)
    wait_until(lambda: "ranks [0, 1] of 2" in silence(server))
    join(1, 2)
    wait_until(lambda: "ranks [0] of 2 of pod pod are not connected" in silence(server))
    with pytest.raises(EngineUnavailable, match=r"ranks \[0\]"):
        server.stage(ask(1, 2))
    assert [] == gate.calls  # and nothing is served before it is proven
    join(0, 2)
    assert server.wait_connected(10)
    wait_until(lambda: gate.serves == 1)


def silence(server: ArmServer) -> str:
    with pytest.raises(EngineUnavailable) as caught:
        server.describe()
    return str(caught.value)


def test_without_its_gate_an_island_is_not_called(server: ArmServer, join: Callable[..., Rank]) -> None:
    join(0, 2)
    join(1, 2)
    wait_until(lambda: "the gate of pod pod is not connected" in silence(server))


def test_a_second_gate_is_refused_by_name(
    server: ArmServer,
    start: Callable[[int], Engine],
    join_gate: Callable[..., tuple[Gate, ArmClient]],
    join: Callable[..., Rank],
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    _, second = join_gate(2)
    wait_until(lambda: second.refused)
    assert "the gate of pod is the engine's gate; the gate of pod would be a second one" in second.connection
    engine.ranks[1].client.stop()
    both = join(1, 2, gate=Gate())
    wait_until(lambda: both.client.refused)
    assert "the gate of pod is the engine's gate; rank 1 of pod would be a second one" in both.client.connection


def test_a_gate_that_connects_again_is_not_a_second_one(
    server: ArmServer, start: Callable[[int], Engine], join_gate: Callable[..., tuple[Gate, ArmClient]]
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    engine.client.stop()
    gate, client = join_gate(2)
    wait_until(lambda: gate.serves == 1)
    assert "connected" == client.connection


def test_bands_that_overlap_are_refused_by_name(
    run: WeightRun, server: ArmServer, join: Callable[..., Rank], join_gate: Callable[..., tuple[Gate, ArmClient]]
) -> None:
    join_gate(2)
    first = join(0, 2)
    wait_until(lambda: first.client.connection == "connected")
    low = layout_of(run, 1, 2)
    wider = Block(0, (17, 0), (20, 53), 0, 0, (53, 1))
    late = join(1, 2, layout=Layout.of(run.table, [wider, *(b for held in low.blocks[1:] for b in held)]))
    wait_until(lambda: late.client.refused)
    assert (
        "rank 0 holds a.weight, indices 0 to 17 of axis 0, rank 1 a.weight, indices 17 to 36" in late.client.connection
    )
    assert "the last arm was turned away" in silence(server)


def test_whole_and_parts_do_not_make_an_island(
    run: WeightRun, server: ArmServer, join: Callable[..., Rank], join_gate: Callable[..., tuple[Gate, ArmClient]]
) -> None:
    join_gate(2)
    first = join(0, 2)
    wait_until(lambda: first.client.connection == "connected")
    late = join(1, 2, layout=layout_of(run, 0, 1))
    wait_until(lambda: late.client.refused)
    assert "rank 1 holds the view whole, rank 0 parts of it" in late.client.connection


@pytest.mark.parametrize(
    ("store", "says"),
    [(3, "rank 1 has other bits than rank 0 of e.ids, indices 0 to 128 of axis 0"), (0, "what the ranks hold sums to")],
    ids=["of a copy", "of what counts"],
)
def test_one_other_bit_on_one_rank_is_found_at_start_and_made_whole_from_a_checkpoint(
    run: WeightRun,
    server: ArmServer,
    join: Callable[..., Rank],
    join_gate: Callable[..., tuple[Gate, ArmClient]],
    ask: Ask,
    tmp_path: Path,
    store: int,
    says: str,
) -> None:
    def spoil(stores: list[np.ndarray]) -> None:
        stores[store][5] ^= 1

    gate, _ = join_gate(2)
    ranks = [join(0, 2), join(1, 2, spoil=spoil)]
    assert server.wait_connected(10)
    described = server.describe()
    assert says in str(described.error)
    assert described.applied is not None
    assert not described.applied.proven
    assert gate.serves is None
    with pytest.raises(DigestMismatch, match=says):
        server.sweep()
    with pytest.raises(DigestMismatch):
        server.stage(ask(1, 2))
    run.checkpoint(tmp_path / "whole", 2)
    server.stage(ask(1, 2, checkpoint=tmp_path / "whole"))
    server.commit(2, Policy.KEEP)
    assert gate.serves is None  # written over memory in doubt: a sweep decides
    assert server.sweep().proven
    assert 2 == gate.serves
    assert all(rank.holds(run.weights(2)) for rank in ranks)
    assert is_proven(server, 2)


def test_a_live_bit_that_flips_on_one_rank_takes_the_island_out(
    server: ArmServer, start: Callable[[int], Engine]
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    engine.ranks[1].stores[1][9] ^= 1
    with pytest.raises(DigestMismatch, match=r"b\.down_proj\.weight"):
        server.sweep()
    assert "b.down_proj.weight" in str(server.describe().error)
    assert not is_proven(server, 1)


def test_what_ranks_stage_leads_to_the_version_or_nothing_is_written(
    run: WeightRun, server: ArmServer, start: Callable[[int], Engine], ask: Ask
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    with pytest.raises(DigestMismatch, match="nothing was written"):
        server.stage(ask(1, 2, target_digest=run.digest(3)))
    with pytest.raises(EngineUnavailable, match="not staged"):
        server.commit(2, Policy.KEEP)
    assert engine.holds(run.weights(1))
    assert is_proven(server, 1)


def test_a_tensor_that_no_rank_holds_is_named_before_anything_is_written(
    run: WeightRun,
    server: ArmServer,
    join: Callable[..., Rank],
    join_gate: Callable[..., tuple[Gate, ArmClient]],
    ask: Ask,
    tmp_path: Path,
) -> None:
    gate, _ = join_gate(2)
    lacking = [
        Layout.of(run.table, [b for h in layout_of(run, n, 2).blocks for b in h if b.store < 4]) for n in range(2)
    ]  # the last, a scalar, is in nobody's memory
    ranks = [join(n, 2, layout=lacking[n]) for n in range(2)]
    assert server.wait_connected(10)
    assert "what the ranks hold sums to" in str(server.describe().error)
    assert gate.serves is None
    run.checkpoint(tmp_path / "whole", 2)
    with pytest.raises(LayoutRefused, match=r"no rank holds f\.scalar; nothing was written"):
        server.stage(ask(1, 2, checkpoint=tmp_path / "whole"))
    assert all(rank.holds(run.weights(1)) for rank in ranks)


# --- a rank fails ------------------------------------------------------------------------------------------------------


def test_a_rank_that_is_not_ready_costs_nothing(
    run: WeightRun,
    server: ArmServer,
    start: Callable[[int], Engine],
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    monkeypatch.setattr(engine.ranks[1].live, "ready", raising(EngineUnavailable("busy")))
    with pytest.raises(EngineUnavailable, match="busy"):
        server.commit(2, Policy.KEEP)
    monkeypatch.undo()
    assert ["prove 1"] == engine.gate.calls
    assert 2 == server.commit(2, Policy.KEEP).version
    assert engine.holds(run.weights(2))


def raising(error: Exception) -> Callable[[int], object]:
    def fail(_: int) -> object:
        raise error

    return fail


@pytest.mark.parametrize("at", ["scatter", "confirm"])
def test_a_rank_that_fails_after_the_write_began_takes_the_island_out_until_it_is_whole(
    run: WeightRun,
    server: ArmServer,
    start: Callable[[int], Engine],
    ask: Ask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    monkeypatch.setattr(engine.ranks[1].live, at, raising(EngineUncertain("the device is gone")))
    with pytest.raises(EngineUncertain, match="the device is gone"):
        server.commit(2, Policy.KEEP)
    monkeypatch.undo()
    assert (None, False, False) == (engine.gate.serves, engine.gate.stands, engine.gate.withholds)
    assert "fail" in engine.gate.calls
    assert not is_proven(server, 2)
    assert "ranks hold different versions (2, 1)" in str(server.describe().error)
    with pytest.raises(EngineUncertain, match="different versions"):
        server.sweep()
    if at == "confirm":  # both have written
        server.undo(1)
        target = 1
    else:
        with pytest.raises(LayoutRefused, match="cannot be undone to"):
            server.undo(1)
        run.checkpoint(tmp_path / "whole", 3)
        server.stage(ask(1, 3, checkpoint=tmp_path / "whole"))
        server.commit(3, Policy.KEEP)
        target = 3
    assert server.sweep().proven
    assert target == engine.gate.serves
    assert engine.holds(run.weights(target))
    assert is_proven(server, target)


def test_a_rank_that_writes_half_and_fails_is_undone_with_all_others(
    run: WeightRun, server: ArmServer, start: Callable[[int], Engine], ask: Ask
) -> None:
    engine = start(2)
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
    assert engine.gate.serves is None
    server.undo(1)
    assert server.sweep().proven
    assert engine.holds(run.weights(1))
    assert 1 == engine.gate.serves


def test_a_rank_that_is_lost_in_its_write_leaves_an_island_that_says_so(
    run: WeightRun,
    server: ArmServer,
    start: Callable[[int], Engine],
    join: Callable[..., Rank],
    ask: Ask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    lost = engine.ranks[1]

    def die(_: int) -> None:
        assert lost.client._channel is not None
        lost.client._stopping.set()
        lost.client._channel.close()

    monkeypatch.setattr(lost.live, "scatter", die)
    with pytest.raises(EngineUncertain, match="rank 1 of pod went away"):
        server.commit(2, Policy.KEEP)
    assert engine.gate.serves is None
    assert "ranks [1] of 2" in silence(server)
    engine.ranks[1] = join(1, 2)  # its process starts again from the checkpoint that it started from before
    assert server.wait_connected(10)
    assert "ranks hold different versions (2, 1)" in str(server.describe().error)
    run.checkpoint(tmp_path / "whole", 2)
    server.stage(ask(1, 2, checkpoint=tmp_path / "whole"))
    server.commit(2, Policy.KEEP)
    assert server.sweep().proven
    assert 2 == engine.gate.serves
    assert engine.holds(run.weights(2))


# --- the gate is lost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "kind", "version"),
    [
        ("hold", EngineUnavailable, 1),
        ("write", EngineUnavailable, 1),
        ("resume", EngineUncertain, 2),
        ("publish", EngineUncertain, 2),
    ],
)
@pytest.mark.parametrize("answers", [True, False], ids=["it fails", "its connection ends"])
def test_a_gate_that_is_lost_anywhere_comes_back_with_what_the_ranks_hold(
    run: WeightRun,
    server: ArmServer,
    start: Callable[[int], Engine],
    ask: Ask,
    at: str,
    kind: type[Exception],
    version: int,
    answers: bool,
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))

    def break_here() -> None:
        if not answers:
            assert engine.client._channel is not None
            engine.client._channel.close()
        raise EngineUnavailable("the loop hangs")

    engine.gate.breaks[at] = break_here
    with pytest.raises(kind):
        server.commit(2, Policy.KEEP)
    assert engine.holds(run.weights(version))
    assert server.wait_connected(10)
    if kind is EngineUncertain:
        assert "fail" in engine.gate.calls
        server.sweep()
    wait_until(lambda: is_proven(server, version))
    assert (version, False) == (engine.gate.serves, engine.gate.stands)
    server.stage(ask(version, 3))
    assert 3 == server.commit(3, Policy.KEEP).version
    assert engine.holds(run.weights(3))
    assert 3 == engine.gate.serves


# --- the agent is lost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "version"), [("apply.ready", 1), ("apply.writing", 1), ("apply.resumed", 2)], ids=lambda v: str(v)
)
def test_an_agent_killed_in_a_commit_finds_an_island_that_it_can_prove(
    run: WeightRun, node: Path, start: Callable[[int], Engine], ask: Ask, point: str, version: int
) -> None:
    engine = start(2)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as first:
        assert first.wait_connected(10)
        engine.gate.released.clear()
        commit_and_die(first, ask(1, 2), point)
        assert version == 1 or not is_proven(first, 2)
    assert engine.gate.released.wait(5)  # at once, not when its patience ends
    if point != "apply.ready":
        wait_until(lambda: "fail" in engine.gate.calls)
        assert (None, False) == (engine.gate.serves, engine.gate.stands)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as second:
        assert second.wait_connected(10)
        wait_until(lambda: described_version(second) == version)
        assert second.sweep().proven
        assert is_proven(second, version)
        assert version == engine.gate.serves
        assert engine.holds(run.weights(version))
        second.stage(ask(version, 3))
        second.commit(3, Policy.KEEP)
        assert engine.holds(run.weights(3))


def commit_and_die(server: ArmServer, request: StageRequest, at: str) -> None:
    def die(point: str) -> None:
        if point == at:
            raise Gone

    server.stage(request)
    faults.install_hook(die)
    try:
        with pytest.raises(Gone):
            server.commit(request.target, Policy.KEEP)
    finally:
        faults.install_hook(None)


def described_version(server: ArmServer) -> int | None:
    try:
        applied = server.describe().applied
    except EngineUnavailable:
        return None
    return applied.version if applied else None


@pytest.mark.parametrize(("point", "version"), [("apply.writing", 1), ("apply.resumed", 2)])
def test_an_engine_of_one_process_ends_by_itself_what_a_killed_agent_began(
    run: WeightRun,
    node: Path,
    clients: list[ArmClient],
    hold: Callable[..., LiveWeights],
    ask: Ask,
    point: str,
    version: int,
) -> None:
    memory, gate = run.copy(1), Gate()
    live = hold(1, memory)
    client = ArmClient(
        node / "arm.sock",
        ArmIdentity("test", "pool", "pod"),
        live,
        gate,
        randomness=random.Random(1),
        backoff=QUICK,
    )
    client.start()
    clients.append(client)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as first:
        assert first.wait_connected(10)
        commit_and_die(first, ask(1, 2), point)
    wait_until(lambda: gate.calls[-1] == "publish")
    assert ["hold keep", "write", f"resume {version}", "publish"] == gate.calls
    assert live.applied is not None
    assert (version, True) == (live.applied.version, live.in_service)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as second:
        assert second.wait_connected(10)
        wait_until(lambda: is_proven(second, version))
        second.stage(ask(version, 3))
        assert 3 == second.commit(3, Policy.KEEP).version


def test_an_agent_that_starts_again_finds_a_proven_island_proven(
    node: Path, start: Callable[[int], Engine], ask: Ask
) -> None:
    engine = start(2)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as first:
        assert first.wait_connected(10)
        first.stage(ask(1, 2))
        first.commit(2, Policy.KEEP)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as second:
        assert second.wait_connected(10)
        assert is_proven(second, 2)
    assert "publish" == engine.gate.calls[-1]  # there was nothing to say


def test_a_rank_whose_layout_was_refused_says_so_and_refuses_every_call(
    server: ArmServer, node: Path, clients: list[ArmClient], ask: Ask
) -> None:
    client = ArmClient(
        node / "arm.sock",
        ArmIdentity("test", "pool", "pod"),
        None,
        Gate(),
        randomness=random.Random(1),
        refusal="x.weight was requantized; this engine is served by its reload route",
    )
    client.start()
    clients.append(client)
    assert server.wait_connected(10)
    described = server.describe()
    assert described.applied is None
    assert "x.weight was requantized" in str(described.error)
    with pytest.raises(LayoutRefused, match="was requantized"):
        server.stage(ask(1, 2))


@pytest.mark.parametrize(("rank", "refusal", "gate"), [(None, None, None), (None, "no", Gate()), (0, None, Gate())])
def test_an_arm_that_is_neither_rank_nor_gate_is_not_made(
    node: Path, rank: int | None, refusal: str | None, gate: Gate | None
) -> None:
    with pytest.raises(ValueError, match="a rank has weights"):
        ArmClient(
            node / "arm.sock",
            ArmIdentity("test", "pool", "pod", rank),
            None,
            gate,
            randomness=random.Random(1),
            refusal=refusal,
        )


# --- out of service ----------------------------------------------------------------------------------------------------


def test_no_gate_goes_into_service_over_a_rank_that_only_a_sweep_can_prove(
    node: Path, start: Callable[[int], Engine], ask: Ask
) -> None:
    engine = start(2)
    with ArmServer(node / "arm.sock", timeouts=TIMES) as first:
        assert first.wait_connected(10)
        first.stage(ask(1, 2))
        first.commit(2, Policy.KEEP)
        first.undo(1)
    wait_until(lambda: engine.gate.serves is None)
    proofs = engine.gate.calls.count("prove 1")
    with ArmServer(node / "arm.sock", timeouts=TIMES) as second:
        assert second.wait_connected(10)
        assert not is_proven(second, 1)
        assert (None, proofs) == (engine.gate.serves, engine.gate.calls.count("prove 1"))
        assert second.sweep().proven
        assert 1 == engine.gate.serves


def test_a_bit_that_a_rank_finds_by_itself_takes_the_gate_of_all_out_until_it_is_mended(
    run: WeightRun, server: ArmServer, start: Callable[[int], Engine], ask: Ask, tmp_path: Path
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    wait_until(lambda: engine.gate.serves == 1)
    engine.ranks[1].stores[1][9] ^= 1
    with pytest.raises(DigestMismatch):
        engine.ranks[1].live.sweep()  # the engine's own
    engine.ranks[1].client.notify()
    wait_until(lambda: engine.gate.serves is None)
    run.checkpoint(tmp_path / "whole", 2)
    server.stage(ask(1, 2, checkpoint=tmp_path / "whole"))
    server.commit(2, Policy.KEEP)
    assert engine.gate.serves is None
    assert server.sweep().proven
    assert 2 == engine.gate.serves


@pytest.mark.parametrize("spoilt", [False, True], ids=["an older version", "other bits"])
def test_a_rank_that_comes_back_with_something_else_takes_the_gate_out(
    run: WeightRun,
    server: ArmServer,
    start: Callable[[int], Engine],
    join: Callable[..., Rank],
    ask: Ask,
    spoilt: bool,
) -> None:
    def spoil(stores: list[np.ndarray]) -> None:
        stores[0][3] ^= 1

    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    server.commit(2, Policy.KEEP)
    assert 2 == engine.gate.serves
    engine.ranks[1].client.stop()
    join(1, 2, version=2 if spoilt else 1, spoil=spoil if spoilt else lambda stores: None)
    wait_until(lambda: engine.gate.serves is None)
    assert not is_proven(server, 2)


def test_an_island_is_not_proven_while_its_gate_keeps_inside_what_an_undo_left_though_a_rank_was_away(
    server: ArmServer, start: Callable[[int], Engine], ask: Ask
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    server.commit(2, Policy.KEEP)
    server.undo(1)
    away = engine.ranks[1].client._channel
    assert away is not None
    away.close()
    wait_until(lambda: engine.ranks[1].client._channel not in (None, away))
    assert server.wait_connected(10)
    for rank in engine.ranks:
        assert rank.live.sweep().proven  # the engine's own
        rank.client.notify()
    wait_until(lambda: all(arm.state.applied is None or arm.state.applied.proven for arm in server._island.present()))
    assert engine.gate.withholds
    assert not is_proven(server, 1)  # so that whoever follows sweeps
    assert server.sweep().proven
    assert (1, False) == (engine.gate.serves, engine.gate.withholds)


def test_ranks_that_confirm_another_version_than_was_written_take_the_gate_out(
    server: ArmServer, start: Callable[[int], Engine], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    server.stage(ask(1, 2))
    for rank in engine.ranks:
        monkeypatch.setattr(rank.live, "confirm", lambda _, live=rank.live: live.applied)
    with pytest.raises(EngineUncertain, match="the ranks hold version 1, not 2"):
        server.commit(2, Policy.KEEP)
    assert engine.gate.serves is None
    assert "publish" not in engine.gate.calls


def test_a_sweep_tells_no_digests_of_another_version_than_it_swept(
    server: ArmServer, start: Callable[[int], Engine], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(2)
    assert server.wait_connected(10)
    rank = engine.ranks[0]
    sweep = rank.live.sweep

    def then_a_write_comes() -> Applied:
        applied = sweep()
        rank.live.stage(ask(1, 2))
        rank.live.ready(2)
        rank.live.scatter(2)
        return applied

    monkeypatch.setattr(rank.live, "sweep", then_a_write_comes)
    answer = rank.client._answerer.do(Sweep(id=1))
    assert isinstance(answer, Swept)
    assert (1, None) == (answer.applied.version, answer.digests)


@pytest.mark.parametrize("doubt", [False, True], ids=["in a commit", "by a rank's sweep"])
def test_a_gate_that_could_not_go_out_of_service_is_asked_again(
    server: ArmServer, start: Callable[[int], Engine], ask: Ask, doubt: bool
) -> None:
    def break_here() -> None:
        raise RuntimeError("busy")

    engine = start(2)
    assert server.wait_connected(10)
    wait_until(lambda: engine.gate.serves == 1)
    engine.gate.breaks["fail"] = break_here
    if doubt:
        engine.ranks[1].stores[1][9] ^= 1
        with pytest.raises(DigestMismatch):
            server.sweep()
        engine.ranks[1].stores[1][9] ^= 1
    else:
        server.stage(ask(1, 2))
        engine.gate.breaks["resume"] = break_here
        with pytest.raises(EngineUncertain):
            server.commit(2, Policy.KEEP)
        assert not is_proven(server, 2)
    wait_until(lambda: engine.gate.serves is None)
    assert 2 == engine.gate.calls.count("fail")
    assert not engine.gate.stands
    assert server.sweep().proven
    assert (1 if doubt else 2) == engine.gate.serves
