"""Each codec's time a unit of a frame and a changed unit: what the constants of the codecs come from."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from time import thread_time

import numpy as np
from bench.results import save

from syncline.codecs.base import Codec, FrameChange
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec, lane_shift
from syncline.codecs.context.counts import Counts, count_symbols, count_units
from syncline.codecs.context.fitting import fit
from syncline.codecs.registry import CODECS
from syncline_cli.bench.synthetic import AdamStep, learning_rate
from syncline_cli.bench.views import Units, flattened

DENSITIES = (0.001, 0.01, 0.1)
FRAME = 1 << 20


def context_codec(change: FrameChange, old: Units) -> Codec:
    """`context` with a table that fits the frame."""
    alphabet, counts = ALPHABETS["BF16"], Counts.none()
    count_symbols(alphabet, change.before, change.after, counts.symbols)
    counts.units[:] += count_units(alphabet, old)
    return ContextCodec(fit(counts, alphabet, exact=True), alphabet, lane_shift(change.positions.size, change.units))


def nanoseconds_a_unit(codec: Codec, change: FrameChange, old: Units) -> float:
    """Encode plus decode to changed positions, in one core's own time, a unit of the frame."""
    changed = change.positions.size
    payload = memoryview(codec.encode(change))

    def decode() -> None:
        placed = codec.place(payload, units=change.units, dtype=old.dtype, changed=changed, base=lambda: old)
        if placed is None:
            scratch = old.copy()
            codec.decode(payload, scratch, changed=changed)
            np.count_nonzero(scratch != old)  # where a mask was applied, the changes must be looked for

    return 1e9 * (_least(lambda: codec.encode(change)) + _least(decode)) / change.units


def _least(work: Callable[[], object]) -> float:
    shortest = float("inf")
    for _ in range(7):
        start = thread_time()
        work()
        shortest = min(shortest, thread_time() - start)
    return shortest


def main(arguments: Sequence[str] = ()) -> None:
    """A line a codec: time at each density, and what a unit and a change cost."""
    argparse.ArgumentParser(prog="python -m bench times", description=__doc__).parse_args(arguments)
    samples: dict[str, list[float]] = {}
    lines = ["ns a unit of BF16, encode + decode, one core"]
    heads = "".join(f"{share:>9.1%}" for share in DENSITIES)
    lines.append(f"{'changed':14}{heads}{'a unit':>9}{'a change':>10}")
    frames: list[tuple[FrameChange, Units]] = []
    for share in DENSITIES:
        (step,) = flattened(*AdamStep.seeded(FRAME).views(learning_rate(share)))
        frames.append((FrameChange.between(step.old, step.new), step.old))
    shares = [change.positions.size / change.units for change, _ in frames]
    for name in [codec.name for codec in CODECS.values()] + ["context"]:
        plain = {codec.name: codec for codec in CODECS.values()}.get(name)
        costs = [nanoseconds_a_unit(plain or context_codec(change, old), change, old) for change, old in frames]
        slope, fixed = np.polyfit(shares, costs, 1)
        lines.append(f"{name:14}" + "".join(f"{c:9.2f}" for c in costs) + f"{fixed:9.2f}{slope:10.1f}")
        samples[name] = costs
    save("times", "\n".join(lines), samples)
