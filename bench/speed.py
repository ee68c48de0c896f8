"""A 2 GB BF16 model, one percent of it changed: how fast a step becomes a delta, and a delta becomes live weights, a codec at a time.

The floor of a figure is one read of the weights that it must look at, by one core in the same run: old and new for publish, the live
weights for all others. The share is floor over time: which part of a core's read bandwidth the verb reaches.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import numba as nb
import numpy as np
from bench.results import save, variant
from numpy.typing import NDArray

from syncline.delta import (
    CodecChoice,
    Delta,
    DeltaEncoder,
    StagedTensor,
    digest_tensor,
    read_back,
    scatter,
    stage_tensor,
)
from syncline.wire.limits import CODEC_NAMES
from syncline.wire.tensors import TensorSpec, TensorTable, split_axis
from syncline.wire.tiling import Tiling

Bits = NDArray[np.uint16]

LAYERS = 16
TARGETS = {"context": 0.25}
TARGET = 0.2
"""Of the other codecs."""
COMPARED = ("context", "sparse")
STEP = 1.84e-7
"""Learning rate that changes one percent of normal weights of deviation 0.02."""


@dataclass(frozen=True, slots=True)
class Model:
    """Weights before and after a step."""

    table: TensorTable
    old: list[Bits]
    new: list[Bits]

    @property
    def gigabytes(self) -> float:
        return self.table.size_bytes / 1e9


def shapes(layers: int = LAYERS) -> dict[str, list[int]]:
    """A decoder's matrices: hidden 2048, feed-forward 8192, grouped key/value heads."""
    found = {"model.embed_tokens.weight": [16384, 2048]}
    for i in range(layers):
        at = f"model.layers.{i:02d}"
        found |= {f"{at}.self_attn.{n}_proj.weight": [2048, 2048] for n in "qo"}
        found |= {f"{at}.self_attn.{n}_proj.weight": [512, 2048] for n in "kv"}
        found |= {f"{at}.mlp.{n}_proj.weight": [8192, 2048] for n in ("gate", "up")}
        found |= {f"{at}.mlp.down_proj.weight": [2048, 8192], f"{at}.norm.weight": [2048]}
    return dict(sorted(found.items()))


def make_model(layers: int = LAYERS) -> Model:
    """Normal FP32 masters moved by about the learning rate either way, as Adam does, and their BF16 views."""
    entries = shapes(layers)
    table = TensorTable(
        tensors=[TensorSpec(name=n, dtype="BF16", shape=s, axis=split_axis(n, s)) for n, s in entries.items()]
    )

    def one(index: int) -> tuple[Bits, Bits]:
        random = np.random.default_rng(index)
        old, new = (np.empty(table.tensors[index].units, np.uint16) for _ in range(2))
        for at in range(0, old.size, 1 << 20):
            master = random.standard_normal(min(1 << 20, old.size - at), np.float32) * np.float32(0.02)
            moved = master + random.choice(np.array([-STEP, STEP], np.float32), master.size)
            old[at : at + master.size], new[at : at + master.size] = _bf16(master), _bf16(moved)
        return old, new

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        pairs = list(executor.map(one, range(len(table.tensors))))
    return Model(table, [old for old, _ in pairs], [new for _, new in pairs])


def _bf16(values: NDArray[np.float32]) -> Bits:
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


@nb.njit(nogil=True)
def _read(words: Any) -> Any:
    seen = np.uint64(0)
    for i in range(words.size):
        seen ^= words[i]
    return seen


def _read_all(arrays: list[Bits]) -> None:
    for array in arrays:
        _read(array.view(np.uint64))


@contextmanager
def threads(count: int) -> Iterator[Executor | None]:
    """No executor for one core, else one of `count` threads."""
    if count == 1:
        yield None
        return
    with ThreadPoolExecutor(count) as executor:
        yield executor


def best_of(times: int, work: Callable[[], Any], *, cores: int = 1) -> tuple[float, Any]:
    """Shortest of some runs: what the machine can do, not what else ran on it.

    One core is timed by its own seconds, several by the wall's.
    """
    clock = thread_time if cores == 1 else perf_counter
    shortest, result = float("inf"), None
    for _ in range(times):
        start = clock()
        result = work()
        shortest = min(shortest, clock() - start)
    return shortest, result


def encode(model: Model, executor: Executor | None, codec: str) -> list[bytes]:
    """Diff and encode the whole model."""
    chunks: list[bytes] = []
    encoder = DeltaEncoder(
        model.table,
        Tiling(),
        nonce=lambda: bytes(16),
        sink=lambda _, data: chunks.append(data),
        executor=executor,
        choice=CodecChoice(forced=codec),
    )
    for tensor, (old, new) in enumerate(zip(model.old, model.new, strict=True)):
        encoder.add(tensor, old, new)
    encoder.finish()
    return chunks


