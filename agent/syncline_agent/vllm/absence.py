"""Around vLLM's own functions by which a worker's weights go out of memory, come back, or become others.

Each takes the original and returns what stands in its place. A worker or core that is not armed does what it always did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Original = Callable[..., Any]

SLEEPS = "the engine sleeps, and its weights are not in memory"
LOADS = "the engine loads other weights"


def around_sleep(original: Original) -> Original:
    """Of a worker: the arm stands back before the weights go. Level 1 keeps them, a higher one does not."""

    def sleep(self: Any, level: int = 1, *arguments: Any, **named: Any) -> Any:
        rank = _rank_of(self)
        if rank is not None:
            rank.fall_asleep(SLEEPS, lost=level > 1)
        return original(self, level, *arguments, **named)

    return sleep


def around_wake_up(original: Original) -> Original:
    """Of a worker: when its weights are back, they are looked at."""

    def wake_up(self: Any, tags: list[str] | None = None, *arguments: Any, **named: Any) -> Any:
        result = original(self, tags, *arguments, **named)
        rank = _rank_of(self)
        if rank is not None and (tags is None or "weights" in tags):
            rank.wake()
        return result

    return wake_up


def around_reload(original: Original) -> Original:
    """Of a worker: nobody reads while it loads, and then what it holds is looked at."""

    def reload_weights(self: Any, *arguments: Any, **named: Any) -> Any:
        rank = _rank_of(self)
        if rank is None:
            return original(self, *arguments, **named)
        rank.fall_asleep(LOADS, lost=False)
        try:
            return original(self, *arguments, **named)
        finally:
            rank.wake()

    return reload_weights


def around_change(original: Original) -> Original:
    """Of the engine core: what may have changed the weights of workers. None of them serves when one is in doubt."""

    def change(self: Any, *arguments: Any, **named: Any) -> Any:
        result = original(self, *arguments, **named)
        side = getattr(self, "syncline", None)
        if side is not None:
            side.look_at_ranks()
        return result

    return change


def _rank_of(worker: Any) -> Any:
    return getattr(worker, "syncline", None)
