"""Live weights of ranks that hold parts: what they claim, what makes them proven, and what a wrong bit or shadow does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from syncline.clock import ManualClock
from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, FrameCorrupt
from syncline.testing.weight_run import WeightRun
from syncline.wire.digest import Digest, total
from syncline.wire.records import TilingPart
from syncline_agent.arm.layout import Band
from syncline_agent.arm.live import LiveWeights
from syncline_agent.engine import DeltaFiles, StageRequest
from syncline_agent.testing.spread import Loaded, Sizes, Steps

CHAIN = 3
SMALL = TilingPart(min_units=16, max_units=100, ways=4)
SPREAD = Sizes(ways=3, kv_heads=1)


class Island:
    """All ranks of one engine, each with its live weights, and the run that they follow."""

    def __init__(self, folder: Path, sizes: Sizes = SPREAD) -> None:
        random = np.random.default_rng(3)
        first = {s.name: np.frombuffer(random.bytes(s.size_bytes), f"<u{s.unit_bytes}") for s in sizes.table.tensors}
        self.run = WeightRun(folder, sizes.table, first, tiling=SMALL)
        for _ in range(CHAIN):
            self.run.step()
        self.steps = Steps(sizes, SMALL, [self.run.weights(v) for v in range(1, CHAIN + 2)], [])
        self.loaded = [Loaded.at(self.steps, rank, 0) for rank in range(sizes.ways)]
        self.clocks = [Sleeper() for _ in self.loaded]
        self.ranks = [
            LiveWeights(self.run.table, SMALL.tiling, loaded.memory, clock=clock)
            for loaded, clock in zip(self.loaded, self.clocks, strict=True)
        ]

    def claim(self, version: int = 1) -> None:
        for live in self.ranks:
            live.prove(self.run.lineage, "main", version, self.run.digest(version))

    def proved(self, version: int) -> None:
        for live in self.ranks:
            live.proved(version, self.run.digest(version))

    def request(self, base: int, target: int, checkpoint: Path | None = None) -> StageRequest:
        run = self.run
        between = () if checkpoint else range(base + 1, target + 1)
        return StageRequest(
            run.lineage,
            "main",
            base,
            run.digest(base),
            target,
            run.digest(target),
            run.table_file,
            SMALL.tiling,
            [DeltaFiles(v, run.digest(v), run.delta(v - 1, v)) for v in between],
            checkpoint,
        )

    def stage(self, request: StageRequest) -> str:
        """What the ranks' bands will sum to, each counted once."""
        together: dict[Band, Digest] = {}
        for live in self.ranks:
            result, holds = live.stage(request), live.holds
            assert result.digests is not None
            assert holds is not None
            for (band, _), digest in zip(holds, result.digests, strict=True):
                assert digest == together.setdefault(band, digest)
        return total(together.values()).hex

    def commit(self, target: int) -> None:
        for live in self.ranks:
            live.ready(target)
            live.scatter(target)
            live.confirm(target)

    def undo(self, version: int) -> None:
        for live in self.ranks:
            live.ready_undo(version)
            live.scatter(version)
            live.confirm(version)

    def digest(self) -> str:
        """What the ranks say that they hold."""
        return total({band: digest for live in self.ranks for band, digest in live.holds or ()}.values()).hex

    def holds(self, version: int) -> bool:
        return all(loaded.holds(version - 1) for loaded in self.loaded)

    @property
    def proven(self) -> set[bool]:
        return {live.in_service for live in self.ranks}


