"""Frames in order over an executor: compiled loops, zstd and NumPy release the GIL, so threads are enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(executor: Executor | None, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`map` over the executor, or in this thread without one."""
    return map(work, items) if executor is None else executor.map(work, items)
