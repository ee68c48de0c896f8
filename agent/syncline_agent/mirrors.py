"""How far each source is: a mirror that stays behind its origin is seen here, and not only felt as versions that come
late.

Looks seldom, because the origin may be far away. Decides nothing: what is served is still what the nearest source has.
"""

from __future__ import annotations

from collections.abc import Sequence

from syncline.chain import ChainReader
from syncline.errors import NotFound, Retryable, SynclineError
from syncline_agent.fetch import Source
from syncline_agent.reporting import Reporter

EVERY_SECONDS = 30.0


class SourceHeads:
    """A state machine whose `tick` asks every source for its head."""

    def __init__(self, sources: Sequence[Source], reporter: Reporter) -> None:
        self._sources = sources
        self._reporter = reporter
        self._run: tuple[str, str] | None = None
        self._readers: dict[str, ChainReader] = {}

    def tick(self) -> float:
        """Look once; returns the seconds until the next call."""
        status = self._reporter.status
        if status.run is None:
            return 1.0
        if (status.run, status.view) != self._run:
            if self._run is not None:
                self._reporter.sources_at(
                    *self._run, dict.fromkeys(self._readers)
                )  # of the last run nothing is known any more
            self._run = status.run, status.view
            self._readers = {}
        self._reporter.sources_at(
            status.run, status.view, {s.name: self._head(s, status.run, status.view) for s in self._sources}
        )
        return EVERY_SECONDS

    def _head(self, source: Source, run: str, view: str) -> int | None:
        """The newest version that a source holds; 0 when it holds none, None when it does not say."""
        reader = self._readers.setdefault(source.name, ChainReader(source.store, run, view))
        try:
            head = reader.head()
        except NotFound:
            return 0
        except SynclineError as error:
            if not isinstance(error, Retryable):
                del self._readers[source.name]  # the run may have been created again there
            return None
        return 0 if head is None else head.version
