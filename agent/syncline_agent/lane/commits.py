"""The agent's memory of commits, for whoever must say which version a token came from.

An engine's gate counts what every request has put out when it stands still for a write; the arm's server hands that on
before any token of the new version may leave the engine. So a reader that has seen such a token finds its commit here.
Kept in this process alone, and bounded: another agent process has another log, with another name.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from syncline_agent.engine import Crossing

MOST_COMMITS = 1024
MOST_BYTES = 64 << 20
"""Of request ids in all commits that are kept."""
_OF_AN_ID = 128
"""Bytes beside its characters."""


@dataclass(frozen=True, slots=True)
class Noted:
    """One commit and its place in the log."""

    seq: int
    """From 1, without gaps."""
    crossing: Crossing


@dataclass(frozen=True, slots=True)
class Page:
    """What the log holds after some place."""

    log: str
    first: int
    """The oldest commit that is kept; `last + 1` while there is none."""
    last: int
    """The newest; 0 while there was none."""
    commits: Sequence[Noted]


class CommitLog:
    """Commits in order; written by the arm's thread, read by others."""

    def __init__(self, name: str, *, most_commits: int = MOST_COMMITS, most_bytes: int = MOST_BYTES) -> None:
        """`name` must differ from that of every other log of this node; the newest commit is kept whatever its size."""
        self.name = name
        self._most = most_commits
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: deque[Noted] = deque()
        self._bytes = 0
        self._last = 0
        self._listeners: set[Callable[[], None]] = set()

    def note(self, crossing: Crossing) -> None:
        """A commit after which tokens of another version may leave; the oldest make room."""
        with self._lock:
            self._last += 1
            self._kept.append(Noted(self._last, crossing))
            self._bytes += _bytes_of(crossing)
            while len(self._kept) > 1 and (len(self._kept) > self._most or self._bytes > self._most_bytes):
                self._bytes -= _bytes_of(self._kept.popleft().crossing)
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    def since(self, after: int) -> Page:
        """Commits with a higher number than `after`, oldest first, of those that are kept."""
        with self._lock:
            commits = [noted for noted in self._kept if noted.seq > after]
            return Page(self.name, self._last - len(self._kept) + 1, self._last, commits)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every commit, in the arm's thread; returns what ends that."""
        with self._lock:
            self._listeners.add(listener)
        return lambda: self._leave(listener)

    @property
    def listened(self) -> bool:
        """Whether anybody waits for the next commit."""
        with self._lock:
            return bool(self._listeners)

    def _leave(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.discard(listener)


def _bytes_of(crossing: Crossing) -> int:
    """What its ids take, about."""
    return sum(_OF_AN_ID + len(name) for names in (crossing.spans or (), crossing.ended or ()) for name in names)
