"""Faults on purpose: a store that is down, slow, full, forbidden, forgetful or lying, by a script or by a seeded draw.

For tests and simulations. What it injects is what real stores were seen to do; the call itself is carried out or not
exactly as the fault says, so a lost reply leaves the object written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

from typing_extensions import Buffer

from syncline.clock import Clock
from syncline.errors import StoreDenied, StoreUnavailable
from syncline.store.base import Fetched, ObjectInfo, WeightStore
from syncline.store.buffers import writable_view

T = TypeVar("T")
READS = frozenset({"get", "get_range_into"})
WRITES = frozenset({"put_if_absent", "compare_and_put", "put", "put_large"})


class FaultKind(StrEnum):
    """What goes wrong."""

    UNAVAILABLE = "unavailable"  # 503, a timeout, no connection: the call is not carried out
    DENIED = "denied"  # 403: not carried out
    FULL = "full"  # a write without room: not carried out
    LOST_REPLY = "lost_reply"  # carried out, and the answer is lost
    DELAY = "delay"  # carried out, `seconds` later
    TRUNCATED = "truncated"  # a read that silently gives only half
    FLIPPED = "flipped"  # a read with one bit wrong


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong with one call."""

    kind: FaultKind
    seconds: float = 0.0


class FaultPlan(Protocol):
    """Decides what goes wrong; called once a store call, perhaps from several threads."""

    def draw(self, operation: str, key: str) -> Fault | None: ...


class ScriptedFaults:
    """Faults for named calls, each used once, in the order given."""

    def __init__(self, script: Sequence[tuple[str, str, Fault]]) -> None:
        """Entries are (operation, a part of the key, fault)."""
        self._script = list(script)
        self._lock = Lock()

    def draw(self, operation: str, key: str) -> Fault | None:
        with self._lock:
            for index, (wanted, part, fault) in enumerate(self._script):
                if wanted == operation and part in key:
                    del self._script[index]
                    return fault
        return None

    @property
    def left(self) -> int:
        """Faults that no call has met yet."""
        return len(self._script)


class RandomFaults:
    """Each call meets each kind with its own chance; the same seed and the same calls meet the same faults."""

    def __init__(self, rng: random.Random, chances: Mapping[FaultKind, float], *, delay_s: float = 1.0) -> None:
        self._rng = rng
        self._chances = dict(chances)
        self._delay_s = delay_s
        self._lock = Lock()

    def draw(self, operation: str, key: str) -> Fault | None:
        with self._lock:
            point = self._rng.random()
            seconds = self._rng.uniform(0, self._delay_s)
        for kind, chance in self._chances.items():
            if point < chance:
                return Fault(kind, seconds) if _can_meet(operation, kind) else None
            point -= chance
        return None


class FaultyStore:
    """Another store, with faults."""

    def __init__(self, inner: WeightStore, plan: FaultPlan, *, clock: Clock, rng: random.Random) -> None:
        self._inner = inner
        self._plan = plan
        self._clock = clock
        self._rng = rng

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
        fault = self._plan.draw("get", key)
        found = self._around(fault, key, lambda: self._inner.get(key, max_bytes=max_bytes, if_none_match=if_none_match))
        if fault is None or found is None:
            return found
        data = bytearray(found.data)
        if fault.kind is FaultKind.TRUNCATED:
            del data[len(data) // 2 :]
        elif fault.kind is FaultKind.FLIPPED:
            self._flip(data)
        return Fetched(bytes(data), found.etag, found.modified)

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        fault = self._plan.draw("get_range_into", key)
        view = writable_view(buffer)
        self._around(fault, key, lambda: self._inner.get_range_into(key, offset, view))
        if fault is not None and fault.kind is FaultKind.TRUNCATED:
            view[view.nbytes // 2 :] = bytes(view.nbytes - view.nbytes // 2)
        elif fault is not None and fault.kind is FaultKind.FLIPPED:
            self._flip(view)

    def put_if_absent(self, key: str, data: Buffer) -> str:
        return self._draw_around("put_if_absent", key, lambda: self._inner.put_if_absent(key, data))

    def compare_and_put(self, key: str, data: Buffer, *, etag: str | None) -> str:
        return self._draw_around("compare_and_put", key, lambda: self._inner.compare_and_put(key, data, etag=etag))

    def put(self, key: str, data: Buffer) -> str:
        return self._draw_around("put", key, lambda: self._inner.put(key, data))

    def put_large(self, key: str, source: Path | Buffer) -> str:
        return self._draw_around("put_large", key, lambda: self._inner.put_large(key, source))

    def head(self, key: str) -> ObjectInfo:
        return self._draw_around("head", key, lambda: self._inner.head(key))

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        """A listing meets its fault before its first object, or, with a lost reply, after its first."""
        fault = self._plan.draw("list_after", prefix)
        if fault is not None and fault.kind is FaultKind.LOST_REPLY:
            yield from self._inner.list_after(prefix, after=after, limit=1 if limit is None else min(1, limit))
            raise _lost(prefix, self.url)
        yield from self._around(fault, prefix, lambda: self._inner.list_after(prefix, after=after, limit=limit))

    def delete(self, key: str) -> None:
        self._draw_around("delete", key, lambda: self._inner.delete(key))

    def _draw_around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        return self._around(self._plan.draw(operation, key), key, call)

    def _around(self, fault: Fault | None, key: str, call: Callable[[], T]) -> T:
        if fault is None:
            return call()
        if fault.seconds:
            self._clock.sleep(fault.seconds)
        if fault.kind is FaultKind.UNAVAILABLE:
            raise StoreUnavailable(f"{key} in {self.url}: the store answered 503 SlowDown; try again later")
        if fault.kind is FaultKind.DENIED:
            raise StoreDenied(f"{key} in {self.url}: the store answered 403 AccessDenied; check the key pair")
        if fault.kind is FaultKind.FULL:
            raise StoreUnavailable(
                f"{key} in {self.url}: the disk is full; nothing was changed, free space or grow the volume"
            )
        result = call()
        if fault.kind is FaultKind.LOST_REPLY:
            raise _lost(key, self.url)
        return result

    def _flip(self, data: bytearray | memoryview) -> None:
        if len(data):
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)


def _can_meet(operation: str, kind: FaultKind) -> bool:
    if kind is FaultKind.FULL:
        return operation in WRITES
    if kind in (FaultKind.TRUNCATED, FaultKind.FLIPPED):
        return operation in READS
    return True


def _lost(key: str, url: str) -> StoreUnavailable:
    return StoreUnavailable(f"{key} in {url}: the connection broke before the answer came; try again")
