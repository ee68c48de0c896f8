"""From when each token came to figures: pauses, rates, first tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import numpy as np

Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered request of one stream."""

    stream: int
    times: Sequence[float]
    """When each token came."""
    spans: Sequence[tuple[int, int]]
    """Number of the first token of each run of tokens that one version made, and that version."""

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Self:
        return cls(raw["stream"], raw["times"], [(span["first"], span["version"]) for span in raw["spans"]])

    def crossings(self) -> Iterator[tuple[float, float]]:
        """When the last token of one version came, and the first of the next."""
        for first, _ in self.spans[1:]:
            yield self.times[first - 1], self.times[first]


@dataclass(frozen=True, slots=True)
class Pauses:
    """What commits add to the gap between two tokens that one spans, in seconds, over all commits and streams."""

    count: int
    median_gap: float
    half: float
    p99: float
    most: float


def pauses(answers: Sequence[Answer], within: Window) -> Pauses | None:
    """Of the commits in a window; None where no gap spans one."""
    crossing: dict[int, list[float]] = {}
    usual: dict[int, list[float]] = {}
    for answer in answers:
        own = set(answer.crossings())
        for before, after in zip(answer.times, answer.times[1:], strict=False):
            if within[0] <= before and after <= within[1]:
                (crossing if (before, after) in own else usual).setdefault(answer.stream, []).append(after - before)
    added = [gap - median(usual[stream]) for stream, gaps in crossing.items() if stream in usual for gap in gaps]
    if not added:
        return None
    every = median(gap for gaps in usual.values() for gap in gaps)
    p99 = float(np.quantile(added, 0.99, method="higher"))
    return Pauses(len(added), every, median(added), p99, max(added))


def rate(answers: Sequence[Answer], within: Window) -> float:
    """Tokens a second."""
    low, high = within
    return sum(low <= time < high for answer in answers for time in answer.times) / (high - low)


def loss(answers: Sequence[Answer], *, during: Sequence[Window], beside: Sequence[Window]) -> float | None:
    """Share of the rate beside that is missing during, each window against one beside; None where nothing came beside."""
    lost = sum(rate(answers, window) * (window[1] - window[0]) for window in during)
    calm = sum(rate(answers, calm) * (window[1] - window[0]) for window, calm in zip(during, beside, strict=True))
    return 1.0 - lost / calm if calm else None


def first_token(answers: Sequence[Answer], version: int, *, after: float = 0.0) -> float | None:
    """When the first token by a version came, or the first after a moment; None where none did."""
    found = [
        answer.times[first]
        for answer in answers
        for first, made_by in answer.spans
        if made_by == version and answer.times[first] > after
    ]
    return min(found, default=None)
