"""Bits a changed element of every codec on the sixteen GRPO steps of grpo-a, all chunk bytes counted; and what each codec costs in time.

The peers' figures are those of their formats on step 16 of the same data, without any framing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import thread_time

import numpy as np
from bench.results import save

from syncline.codecs.base import Codec, FrameChange
from syncline.codecs.registry import CODECS
from syncline.delta import CodecChoice, DeltaEncoder
from syncline.testing import grpo_a
from syncline.wire.tensors import TensorSpec, TensorTable, split_axis
from syncline.wire.tiling import Tiling

PEERS = {
    "int32 index + BF16 value (TRL)": 48.0,
    "XOR mask + LZ4": 44.2,
    "gap16 + value, zstd-1 (grail, PULSE)": 22.4,
    "XOR mask + zstd-1 (Stitch, miles, slime)": 20.7,
}
DENSITIES = (0.001, 0.01, 0.1)


def table_of(weights: dict[str, grpo_a.Bits]) -> TensorTable:
    """Sorted tensors with the default split axes."""
    shapes = {name: list(weights[name].shape) for name in sorted(weights)}
    return TensorTable(
        tensors=[TensorSpec(name=n, dtype="BF16", shape=s, axis=split_axis(n, s)) for n, s in shapes.items()]
    )


def bits_a_change(codec: str | None, old: dict[str, grpo_a.Bits], new: dict[str, grpo_a.Bits]) -> float:
    """Of one step under one codec, or under the publisher's own choice."""
    encoder = DeltaEncoder(
        table_of(old), Tiling(), nonce=lambda: bytes(16), sink=lambda _, __: None, choice=CodecChoice(forced=codec)
    )
    for index, name in enumerate(sorted(old)):
        encoder.add(index, old[name].reshape(-1), new[name].reshape(-1))
    statistics = encoder.finish().statistics
    return 8 * statistics.payload_bytes / statistics.changed_units


def adam_like(share: float, units: int = 1 << 20) -> FrameChange:
    """A frame of BF16 weights of which about `share` move by one unit in the last place."""
    random = np.random.default_rng(0)
    old = (random.standard_normal(units, np.float32) * np.float32(0.02)).view(np.uint32) >> np.uint32(16)
    moved = (random.random(units) < share).astype(np.uint32)
    return FrameChange.between(old.astype(np.uint16), (old + moved).astype(np.uint16))


def nanoseconds_a_unit(codec: Codec, change: FrameChange, old: np.ndarray) -> float:
    """Encode plus decode to changed positions, in one core's own time, a unit of the frame."""
    changed = change.positions.size
    payload = memoryview(codec.encode(change))

    def decode() -> None:
        if codec.place(payload, units=change.units, dtype=old.dtype, changed=changed) is None:
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


def main() -> None:
    """Print both tables."""
    steps = list(pairwise([grpo_a.base(), *grpo_a.steps()]))
    lines = [f"{'bits a change':14}{'mean of 16':>12}{'step 16':>9}"]
    samples: dict[str, list[float]] = {}
    for name in [c.name for c in CODECS.values()] + ["chosen"]:
        bits = [bits_a_change(None if name == "chosen" else name, old, new) for old, new in steps]
        samples[name] = bits
        lines.append(f"{name:14}{np.mean(bits):12.2f}{bits[-1]:9.2f}")
    lines += [f"{'peer':14}{'':12}{figure:9.1f}  {what}" for what, figure in PEERS.items()]
    lines += ["", "ns a unit, encode + decode, one core"]
    lines.append(
        f"{'changed':14}" + "".join(f"{share:>9.1%}" for share in DENSITIES) + f"{'a unit':>9}{'a change':>10}"
    )
    frames = [adam_like(share) for share in DENSITIES]
    for codec in CODECS.values():
        costs = []
        for change in frames:
            old = change.whole().copy()
            old[change.positions] = change.before
            costs.append(nanoseconds_a_unit(codec, change, old))
        shares = [change.positions.size / change.units for change in frames]
        slope, fixed = np.polyfit(shares, costs, 1)
        lines.append(f"{codec.name:14}" + "".join(f"{c:9.2f}" for c in costs) + f"{fixed:9.2f}{slope:10.1f}")
        samples[f"{codec.name}, ns a unit"] = costs
    save("codecs", "\n".join(lines), samples)
