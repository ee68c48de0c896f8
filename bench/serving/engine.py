"""`python -m bench.serving.engine`: the reference engine's own process, watched from inside: when it staged and scattered, how long the
kernels of a commit took, what its device memory holds.

Everything of `python -m syncline_agent.reference` after `--`. Nothing of what the engine does is changed but this: told so, it stages a
version several times over, so that staging lasts long enough for its cost to be counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from bench.serving.orders import answer_in_thread
from bench.serving.profiling import profiled

from syncline.delta.device.parts import DensePart, SparsePart
from syncline_agent.arm import turns
from syncline_agent.arm.live import LiveWeights
from syncline_agent.reference import __main__ as process
from syncline_agent.reference import engine, loading
from syncline_agent.reference.engine import ReferenceEngine

Intervals = dict[str, list[list[float]]]


class Watch:
    """What was seen."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device != "cpu"
        self._engine: ReferenceEngine | None = None
        self._took: Intervals = {}
        self._writes: list[tuple[float, torch.cuda.Event, torch.cuda.Event]] = []
        self._staged_bytes: list[int] = []
        self._times = 1
        self._profile: str | None = None
        self._attached = 0

    def install(self) -> None:
        """Before the engine's modules are used."""
        for owner, name in (
            (engine, "load"),
            (LiveWeights, "warm_up"),
            (LiveWeights, "prove"),
            (LiveWeights, "scatter"),
        ):
            self._time(owner, name)
        self._time(LiveWeights, "confirm")
        self._time(LiveWeights, "sweep")
        self._stage_again()
        self._weigh_memory()
        if self._on_gpu:
            self._time_kernels()
        watch = self

        class Watched(ReferenceEngine):
            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__(*arguments, **named)
                watch._engine = self

        process.ReferenceEngine = Watched

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {"seen": self.seen, "memory": self.memory, "stage_times": self.stage_times, "sweep_for": self.sweep_for}

    # --- told from outside

    def seen(self) -> dict[str, Any]:
        """Moments [begin, end] of everything that was timed, and when each part of a commit was written and what its kernel took."""
        return {
            "took": self._took,
            "writes_ms": [[when, begin.elapsed_time(end)] for when, begin, end in self._writes],
            "staged_bytes": self._staged_bytes,
            "attached_bytes": self._attached,
        }

    def memory(self, *, reset: bool) -> dict[str, int]:
        """Device memory of this process by torch's allocator: held now, and at most since the last reset."""
        if not self._on_gpu:
            return {"held": 0, "most": 0, "reserved": 0}
        found = {
            "held": torch.cuda.memory_allocated(),
            "most": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
        }
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return found

    def stage_times(self, times: int, turn_s: float | None = None, profile: str | None = None) -> None:
        """So often each version is staged from now on, in turns of the interpreter of so many seconds; the last time profiled."""
        self._times, self._profile = times, profile
        if turn_s is not None:
            turns.TURN_S = turn_s

    def sweep_for(self, seconds: float, rest: float) -> list[float]:
        """Sweep without a break; [begin, end, sweeps]."""
        assert self._engine is not None and self._engine.running is not None
        live, sweeps, began = self._engine.running.live, 0, monotonic()
        while monotonic() - began < seconds:
            live.sweep(rest=rest)
            sweeps += 1
        return [began, monotonic(), sweeps]

    # --- how

    def _time(self, owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = monotonic()
            result = plain(*arguments, **named)
            self._took.setdefault(name, []).append([began, monotonic()])
            return result

        setattr(owner, name, timed)

    def _stage_again(self) -> None:
        owner: Any = LiveWeights
        plain = owner.stage

        def stage(live: LiveWeights, request: Any) -> Any:
            began = monotonic()
            for _ in range(self._times - 1):
                plain(live, request)
            with profiled(self._profile):
                result = plain(live, request)
            self._took.setdefault("stage", []).append([began, monotonic(), float(self._times)])
            self._staged_bytes.append(result.staged_bytes)
            return result

        owner.stage = stage

    def _weigh_memory(self) -> None:
        plain = loading.memory_of_stores

        def memory_of_stores(*arguments: Any, **named: Any) -> Any:
            before = torch.cuda.memory_allocated() if self._on_gpu else 0
            memory = plain(*arguments, **named)
            self._attached = (torch.cuda.memory_allocated() if self._on_gpu else 0) - before
            return memory

        loading.memory_of_stores = memory_of_stores

    def _time_kernels(self) -> None:
        for kind in (SparsePart, DensePart):
            self._time_writes(kind)

    def _time_writes(self, kind: Any) -> None:
        plain = kind.write

        def write(part: Any, *, undo: bool) -> None:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            plain(part, undo=undo)
            end.record()
            self._writes.append((monotonic(), begin, end))

        kind.write = write


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("rest", nargs="*", help="of the reference engine, after --")
    args = parser.parse_args(arguments)
    watch = Watch(args.device)
    watch.install()
    answer_in_thread(args.orders, watch.handlers())
    sys.exit(process.main([*args.rest, "--device", args.device]))


if __name__ == "__main__":
    main()
