"""Adam-like steps that no compressor can guess: normal FP32 masters, moved by the learning rate times normal numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2

import numpy as np
from numpy.typing import NDArray

from syncline_cli.bench.views import Tensor, View, bfloat16

Masters = Mapping[str, NDArray[np.float32]]

DEVIATION = 0.02
COLUMNS = 2048
_SAMPLE = 1 << 20


@dataclass(frozen=True, slots=True)
class AdamStep:
    """Masters before a step, and the direction of it; the learning rate says how far."""

    masters: Masters
    direction: Masters

    @classmethod
    def seeded(cls, elements: int, *, seed: int = 0) -> AdamStep:
        """Four matrices of together about `elements`, the same ones for the same seed."""
        rows = max(elements // (4 * COLUMNS), 1)
        random = np.random.default_rng(seed)

        def normal() -> NDArray[np.float32]:
            return random.standard_normal((rows, COLUMNS), np.float32)

        names = [f"model.layers.{layer}.mlp.{which}_proj.weight" for layer in range(2) for which in ("gate", "up")]
        return cls({n: normal() * np.float32(DEVIATION) for n in names}, {n: normal() for n in names})

    @property
    def elements(self) -> int:
        return sum(values.size for values in self.masters.values())

    def after(self, learning_rate: float) -> dict[str, NDArray[np.float32]]:
        """Masters after the step."""
        rate = np.float32(learning_rate)
        return {
            name: (values + rate * self.direction[name]).astype(np.float32, copy=False)
            for name, values in self.masters.items()
        }

    def views(self, learning_rate: float) -> tuple[View, View]:
        """The BF16 views before and after."""
        return bf16_view(self.masters), bf16_view(self.after(learning_rate))


def bf16_view(masters: Masters) -> View:
    """Masters as an engine serves them in BF16."""
    return View.of({name: Tensor("BF16", values.shape, bfloat16(values)) for name, values in masters.items()})


def fp32_view(masters: Masters) -> View:
    """Masters themselves."""
    return View.of(
        {n: Tensor("F32", values.shape, values.view(np.uint32).reshape(-1)) for n, values in masters.items()}
    )


def learning_rate(share: float) -> float:
    """The rate at which a step changes this share of the BF16 view.

    A value lies anywhere between two boundaries, so it crosses one with a chance of its step over their distance.
    """
    random = np.random.default_rng(1)
    weights, moves = np.abs(random.standard_normal((2, _SAMPLE)))
    spacing = np.exp2(np.floor(np.log2(np.maximum(weights * DEVIATION, 1e-30))) - 7)
    low, high = log2(1e-12), log2(1.0)
    for _ in range(40):
        middle = (low + high) / 2
        changed = np.minimum(moves * 2.0**middle / spacing, 1).mean()
        low, high = (low, middle) if changed > share else (middle, high)
    return 2.0**high
