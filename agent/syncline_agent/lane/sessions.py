"""How a gateway marks the name of a session's keys and values, so that an arm that may leave them across commits knows it.

A constant and its one reading: whoever reaches an engine past its gateway can say it, too, so an arm heeds it only where it
was told to.
"""

from __future__ import annotations

SESSION = "syncline-session-"


def is_session(name: str | None) -> bool:
    """Whether a name of keys and values is a session's."""
    return name is not None and name.startswith(SESSION)
