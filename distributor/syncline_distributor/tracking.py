"""Which checkpoints are ready to be published: pure rules over what a source lists from poll to poll.

A checkpoint is known by its name and the fingerprint of its files (names, sizes, times or etags); written again under
the same name it is another one. It is ready once it is complete, and never twice. Order is by the trainer's step, then
by time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from blake3 import blake3

from syncline_distributor.settings import Completion, WatchSettings

STEP = re.compile(r"(?:^|[-_.])(?:checkpoint|ckpt|global[-_]?step|step|iter(?:ation)?)[-_=]?(\d{1,15})$", re.IGNORECASE)
TEMPORARY = re.compile(r"^[.]|^tmp|[.](?:tmp|temp|incomplete|partial|old)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file of a checkpoint as listed."""

    name: str
    size: int
    stamp: str
    """Changes when the content does: modification time, or etag."""


@dataclass(frozen=True, slots=True)
class Found:
    """One folder that may be a checkpoint."""

    name: str
    step: int | None
    files: tuple[FoundFile, ...]
    modified: float
    """Newest modification time of its files."""
    missing: str | None = None
    """Why its weights cannot be whole: no weights, an index that names shards that are not there."""

    @property
    def fingerprint(self) -> str:
        """32 hex digits over names, sizes and stamps."""
        text = "\n".join(f"{f.name}\0{f.size}\0{f.stamp}" for f in sorted(self.files, key=lambda f: f.name))
        # Names on a disk are bytes; those that are no UTF-8 come as half surrogates.
        return blake3(f"{self.name}\n{text}".encode("utf-8", "surrogateescape")).hexdigest(length=16)

    @property
    def label(self) -> str:
        """The name as any text may hold it."""
        return self.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")

    def has(self, file: str) -> bool:
        return any(f.name == file for f in self.files)


def step_of(name: str) -> int | None:
    """The trainer's step in a folder name: `checkpoint-123`, `step_000123`, `global_step123`, `iter-5`."""
    match = STEP.search(name)
    return int(match[1]) if match is not None else None


def is_temporary(name: str) -> bool:
    """Whether a trainer uses such a name for what it has not finished."""
    return TEMPORARY.search(name) is not None


def order(found: Found) -> tuple[int, float, str]:
    """By step, then time: a checkpoint without a step comes after all that have one."""
    return (found.step if found.step is not None else 1 << 60, found.modified, found.name)


@dataclass(slots=True)
class Tracker:
    """Remembers from poll to poll what was seen, how often unchanged, and what is done with."""

    settings: WatchSettings
    done: set[str] = field(default_factory=set[str])
    """Fingerprints published, or refused for good."""
    _steady: dict[str, int] = field(default_factory=dict[str, int], init=False)
    """Fingerprint -> polls in a row that saw it."""
    _postponed: dict[str, int] = field(default_factory=dict[str, int], init=False)
    """Fingerprint -> polls during which it is passed over."""
    waiting: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """Name -> why it is not ready, of the last poll."""

    def update(self, listed: Iterable[Found]) -> list[Found]:
        """One poll's listing -> what to publish now, in order."""
        steady: dict[str, int] = {}
        ready: list[Found] = []
        self.waiting = {}
        self._postponed = {mark: left - 1 for mark, left in self._postponed.items() if left > 1}
        for found in listed:
            mark = found.fingerprint
            if mark in self.done:
                continue
            steady[mark] = self._steady.get(mark, 0) + 1
            reason = self._incomplete(found, steady[mark])
            if reason is None:
                ready.append(found)
            else:
                self.waiting[found.label] = reason
        self._steady = steady
        ready.sort(key=order)
        if self.settings.latest_only and ready:
            newest = max(ready, key=lambda f: (f.modified, order(f)))
            self.done.update(f.fingerprint for f in ready if f is not newest)
            ready = [newest]
        return ready

    def postpone(self, found: Found) -> None:
        """It looked complete and was not, or vanished: let it rest as long as a new one, so that the next one is taken
        first."""
        self._postponed[found.fingerprint] = self.settings.stable_polls + 1

    def _incomplete(self, found: Found, polls: int) -> str | None:
        if found.missing is not None:
            return found.missing
        if found.fingerprint in self._postponed:
            return "it was not whole when it was read; looked at again soon"
        match self.settings.completion:
            case Completion.MARKER:
                return None if found.has(self.settings.marker) else f"{self.settings.marker} is not there yet"
            case Completion.RENAME:
                return None
            case Completion.STABLE:
                wanted = self.settings.stable_polls
                return None if polls > wanted else f"unchanged for {polls - 1} of {wanted} polls"


def past(found: Found, *, head_step: int | None, head_created: float, known: Mapping[str, str]) -> bool:
    """Whether a checkpoint met at start was dealt with by an earlier process whose notes are lost.

    Its step is not beyond head's and it was there before head was written. A trainer that goes back writes later than
    that.
    """
    if found.fingerprint in known:
        return True
    return (
        head_step is not None and found.step is not None and found.step <= head_step and found.modified <= head_created
    )
