"""Work that stops at every kill point, so that a seeded scheduler can interleave several parts in one process."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from syncline import faults

T = TypeVar("T")
Steps = Generator[str, None, T]
"""Yields the name of each kill point that it comes to; returns what the work is for."""


def reach(point: str) -> str:
    """Come to a kill point and say so to whoever drives the steps."""
    faults.reach(point)
    return point


def run_steps(steps: Steps[T]) -> T:
    """Drive steps to their end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
