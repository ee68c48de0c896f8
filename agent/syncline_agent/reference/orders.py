"""What the first rank's process and another's send each other over their pipe. Both are one release's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncline_agent.reference.collective import Meeting
from syncline_agent.reference.engine import EngineSettings


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What every process of an engine is told."""

    threads: int = 1
    log_format: str = "console"
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class RankSettings:
    """The first thing that a rank is told."""

    rank: int
    meeting: Meeting
    engine: EngineSettings
    process: ProcessSettings


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Load the checkpoint, which is held still; answered by Loading."""


@dataclass(frozen=True, slots=True)
class ServeOrder:
    """What was loaded is to be served."""


@dataclass(frozen=True, slots=True)
class StepOrder:
    """Feed these rows."""

    tokens: Sequence[int]
    slots: Sequence[int]
    positions: Sequence[int]


@dataclass(frozen=True, slots=True)
class EndOrder:
    """End."""


Order = LoadOrder | ServeOrder | StepOrder | EndOrder


@dataclass(frozen=True, slots=True)
class Loading:
    """How a load ended."""

    error: str | None
    waits: bool = False
    """There was nothing to load yet."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why what the rank holds must not be computed with; None: it may be again."""

    reason: str | None
