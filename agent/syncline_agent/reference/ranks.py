"""What the ranks of one engine say to each other: within a step, rows to feed, sums and columns; around it, when to load and
to serve, and what is in doubt.

The decoder and the engine know only this. How ranks of several processes are started, and what it means when one is gone,
is `spawning`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch


class Ranks(Protocol):
    """All ranks within a step, as one of them sees them. Every rank makes the same calls in the same order."""

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

    def broke(self, error: Exception) -> None:
        """What all do together failed on this rank: the next step would not meet the others where they are."""
        ...


class Others(Ranks, Protocol):
    """The other ranks, as the first one drives them."""

    def join(self) -> None:
        """Return when all are there."""
        ...

    def loading(self) -> AbstractContextManager[object]:
        """From here the others load, too; leaving it waits until they have. SourceNotReady or EngineUnavailable, naming
        the rank, when one could not."""
        ...

    def serve(self) -> None:
        """What they loaded is what is served: they may meet the agent."""
        ...

    @property
    def doubt(self) -> str | None:
        """Why what another rank holds must not be computed with, in words."""
        ...

    def stop(self) -> None:
        """End them; harmless when they ended."""
        ...


class Alone:
    """One rank without others."""

    ways = 1
    doubt = None

    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> None:
        pass

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def broke(self, error: Exception) -> None:
        pass

    def join(self) -> None:
        pass

    def loading(self) -> AbstractContextManager[object]:
        return nullcontext()

    def serve(self) -> None:
        pass

    def stop(self) -> None:
        pass


ALONE = Alone()
