"""The ranks of a reference engine as threads of a test: what each holds of a model, what they compute together, and how they
follow a run in place. No process, no socket, no agent.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from numpy.typing import NDArray

from syncline.testing.tables import TILING
from syncline.testing.weight_run import WeightRun
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.parts import band_parts, hexes, named_bands
from syncline_agent.arm.proof import Shares
from syncline_agent.arm.torch_stores import memory_of_stores
from syncline_agent.engine import DeltaFiles, StageRequest
from syncline_agent.reference.model import Decoder
from syncline_agent.reference.network import network_of
from syncline_agent.reference.parameters import Parameters
from syncline_agent.reference.ranks import ALONE, Ranks
from syncline_agent.reference.slicing import slices
from syncline_agent.testing.plain_model import Model

TOKENS = [1, 4, 9, 3, 17, 5, 2]
BARRIER_S = 120.0


class Threads:
    """Ranks that meet at a barrier."""

    def __init__(self, ways: int) -> None:
        self.ways = ways
        self._barrier = threading.Barrier(ways, timeout=BARRIER_S)
        self._said: list[torch.Tensor] = [torch.empty(0)] * ways

    def tell(self, rank: int, x: torch.Tensor) -> list[torch.Tensor]:
        """What all of them say, in order."""
        self._said[rank] = x
        self._barrier.wait()
        found = list(self._said)
        self._barrier.wait()
        return found


class _Seen:
    """All of them, as one rank sees them (`ranks.Ranks`)."""

    def __init__(self, threads: Threads, rank: int) -> None:
        self.ways = threads.ways
        self._threads, self._rank = threads, rank

    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> None:
        pass

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._threads.tell(self._rank, x)).sum(0)

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._threads.tell(self._rank, x), dim=-1)

    def broke(self, error: Exception) -> None:
        pass


class Rank:
    """What one rank holds of a model, and computes."""

    def __init__(
        self, of: Model, rank: int = 0, threads: Threads | None = None, *, expert_parallel: bool = True
    ) -> None:
        ways = 1 if threads is None else threads.ways
        held = slices(of.config, of.table, rank=rank, ranks=ways, expert_parallel=expert_parallel)
        self.parameters = Parameters(held, of.table, device="cpu")
        self.fill(of)
        seen: Ranks = ALONE if threads is None else _Seen(threads, rank)
        self.decoder = Decoder(of.config, network_of(of.config, self.parameters), slots=1, ranks=seen)

    def fill(self, of: Model) -> None:
        self.parameters.fill(of.bits.__getitem__)

    def logits(self) -> NDArray[Any]:
        """Of each of TOKENS, some fed at once and the others one by one."""
        count = len(TOKENS)
        prompt = self.decoder.forward(TOKENS[:4], [0] * 4, range(4))
        steps = [self.decoder.forward([TOKENS[p]], [0], [p]) for p in range(4, count)]
        return torch.cat([prompt, *steps]).numpy()

    def live(self, of: Model) -> LiveWeights:
        layout = self.parameters.layout()
        stores = self.parameters.flat_stores()
        memory = memory_of_stores(layout, TILING.tiling, stores, loaded=of.bits.__getitem__)
        return LiveWeights(of.table, TILING.tiling, memory)

    def bits(self) -> list[bytes]:
        return [store.numpy().tobytes() for store in self.parameters.stores]


def ranks_of(of: Model, ways: int, *, expert_parallel: bool = True) -> list[Rank]:
    if ways == 1:
        return [Rank(of)]
    threads = Threads(ways)
    return [Rank(of, rank, threads, expert_parallel=expert_parallel) for rank in range(ways)]


def together(ranks: Sequence[Rank]) -> list[NDArray[Any]]:
    """What each of them computes, all at once."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(Rank.logits, ranks))


class Following:
    """The weights of all ranks under an arm, as an agent drives them: summed up, and never proven by one alone."""

    def __init__(self, run: WeightRun, of: Model, ranks: Sequence[Rank], *, version: int = 1) -> None:
        """They hold `version`, which `of` is."""
        self._run = run
        self.lives = [rank.live(of) for rank in ranks]
        for live in self.lives:
            live.prove(run.lineage, "main", version, run.digest(version))
        self._shares = Shares([named_bands(band_parts(of.table, live.holds)) for live in self.lives])
        self.check(version)
        if len(ranks) > 1:
            for live in self.lives:
                live.proved(version, run.digest(version))

    def commit(self, base: int, target: int) -> None:
        """In place, with what is published as `target`; every digest on the way is compared."""
        staged = [live.stage(asked(self._run, base, target)) for live in self.lives]
        if len(self.lives) > 1:
            assert self._run.digest(target) == self._shares.total([hexes(result.digests) for result in staged]).hex
        for live in self.lives:
            live.ready(target)
        self._write(target)
        assert all(live.in_service for live in self.lives)
        self.check(target)

    def undo(self, version: int) -> None:
        for live in self.lives:
            live.ready_undo(version)
        self._write(version)
        self.check(version)

    def check(self, version: int) -> None:
        """What is held is this version: swept, and summed up to the published digest."""
        for live in self.lives:
            swept = live.sweep(slice_units=1000)
            assert (version, self._run.digest(version)) == (swept.version, swept.digest)
        if len(self.lives) > 1:
            held = [None if live.holds is None else hexes([digest for _, digest in live.holds]) for live in self.lives]
            assert self._run.digest(version) == self._shares.total(held).hex

    def _write(self, version: int) -> None:
        for live in self.lives:
            live.scatter(version)
        for live in self.lives:
            live.confirm(version)


def asked(run: WeightRun, base: int, target: int) -> StageRequest:
    """What an agent asks for: the deltas between two versions."""
    return StageRequest(
        run.lineage,
        "main",
        base,
        run.digest(base),
        target,
        run.digest(target),
        run.table_file,
        run.tiling.tiling,
        [DeltaFiles(v, run.digest(v), run.delta(v - 1, v)) for v in range(base + 1, target + 1)],
    )
