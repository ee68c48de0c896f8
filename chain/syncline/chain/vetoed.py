"""What a veto means for a choice of version: pure, so a planner, an agent and a command line choose and speak alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias, cast

from syncline.wire.records import VetoRecord

Vetoed: TypeAlias = Collection[int] | Mapping[int, VetoRecord]
"""Versions that were marked bad; given as a reader returns them, an error says why."""


def newest_allowed(head: int, vetoed: Collection[int]) -> int | None:
    """The newest version at or below `head` that is not vetoed; None when there is none."""
    return next((v for v in range(head, 0, -1) if v not in vetoed), None)


def marked_bad(version: int, vetoed: Vetoed) -> str:
    """What to say of a vetoed version: that it was marked bad, and why if that is known."""
    record = cast(Mapping[int, VetoRecord], vetoed).get(version) if isinstance(vetoed, Mapping) else None
    return f"version {version} was marked bad" + ("" if record is None else f" ({record.reason})")
