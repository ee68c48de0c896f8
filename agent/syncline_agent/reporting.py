"""The follower's voice: the current `Status`, its metrics, its counters, and a line in the log whenever what keeps the
node from its target changes. Decides nothing and reads nothing."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.logs import logger
from syncline.metrics import Metrics
from syncline_agent.once import without_counters
from syncline_agent.policy import Target
from syncline_agent.status import ApplyPath, Identity, LastSync, Phase, Status


def aimed(target: Target | None, error: str | None) -> dict[str, Any]:
    """What the status says of the target file."""
    if target is None:
        return {"target_error": error}
    return {
        "run": target.run,
        "view": target.view,
        "generation": target.generation,
        "target_error": error,
        "mode": target.mode,
        "pinned": target.pinned,
        "suspended": target.suspend,
        "policy": target.policy,
    }


class Reporter:
    """Other threads read `status`; a new one replaces it whole."""

    def __init__(
        self,
        identity: Identity,
        metrics: Metrics,
        log: FilteringBoundLogger | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Without a clock ages stand still between two `say`."""
        self._metrics = metrics
        self._clock = clock
        self._log = log or logger("agent")
        self._said: set[tuple[object, ...]] = set()
        """What holds the node up, as far as the log knows of it."""
        self._status = Status(identity)
        self._lock = threading.Lock()
        self._bytes: dict[str, int] = {}
        self._retries: dict[str, int] = {}

    @property
    def status(self) -> Status:
        return self._status

    def read(self) -> Status:
        """Of this moment, for parts that only look: the follower says its own when a phase ends."""
        return self._status if self._clock is None else self._status.aged(self._clock.monotonic())

    def say(self, **fields: Any) -> None:
        """Replace fields of the status."""
        with self._lock:
            before = self._status
            now = replace(before, bytes_by_source=dict(self._bytes), retries=dict(self._retries), **fields)
            if (before.run, before.view) != (now.run, now.view):
                now = replace(now, source_heads={})
                self._forget(before)
            if (before.run, before.view, before.lineage) != (now.run, now.view, now.lineage):
                now = replace(now, newest=None, newest_at=None)
            self._status = now
            self._tell(before, now)
        self._gauge(now)

    def _tell(self, before: Status, now: Status) -> None:
        if now.target_error != before.target_error:
            if now.target_error is not None:
                self._log.warning("target file not in force", error=now.target_error)
            else:
                self._log.info("target file in force", run=now.run, view=now.view, generation=now.generation)
        if now.error is not None and now.error != now.target_error:
            self._hold_up(before, now, now.error)
        elif now.error is None and now.failures == 0 and self._said:
            # Between two tries there is no error either, but it is over only when one has succeeded.
            self._said.clear()
            self._log.info("went on", run=now.run, phase=now.phase.value)

    def _hold_up(self, before: Status, now: Status, error: str) -> None:
        """A failure is said once for each version that it keeps away, what is only waited for once."""
        version = None if now.phase in (Phase.IDLE, Phase.SUSPENDED) else now.target
        said = version, now.pinned, without_counters(error)
        if now.phase is before.phase is Phase.IDLE:
            self._said &= {said}  # it rests, so what failed before does not any more
        self._said = {key for key in self._said if key[0] in (None, version or now.target)}
        if said not in self._said:
            self._said.add(said)
            self._log.warning("held up", run=now.run, phase=before.phase.value, error=error, failures=now.failures)

    def sources_at(self, run: str, view: str, heads: Mapping[str, int | None]) -> None:
        """The newest version that each source holds, None for one that does not say."""
        for source, head in heads.items():
            labels = run, view, self._status.identity.pool, source
            if head is None:
                self._metrics.source_head.remove(*labels)
            else:
                self._metrics.source_head.labels(*labels).set(head)
        self.say(source_heads=heads)

    def fetched(self, source: str, size: int) -> None:
        """Bytes came from a source."""
        with self._lock:
            self._bytes[source] = self._bytes.get(source, 0) + size
        self._metrics.fetched_bytes.labels(*self._pool, source).inc(size)

    def retried(self, reason: str) -> None:
        """Something is tried again."""
        with self._lock:
            self._retries[reason] = self._retries.get(reason, 0) + 1
        self._metrics.follow_retries.labels(*self._pool, reason).inc()

    def refused(self, reason: str) -> None:
        """A version is not taken."""
        self._metrics.refusals.labels(*self._pool, reason).inc()

    def mismatched(self, phase: Phase) -> None:
        """A digest did not match."""
        self._metrics.digest_failures.labels(*self._pool, phase.value.lower()).inc()

    def took(self, phase: str, seconds: float) -> None:
        self._metrics.phase_seconds.labels(*self._pool, phase).observe(seconds)

    def staged(self, size: int) -> None:
        self._metrics.staged_bytes.labels(*self._pool, self._status.identity.node).set(size)

    def committed(self, last: LastSync, path: ApplyPath) -> None:
        """A version is in the engine."""
        self._metrics.pause_seconds.labels(*self._pool).observe(last.pause_seconds)
        self.took("pause", last.pause_seconds)
        if last.behind_seconds is not None:
            self._metrics.sync_seconds.labels(*self._pool).observe(last.behind_seconds)
        self._metrics.applied_versions.labels(*self._pool, path.value).inc()
        self.say(last_sync=last, apply_path=path)

    @property
    def _pool(self) -> tuple[str, str, str]:
        status = self._status
        return status.run or "", status.view, status.identity.pool

    def _forget(self, status: Status) -> None:
        """Another run or view is followed: of the last one nothing may stand as if it were so now."""
        if status.run is None:
            return
        self._forget_applied(status)
        self._metrics.staged_bytes.remove(*_node(status))
        if status.head is not None:
            self._metrics.head_version.remove(status.run, status.view)

    def _forget_applied(self, status: Status) -> None:
        metrics = self._metrics
        for gauge in (metrics.applied_version, metrics.lag_versions, metrics.lag_seconds, metrics.proven):
            gauge.remove(*_node(status))

    def _gauge(self, status: Status) -> None:
        if status.run is None:
            return
        if status.foreign:
            self._forget_applied(status)  # under this run's name they would be a lie
        else:
            node, applied = _node(status), status.applied
            self._metrics.applied_version.labels(*node).set(applied.version if applied is not None else 0)
            self._metrics.lag_versions.labels(*node).set(status.lag_versions)
            # Read when it is asked for: a phase may take minutes.
            self._metrics.lag_seconds.labels(*node).set_function(lambda: self.read().lag_seconds)
            self._metrics.proven.labels(*node).set(1 if status.in_service else 0)
        if status.head is not None:
            self._metrics.head_version.labels(status.run, status.view).set(status.head)


def _node(status: Status) -> tuple[str, str, str, str]:
    return status.run or "", status.view, status.identity.pool, status.identity.node
