"""A bounded memory of what was read last. Safe to use from several threads; remembers bytes' worth, not a number of
things."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps the values used last, as long as their sizes sum to no more than `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = Lock()
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def keep(self, key: K, value: V, size: int) -> None:
        with self._lock:
            _, old = self._kept.pop(key, (None, 0))
            self._kept[key] = (value, size)
            self._bytes += size - old
            while self._bytes > self._max_bytes and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._bytes -= dropped

    def forget(self, key: K) -> None:
        with self._lock:
            _, size = self._kept.pop(key, (None, 0))
            self._bytes -= size
