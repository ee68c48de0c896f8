"""Following a trainer's checkpoints: every complete one becomes a version, in the trainer's order, whatever happens to
a single one.

`tick` does at most one thing and says when to call again; a scheduler or a thread drives it. The run is opened, and an
epoch taken, only once the source lists a checkpoint: a mistyped one must never fence a writer that is at work. What was
published is noted in the version's own labels (`source`, `fingerprint`) and in a file of the state directory, so a
restart publishes nothing twice. A step that falls is a fork: its parent is looked up in head's ancestry.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from syncline.clock import Clock
from syncline.errors import (
    Fenced,
    LayoutRefused,
    NonFiniteWeights,
    Retryable,
    SourceInvalid,
    SourceNotReady,
    TiedWeightsDiffer,
)
from syncline.metrics import Metrics
from syncline.wire.records import VersionManifest
from syncline_distributor.ancestry import ancestry, parent_for
from syncline_distributor.folder_weights import FolderWeights
from syncline_distributor.publisher import Published, Publisher
from syncline_distributor.settings import WatchSettings
from syncline_distributor.sources import CheckpointSource
from syncline_distributor.tracking import Found, Tracker, past

log = structlog.get_logger()
LABELS_READ = 256
"""Versions whose labels are read at start, from head backwards."""
NOTES_KEPT = 4096
BACKOFF_S = (1.0, 60.0)


@dataclass(frozen=True, slots=True)
class SourceState:
    """What `/status` says of the source."""

    phase: str = "starting"
    """starting, waiting, idle, publishing, backing-off, stopped."""
    waits_for: str | None = "the first look at the source"
    """What must be there before anything can be published; None while it is."""
    listable: bool = False
    """The source could be looked at, and is no checkpoint itself.

    An empty one is a trainer that has not written yet, which may itself wait for this service."""
    published: str | None = None
    """Name of the checkpoint that was published last."""
    published_count: int = 0
    """How many since the process started."""
    pending: int = 0
    waiting: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoints that are not complete, and why (at most ten)."""
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoints that were given up, and why (at most ten). A publish clears what it published, and what the source no
    longer lists."""
    refused_as: dict[str, str] = field(default_factory=dict[str, str])
    """Which error each of them met, by the name of its class."""
    newest_refused: str | None = None
    """The one that was given up last, if none was published since."""
    error: str | None = None
    """What the last publish raised, while it is being tried again."""
    error_kind: str | None = None
    """Which error that was, by the name of its class."""


class Watch:
    """One source followed into one view."""

    def __init__(
        self,
        publisher: Publisher,
        source: CheckpointSource,
        settings: WatchSettings,
        *,
        state_dir: Path,
        clock: Clock,
        metrics: Metrics,
        column_split: tuple[str, ...],
        observed: Callable[[], VersionManifest | None] = lambda: None,
    ) -> None:
        """`observed` is the newest version that anybody in this process saw in the store."""
        self._publisher = publisher
        self._source = source
        self._settings = settings
        self._tracker = Tracker(settings)
        self._notes = state_dir / "published.json"
        self._clock = clock
        self._metrics = metrics
        self._column_split = column_split
        self._names = (publisher.reader.keys.run, publisher.reader.keys.view)
        self._log = log.bind(run=self._names[0], view=self._names[1])
        self._observed = observed
        self._failures = 0
        self._waits_on: str | None = None
        self._told: dict[str, str] = {}
        """Fingerprint -> why it was given up, as it was logged."""
        self._known: dict[str, str] = {}
        self._opened = False
        self._started = False
        self.state = SourceState()
        self.last: Published | None = None

    def tick(self) -> float | None:
        """Do the next thing; seconds until the next call. Fenced passes through once; afterwards None: this writer
        stopped for good."""
        if self._publisher.fenced is not None:
            self._say(phase="stopped", error=self._publisher.fenced, error_kind=Fenced.__name__)
            return None
        try:
            head = self._observed()
            if head is not None:
                self._publisher.heed(head)
            listed = self._listed()
            if listed is None:
                return self._settings.poll_s
            if not self._started:
                self._start(listed)
            ready = self._tracker.update(self._fresh(listed))
            self._say(pending=len(ready), waiting=dict(list(self._tracker.waiting.items())[:10]))
            if ready:
                self._take(ready[0], {f.label for f in listed})
            self._failures = 0
        except Fenced as error:
            self._say(phase="stopped", error=str(error), error_kind=Fenced.__name__)
            raise
        except Retryable as error:
            return self._back_off(error)
        self._say(phase="idle", error=None, error_kind=None)
        return 0.0 if len(ready) > 1 else self._settings.poll_s

    def _listed(self) -> list[Found] | None:
        """What the source lists; None while there is nothing to start with."""
        try:
            listed = self._source.scan()
        except SourceNotReady as error:
            return self._wait("source", str(error))
        self._told = {f.fingerprint: self._told[f.fingerprint] for f in listed if f.fingerprint in self._told}
        where = self._source.where
        if self._source.itself and not self._started:
            return self._wait("above", f"{where}, the --source, is itself a checkpoint; pass the folder above it")
        if not listed and not self._started:
            return self._wait("checkpoint", f"{where} holds no checkpoint yet; waiting for one: check --source")
        self._waits_on = None
        self._say(waits_for=None, listable=True)
        return listed

    def _wait(self, on: str, what: str) -> None:
        """Said once, however many polls it takes."""
        if self._waits_on != on:
            self._log.warning("waiting", waits_for=what, phase="watch")
        self._waits_on = on
        self._say(phase="waiting", waits_for=what, listable=on == "checkpoint")

    def _start(self, listed: list[Found]) -> None:
        """Open the publisher and learn what earlier processes published."""
        if not self._opened:  # once: what fails below is tried again, and must not take another epoch each time
            self._publisher.open()
            self._opened = True
        self._known = _read_notes(self._notes)
        head = self._publisher.head
        if head is not None:
            for _, manifest in zip(range(LABELS_READ), ancestry(self._publisher.reader, head), strict=False):
                if "fingerprint" in manifest.labels:
                    self._known[manifest.labels["fingerprint"]] = manifest.labels.get("source", "")
            for found in listed:
                if past(found, head_step=head.step, head_created=head.created_ms / 1000, known=self._known):
                    self._tracker.done.add(found.fingerprint)
        self._tracker.done.update(self._known)
        self._started = True

    def _fresh(self, listed: list[Found]) -> list[Found]:
        return [f for f in listed if f.fingerprint not in self._tracker.done]

    def _take(self, found: Found, listed: set[str]) -> None:
        """Publish one checkpoint, or give it up by name."""
        self._say(phase="publishing")
        step = found.step
        labels = {"source": found.label[:256], "fingerprint": found.fingerprint}
        try:
            folder = self._source.fetch(found)
            with FolderWeights(folder, column_split=self._column_split) as weights:
                parent = parent_for(self._publisher.reader, self._publisher.head, step)
                if parent is not None:
                    self._log.info("the trainer went back", step=step, parent=parent, phase="watch")
                self.last = self._publisher.publish(weights, step=step, parent=parent, labels=labels)
        except (SourceNotReady, SourceInvalid, NonFiniteWeights, LayoutRefused, TiedWeightsDiffer) as error:
            self._give_up(found, error)
            return
        finally:
            self._source.release(found)
        self._done(found)
        standing = listed - {found.label}
        refused = {name: why for name, why in self.state.refused.items() if name in standing}
        kinds = {name: kind for name, kind in self.state.refused_as.items() if name in standing}
        count = self.state.published_count + 1
        self._say(published=found.label, published_count=count, refused=refused, refused_as=kinds, newest_refused=None)

    def _give_up(self, found: Found, error: Exception) -> None:
        """Skip this checkpoint. One that was only not ready comes again when its files change or rest; it is told of
        once."""
        why = str(error)
        if self._told.get(found.fingerprint) != why:
            self._told[found.fingerprint] = why
            self._metrics.source_errors.labels(*self._names, type(error).__name__).inc()
            say = self._log.warning if isinstance(error, SourceNotReady) else self._log.error
            say("checkpoint skipped", source=found.label, error=why, phase="watch")
        others = [name for name in self.state.refused if name != found.label][-9:]
        refused = {name: self.state.refused[name] for name in others} | {found.label: why}
        kinds = {name: self.state.refused_as[name] for name in others} | {found.label: type(error).__name__}
        self._say(refused=refused, refused_as=kinds, newest_refused=found.label)
        if isinstance(error, SourceNotReady):
            self._tracker.postpone(found)
        else:
            self._tracker.done.add(found.fingerprint)

    def _done(self, found: Found) -> None:
        self._tracker.done.add(found.fingerprint)
        self._known[found.fingerprint] = found.label
        kept = dict(list(self._known.items())[-NOTES_KEPT:])
        draft = self._notes.with_suffix(".tmp")
        draft.write_text(json.dumps(kept))
        draft.replace(self._notes)

    def _back_off(self, error: Retryable) -> float:
        self._failures += 1
        wait = min(BACKOFF_S[1], BACKOFF_S[0] * 2 ** min(self._failures - 1, 6))
        self._log.warning("trying again", error=str(error), seconds=wait, phase="watch")
        self._say(phase="backing-off", error=str(error), error_kind=type(error).__name__)
        return wait

    def _say(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)


def _read_notes(path: Path) -> dict[str, str]:
    try:
        notes: Any = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}  # lost or torn: the labels of the versions say the same
    return {str(k): str(v) for k, v in notes.items()} if isinstance(notes, dict) else {}
