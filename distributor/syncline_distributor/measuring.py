"""What a publisher tells of itself: the publish metrics of one view, and one log event a version."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from syncline.metrics import Metrics
from syncline.wire.records import VersionManifest

log = structlog.get_logger()


class PublishMeasures:
    """Metrics of one view. Counts are of this writer, gauges of the newest version."""

    def __init__(self, metrics: Metrics, run: str, view: str) -> None:
        self._metrics = metrics
        self._names = (run, view)
        self._log = log.bind(run=run, view=view)
        self._said_bare = False

    def opened(self) -> None:
        """There is a writer, and nothing stopped it yet."""
        self._metrics.fenced.labels(*self._names).set(0)

    def fenced(self) -> None:
        self._metrics.fenced.labels(*self._names).set(1)

    def bare(self) -> None:
        """Weights come without their configuration; said once."""
        if not self._said_bare:
            self._log.warning(
                "no files beside the weights: no engine can start from the anchors of this run; "
                "hand config.json and the tokenizer to Publisher(files=...)",
                phase="publish",
            )
        self._said_bare = True

    def head(self, version: int) -> None:
        self._metrics.head_version.labels(*self._names).set(version)

    def published(self, manifest: VersionManifest, seconds: Mapping[str, float]) -> None:
        """A version was committed by this writer."""
        m, names, s = self._metrics, self._names, manifest.statistics
        self.head(manifest.version)
        m.published.labels(*names).inc()
        m.full_bytes.labels(*names).set(s.full_bytes)
        m.nonfinite.labels(*names).inc(s.nonfinite)
        m.payload_bytes.labels(*names).inc(s.payload_bytes)
        if manifest.base is not None:
            m.changed_ratio.labels(*names).set(s.changed_units / s.units if s.units else 0)
            if s.changed_units:
                m.bits_per_change.labels(*names).set(8 * s.payload_bytes / s.changed_units)
        for codec, changed in s.codecs.items():
            m.codec_changes.labels(*names, codec).inc(changed)
        for phase, spent in seconds.items():
            m.publish_seconds.labels(*names, phase).observe(spent)
        self._log.info(
            "published",
            version=manifest.version,
            step=manifest.step,
            changed=s.changed_units,
            bytes=s.payload_bytes if manifest.anchor is None else manifest.anchor.size,
            seconds=round(sum(seconds.values()), 3),
            phase="publish",
        )
