"""How far a replica is behind, without trusting this node's wall clock: ages are by the store's clock, gaps by a
monotonic one."""

from __future__ import annotations

from dataclasses import dataclass

from syncline.clock import Clock
from syncline_agent.heartbeat import StoreTime


@dataclass(slots=True)
class Lag:
    """What is known of the oldest version that is not applied yet."""

    clock: Clock
    store_time: StoreTime
    version: int | None = None
    modified: float | None = None
    """When that version was committed, by the store's clock."""
    seen: float = 0.0
    """When this node first knew of it (monotonic)."""
    answered: float | None = None
    """When head was last read (monotonic)."""
    silent: bool = False
    """The last call to the store failed."""
    complete: float | None = None
    """Head as it was read then held nothing newer than what came to be applied (monotonic)."""

    def head_read(self, at: float | None) -> None:
        """Head was last read at `at`; what came after it is not known."""
        if at != self.answered:
            self.answered, self.silent = at, False

    def store_failed(self) -> None:
        """The store did not answer."""
        self.silent = True

    def behind(self, version: int, modified: float | None) -> None:
        """`version` is the oldest one that is not applied."""
        if version != self.version:
            self.version, self.modified, self.seen = version, modified, self.clock.monotonic()

    def caught_up(self, *, sure: bool = True) -> None:
        """Nothing that is known of is missing; `sure`: head as it was last read is what is applied."""
        self.version = None
        if sure:
            self.complete = self.answered

    def forget(self) -> None:
        """Another run or view is followed from here on."""
        self.version = self.modified = self.answered = self.complete = None
        self.silent = False

    def seconds(self) -> float:
        """Seconds behind: the age of the oldest version not applied; while the store is silent at least the silence."""
        now = self.clock.monotonic()
        behind = 0.0
        if self.version is not None:
            behind = now - self.seen
            age = self.age(self.modified)
            if age is not None:
                behind = max(behind, age)
        if self.silent and self.answered is not None:
            behind = max(behind, now - self.answered)
        return max(0.0, behind)

    def most(self) -> float | None:
        """It cannot be behind by more seconds than these, whatever was committed since head was read; None where nobody
        can tell."""
        now = self.clock.monotonic()
        by_head = None if self.complete is None else now - self.complete
        latest = self.store_time.latest()
        if self.version is None or self.modified is None or latest is None:
            return by_head  # what is missing came after head was read without it
        by_age = max(latest - self.modified, now - self.seen)
        return by_age if by_head is None else min(by_age, by_head)

    def age(self, modified: float | None) -> float | None:
        """Age of something modified then by the store's clock; None where that clock is unknown."""
        now = self.store_time.now()
        return None if now is None or modified is None else max(0.0, now - modified)
