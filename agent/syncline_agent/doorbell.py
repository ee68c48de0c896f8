"""Hears at once of a new version, where the distributor is in reach: a long poll of its `/head`, which wakes the follower; and of another
target, which whoever goes back a version waits for.

Only hints. What is served is decided from the store and the target file; a distributor that is down, lies or is another run's costs a poll
and nothing else.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from syncline_agent.policy import read_target

WAIT_SECONDS = 25.0
"""How long the distributor may hold a request: below what proxies between clusters' nodes cut."""
ANSWER_MAX_BYTES = 4096
TROUBLE_SECONDS = 5.0
LOOK_SECONDS = 0.1
"""Between two looks at the target file: some 20 microseconds each."""


class Doorbell:
    """A state machine whose `tick` is one long poll."""

    def __init__(self, url: str, known: Callable[[], int | None], ring: Callable[[], None]) -> None:
        """`known` is the newest version known here."""
        self._url = url.rstrip("/")
        self._known = known
        self._ring = ring
        self._heard = 0

    def tick(self) -> float:
        """Wait for a version after the newest one known here; returns the seconds until the next call."""
        after = max(self._heard, self._known() or 0)
        request = f"{self._url}/head?after={after}&timeout={WAIT_SECONDS:g}"
        try:
            with urllib.request.urlopen(request, timeout=WAIT_SECONDS + 10) as answer:
                if answer.status != 200:
                    return 0.0  # nothing new
                version = json.loads(answer.read(ANSWER_MAX_BYTES))["version"]
        except (OSError, ValueError, KeyError, TypeError):
            self._heard = 0  # another distributor may answer next, of a run that was created again
            return TROUBLE_SECONDS
        if not isinstance(version, int) or version <= after:
            return TROUBLE_SECONDS
        self._heard = version
        self._ring()
        return 0.0


class TargetBell:
    """A state machine whose `tick` looks whether the target file says something else, and rings once where it does."""

    def __init__(self, path: Path, ring: Callable[[], None]) -> None:
        self._path = path
        self._ring = ring
        self._seen = self._look()

    def tick(self) -> float:
        """Returns the seconds until the next call."""
        found = self._look()
        if found != self._seen:
            self._seen = found
            self._ring()
        return LOOK_SECONDS

    def _look(self) -> bytes | None:
        try:
            return read_target(self._path)
        except (OSError, ValueError):
            return None  # the follower says why, when it looks