def stage(model: Model, live: list[Bits], chunks: list[bytes], executor: Executor | None) -> list[StagedTensor]:
    """Parse a delta and decode it against live weights."""
    delta = Delta.parse(model.table, Tiling(), ((f"{n}", data) for n, data in enumerate(chunks)))
    return [stage_tensor(model.table, Tiling(), t, live[t], [delta], executor=executor) for t in delta.tensors]


def measure(model: Model, codec: str, cores: int, *, repeats: int) -> tuple[str, dict[str, float]]:
    """One table: every verb with so many cores; and its figures in seconds."""
    table, tiling, reach = model.table, Tiling(), TARGETS.get(codec, TARGET)

    def write(undo: bool) -> None:
        for part in staged:
            scatter(table.tensors[part.tensor], tiling, model.old[part.tensor], part, undo=undo, executor=executor)

    def look(undo: bool) -> None:
        specs = [table.tensors[p.tensor] for p in staged]
        if not all(
            read_back(spec, tiling, model.old[p.tensor], p, undo=undo, executor=executor)
            for spec, p in zip(specs, staged, strict=True)
        ):
            raise SystemExit("the live weights do not hold what was written: no figure would mean anything")

    def sweep() -> None:
        for spec, flat in zip(table.tensors, model.old, strict=True):
            digest_tensor(spec, flat, executor=executor)

    seconds: dict[str, float] = {}
    with threads(cores) as executor:
        seconds["read"], _ = best_of(repeats, lambda: _read_all(model.old))
        seconds["encode"], chunks = best_of(repeats, lambda: encode(model, executor, codec), cores=cores)
        seconds["read"] = min(seconds["read"], best_of(repeats, lambda: _read_all(model.old))[0])
        seconds["decode"], staged = best_of(repeats, lambda: stage(model, model.old, chunks, executor), cores=cores)
        seconds["sweep"], _ = best_of(repeats, sweep, cores=cores)
        for undo in (False, True) * repeats:
            for name, work in (("scatter", write), ("read back", look)):
                taken, _ = best_of(1, partial(work, undo), cores=cores)
                seconds[name] = min(seconds.get(name, taken), taken)
        write(undo=False)
        if any(not np.array_equal(a, b) for a, b in zip(model.old, model.new, strict=True)):
            raise SystemExit("the decoded model is not the new one: no figure would mean anything")
        write(undo=True)

    read, changed, payload = seconds["read"], sum(s.changed for s in staged), sum(map(len, chunks))
    lines = [
        f"{codec}, {cores} core{'s' * (cores > 1)}: {model.gigabytes:.2f} GB, {changed / table.units:.2%} changed, "
        f"{payload / 1e6:.1f} MB of chunks, {8 * payload / changed:.2f} bits a change; one core reads {model.gigabytes / read:.1f} GB/s",
        f"{'':32}{'s':>8}{'floor s':>9}{'model GB/s':>12}{'share':>7}  target",
    ]
    for name, taken, floor, target in (
        ("publish: diff + encode", seconds["encode"], 2 * read, reach),
        ("follow: decode (stage)", seconds["decode"], read, None),
        ("follow: commit (scatter)", seconds["scatter"], None, None),
        ("follow: read back", seconds["read back"], None, None),
        ("follow: decode + commit", seconds["decode"] + seconds["scatter"], read, reach),
        ("follow: the same + read back", seconds["decode"] + seconds["scatter"] + seconds["read back"], read, reach),
        ("digest sweep", seconds["sweep"], read, None),
    ):
        share = "" if floor is None else f"{floor / taken:.2f}"
        verdict = (
            "" if target is None or floor is None else f">= {target:g} {'met' if floor / taken >= target else 'MISSED'}"
        )
        floor_text = "" if floor is None else f"{floor:.3f}"
        lines.append(
            f"{name:32}{taken:8.3f}{floor_text:>9}{model.gigabytes / taken:12.2f}{share:>7}  {verdict}".rstrip()
        )
    return "\n".join(lines), seconds


def main(arguments: Sequence[str] = ()) -> None:
    """A table for one core and one for all, of each codec. The latter is wall time, so it says how busy the machine was."""
    parser = argparse.ArgumentParser(prog="python -m bench speed", description=__doc__)
    parser.add_argument("--codec", choices=sorted(CODEC_NAMES.values()), action="append", help="once or more often")
    given = parser.parse_args(arguments)
    codecs = given.codec or COMPARED
    warm = make_model(layers=1)  # compiles
    for codec in codecs:
        stage(warm, warm.old, encode(warm, None, codec), None)
    digest_tensor(warm.table.tensors[0], warm.old[0])
    model = make_model()
    tables: list[str] = []
    samples: dict[str, dict[str, float]] = {}
    for codec in codecs:
        for cores in sorted({1, len(os.sched_getaffinity(0))}):
            table, samples[f"{codec}, {cores} cores, seconds"] = measure(model, codec, cores, repeats=3)
            tables.append(table)
    save("speed", "\n\n".join(tables), samples, unlike=variant(parser, given))