class Sleeper(ManualClock):
    """A clock whose sleeps something is done in."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0
        self.during: Callable[[int], None] = lambda _: None

    def monotonic(self) -> float:
        return float(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.during(self.slept)


@pytest.fixture
def island(tmp_path: Path) -> Island:
    island = Island(tmp_path / "node")
    island.claim()
    return island


def test_ranks_of_parts_are_proven_by_what_they_sum_to_and_stay_so(island: Island) -> None:
    assert {False} == island.proven
    assert {False} == {live.sweep().proven for live in island.ranks}  # each matches its own claim, which says nothing
    assert island.run.digest(1) == island.digest()
    island.proved(1)
    assert {True} == island.proven
    assert island.run.digest(3) == island.stage(island.request(1, 3))
    assert island.holds(1)
    island.commit(3)
    assert island.holds(3)
    assert {True} == island.proven
    assert island.run.digest(3) == island.digest()
    assert {3} == {live.sweep().version for live in island.ranks}
    with pytest.raises(EngineUnavailable, match="not what is applied"):
        island.proved(1)


def test_an_undo_of_parts_is_proven_by_a_sweep_and_by_no_word(island: Island) -> None:
    island.proved(1)
    island.stage(island.request(1, 2))
    island.commit(2)
    island.undo(1)
    assert island.holds(1)
    assert {False} == island.proven
    with pytest.raises(EngineUnavailable, match="sweep first"):
        island.proved(1)
    assert {False} == island.proven
    assert {True} == {live.sweep().proven for live in island.ranks}
    assert island.run.digest(4) == island.stage(island.request(1, 4))
    island.commit(4)
    assert island.holds(4)


def test_between_a_write_and_its_reading_back_a_rank_names_the_digests_of_the_version_that_it_names(
    island: Island,
) -> None:
    island.proved(1)
    island.stage(island.request(1, 3))
    for live in island.ranks:
        live.ready(3)
        live.scatter(3)
    assert {1} == {live.applied.version for live in island.ranks if live.applied}
    assert island.run.digest(1) == island.digest()
    for live in island.ranks:
        live.confirm(3)
    assert island.run.digest(3) == island.digest()
    for live in island.ranks:
        live.ready_undo(1)
        live.scatter(1)
    assert island.run.digest(3) == island.digest()
    for live in island.ranks:
        live.confirm(1)
    assert island.run.digest(1) == island.digest()


@pytest.mark.parametrize("where", ["q.weight", "turned.weight", "embed.weight", "o_proj.weight"])
@pytest.mark.parametrize("changed", [True, False])
def test_a_live_bit_of_a_part_is_found_inside_and_outside_a_delta(
    island: Island, tmp_path: Path, where: str, changed: bool
) -> None:
    island.proved(1)
    loaded, live, run = island.loaded[1], island.ranks[1], island.run
    low = loaded.rank.starts[where]
    differs = run.weights(1)[where] != run.weights(2)[where]
    wanted = low + np.flatnonzero(differs == changed)
    store, place = next(
        (n, int(places[0]))
        for n, s in enumerate(loaded.rank.stores)
        if (places := np.flatnonzero(np.isin(s.reshape(-1), wanted))).size
    )
    loaded.stores[store][place] ^= 2
    if changed:  # the predicted digests are others, whatever the others hold
        try:
            assert run.digest(2) != island.stage(island.request(1, 2))
        except DigestMismatch as error:  # or the delta did not decode, and a sweep said why
            assert where in str(error)
            assert live.error is not None
    with pytest.raises(DigestMismatch, match=where):
        live.sweep()
    assert not live.in_service
    run.checkpoint(tmp_path / "whole", 3)
    assert run.digest(3) == island.stage(island.request(1, 3, tmp_path / "whole"))
    island.commit(3)
    assert island.holds(3)
    assert not live.in_service
    assert live.sweep().proven
    assert run.digest(4) == island.stage(island.request(3, 4))


def test_a_shadow_that_was_altered_is_noticed_and_made_whole_by_a_checkpoint(island: Island, tmp_path: Path) -> None:
    island.proved(1)
    for shadow in island.loaded[1].memory._shadows.units.values():
        shadow ^= 1
    try:
        assert island.run.digest(2) != island.stage(island.request(1, 2))
    except FrameCorrupt:
        pass  # what is not held has to do with how a delta decodes
    island.run.checkpoint(tmp_path / "whole", 2)
    assert island.run.digest(2) == island.stage(island.request(1, 2, tmp_path / "whole"))
    island.commit(2)
    assert island.run.digest(4) == island.stage(island.request(2, 4))
    island.commit(4)
    assert island.holds(4)


def test_commits_and_undos_between_the_slices_of_a_sweep_of_parts_do_not_disturb_it(island: Island) -> None:
    island.proved(1)
    run, live = island.run, island.ranks[1]

    def between(slept: int) -> None:
        if slept in (7, 40):
            live.stage(island.request(1, 3))
            live.ready(3)
            live.scatter(3)
            live.confirm(3)
        if slept == 25:
            live.ready_undo(1)
            live.scatter(1)
            live.confirm(1)

    island.clocks[1].during = between
    assert 3 == live.sweep(rest=1.0, slice_units=1).version
    assert island.clocks[1].slept > 50
    assert island.loaded[1].holds(2)
    assert run.digest(1) != run.digest(3)
    assert live.sweep().proven


def test_parts_that_cannot_be_read_back_never_claim_the_version_before(
    island: Island, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object, **__: object) -> bool:
        raise MemoryError("the device is full")

    island.proved(1)
    live = island.ranks[1]
    live.stage(island.request(1, 2))
    live.ready(2)
    live.scatter(2)
    monkeypatch.setattr(live._memory, "read_back", out_of_memory)
    with pytest.raises(EngineUncertain):
        live.confirm(2)
    applied = live.sweep()
    assert (2, True) == (applied.version, applied.proven)
    assert island.loaded[1].holds(1)


def test_a_claim_of_other_weights_is_seen_in_the_sum(tmp_path: Path) -> None:
    island = Island(tmp_path / "node")
    island.claim(2)
    assert island.run.digest(2) != island.digest()
    island.run.checkpoint(tmp_path / "whole", 3)
    assert island.run.digest(3) == island.stage(island.request(2, 3, tmp_path / "whole"))
    island.commit(3)
    assert {False} == island.proven
    assert island.run.digest(3) == island.digest()
    island.proved(3)
    assert {True} == island.proven
