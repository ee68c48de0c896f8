"""What the ranks of one engine say to each other within a step: which rows to feed, and sums and columns between them.

The decoder computes on whatever it is given here; how ranks are started, found and missed is `spawning`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class Ranks(Protocol):
    """All ranks as one of them sees them. Every rank makes the same calls in the same order."""

    @property
    def ways(self) -> int: ...

    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> None:
        """The first rank: let the others feed the same rows. On others nothing happens."""
        ...

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Over all ranks; `x` may be overwritten."""
        ...

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        """The last dimensions of all ranks behind each other."""
        ...


class Alone:
    """A rank without others."""

    ways = 1

    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> None:
        pass

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        return x


ALONE = Alone()
