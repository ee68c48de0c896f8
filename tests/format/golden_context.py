"""The golden run of the `context` codec: tensors that move as trained weights do, by few small steps and some large ones.

`make_golden` writes it beside its own run, whose tensors are too small for lanes and too random for contexts.

    version 1   whole weights
    2           a delta in as many lanes as the format allows its frames (lane shift 10)
    3           a delta with the writer's own lanes, which are one a frame; steps beyond the alphabets are escapes
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from syncline.clock import ManualClock
from syncline.delta import CodecChoice
from syncline.store.memory import MemoryStore
from syncline.wire import dtypes
from syncline.wire.tiling import Tiling
from syncline_distributor import Bits, Publisher, PublishSettings

RUN = "context"
LANE_SHIFT = 10
TILING = Tiling(min_units=2049, max_units=4100, ways=2)
SPECS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "layers.0.down.weight": ("BF16", (64, 64)),
    "layers.1.down.weight": ("BF16", (64, 64)),  # alike, so they share a table
    "norm.weight": ("BF16", (50, 41)),  # moves unlike the others: a table of its own, and a short last piece
    "of.F16": ("F16", (4, 1025)),
    "of.F32": ("F32", (33, 64)),
    "of.F4": ("F4", (64, 128)),
    "of.F8_E4M3": ("F8_E4M3", (4096,)),
    "of.F8_E5M2": ("F8_E5M2", (2, 1500)),
    "of.F8_E8M0": ("F8_E8M0", (2048,)),
    "of.I16": ("I16", (1030,)),
    "of.U8": ("U8", (64, 40)),
}
BUSY = {"norm.weight": 6, "of.U8": 3}
"""Times as many moves: tables of coarser zones."""
EXPONENTS = {"BF16": (7, 118), "F16": (10, 8), "F32": (23, 118)}
"""Bits of the mantissa, and the least exponent."""


class Trainer:
    """Weights of a few magnitudes, and steps along the order of their bits."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(20_260_102)
        self.units = {name: self.some(dtype, shape) for name, (dtype, shape) in SPECS.items()}

    def some(self, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        width, size = dtypes.dtype(dtype).unit_bytes, dtypes.size_bytes(dtype, shape)
        if dtype not in EXPONENTS:
            return self.random.integers(0, 256, size, dtype=np.uint8).view(f"<u{width}")
        shift, least = EXPONENTS[dtype]
        drawn = self.random.integers(0, (1 << shift) * 8, size // width) + (least << shift)
        signs = self.random.integers(0, 2, size // width) << (8 * width - 1)
        return (drawn + signs).astype(f"<u{width}")

    def step(self, *, share: float, escapes: int) -> None:
        """A share of every tensor moves to a neighbour, a few units to anywhere."""
        for name, units in self.units.items():
            reach = 40 if name == "norm.weight" else 2
            moves = self.random.random(units.size) < share * BUSY.get(name, 1)
            moves[0] = True
            by = self.random.integers(1, reach + 1, units.size).astype(units.dtype)
            down = self.random.random(units.size) < 0.5
            after = np.where(moves, np.where(down, units - by, units + by), units)
            places = self.random.integers(0, units.size, escapes)
            after[places] = self.random.integers(0, 1 << 8 * units.itemsize, escapes).astype(units.dtype)
            self.units[name] = after.astype(units.dtype)

    def weights(self) -> dict[str, Bits]:
        return {name: Bits(*SPECS[name], units) for name, units in self.units.items()}


def write(store: MemoryStore, clock: ManualClock) -> dict[int, dict[str, bytes]]:
    """Publish the run; what each version must read as."""
    trainer = Trainer()
    publisher = Publisher(
        store,
        RUN,
        settings=PublishSettings(tiling=TILING, choice=CodecChoice(forced="context")),
        clock=clock,
        random=random.Random(3),
        files={"config.json": b"{}"},
    )
    weights: dict[int, dict[str, bytes]] = {}

    def publish() -> None:
        clock.advance(60)
        published = publisher.publish(trainer.weights())
        weights[published.version] = {name: units.tobytes() for name, units in sorted(trainer.units.items())}

    publish()
    with patch("syncline.delta.grouping.lane_shift", lambda *_: LANE_SHIFT):
        trainer.step(share=0.08, escapes=0)
        publish()
    trainer.step(share=0.02, escapes=3)
    publish()
    return weights
