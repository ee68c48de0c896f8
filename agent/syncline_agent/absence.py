"""Whether the node's checkpoint must go on to another version while no engine is here.

An engine that cannot load what lies on the disk never comes to say so: agent and engine would wait for each other. So the
checkpoint follows where it has other tensors than what is wanted, and, since not all that keeps an engine away can be seen
from here, whenever nobody has come for long. It only decides; the follower has it written.
"""

from __future__ import annotations

from syncline.clock import Clock
from syncline.errors import SynclineError
from syncline.wire.records import VersionManifest
from syncline_agent.nodecheckpoint import Chain, NodeCheckpoint


class Absence:
    """One node's time without an engine."""

    def __init__(self, checkpoint: NodeCheckpoint, clock: Clock, *, patience_s: float) -> None:
        self._checkpoint = checkpoint
        self._clock = clock
        self._patience_s = patience_s
        self._since: float | None = None

    def over(self) -> None:
        """An engine is here."""
        self._since = None

    def asks_for(self, chain: Chain, wanted: VersionManifest) -> bool:
        """Nobody is here: whether the disk should hold what is wanted before somebody comes."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
        if self._checkpoint.version(chain.lineage, chain.reader.keys.view) == wanted.version:
            return False
        if now - self._since < self._patience_s and self._has_tensors_of(wanted):
            return False
        self._since = now
        return True

    def _has_tensors_of(self, wanted: VersionManifest) -> bool:
        try:
            return self._checkpoint.contents(self._checkpoint.path).table.ref() == wanted.tensors
        except SynclineError:
            return True  # somebody writes there, or it is damaged: others see to that
