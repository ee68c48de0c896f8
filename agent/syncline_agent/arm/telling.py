"""What the witness of commits must hear besides them: that nobody knows any more what an engine serves, and what it serves since.

An engine that went away may have been another process by the time it is back, with another version, or have brought a write to its
end that its agent did not see. So whoever reads the commits must meet the gap, before the engine can answer anything out of
it. It calls no arm and decides nothing.
"""

from __future__ import annotations

import threading

from syncline_agent.arm.connected import Arm
from syncline_agent.engine import Applied, Crossing, Witness


class Telling:
    """Tells one witness of one island. Safe for several threads."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._lock = threading.RLock()
        self._gate: Arm | None = None
        """Whose tokens were told of last."""
        self._known: Applied | None = None
        """What the witness takes to be applied."""

    def commit(self, gate: Arm, crossing: Crossing) -> None:
        """A commit, or one that failed after its first write."""
        with self._lock:
            self._gate, self._known = gate, crossing.after
            self._witness(crossing)
            self._look_after(gate)

    def found(self, gate: Arm, held: Applied | None) -> None:
        """An engine says that it serves this, or nothing that is known: told where no commit did. Before anything that it
        keeps inside is let out."""
        with self._lock:
            self._gate = gate
            self._note(held)
            self._look_after(gate)

    def left(self, arm: Arm) -> None:
        """The connection of an arm is over, or about to be closed."""
        with self._lock:
            if arm is self._gate:
                self._gate = None
                self._note(None)

    def _look_after(self, gate: Arm) -> None:
        """Who left meanwhile was not told of then."""
        if gate.gone:
            self.left(gate)

    def _note(self, held: Applied | None) -> None:
        if _bits(held) != _bits(self._known):
            before, self._known = self._known, held
            self._witness(Crossing(before, held, None, None))


def _bits(held: Applied | None) -> tuple[str, str, int, str] | None:
    return None if held is None else (held.lineage, held.view, held.version, held.digest)
