"""What an answer says of versions: read by the span table, never by the clock. Pure.

Where nobody can tell it says so with a reason; it never guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from syncline_agent.engine import Applied, Crossing
from syncline_agent.gateway.asking import Asked
from syncline_agent.gateway.isolation import Kv
from syncline_agent.gateway.mirror import Place
from syncline_agent.gateway.wanted import Wanted
from syncline_agent.lane.reading import TokenSpan, token_spans

SHORT_DIGEST = 12


@dataclass(frozen=True, slots=True)
class ChoiceLabel:
    """One choice: its first and last token's versions, None for a choice without tokens."""

    start: int | None
    end: int | None
    spans: Sequence[TokenSpan] | None
    """None where its tokens were not counted: then all are of one version."""


@dataclass(frozen=True, slots=True)
class Label:
    """A whole answer."""

    choices: Sequence[ChoiceLabel]
    served: Applied | None
    """What `end` names, or what was applied all the time where there are no tokens."""
    unknown: str | None = None
    """Why no version is named."""
    kv: Kv | None = None
    """Over whose keys and values it was drawn; None where nobody can tell."""

    @property
    def versions(self) -> set[int]:
        """Every version that drew a token."""
        return {v for choice in self.choices for v in _versions(choice)}

    @property
    def start(self) -> int | None:
        """The lowest version that drew a first token."""
        return min((choice.start for choice in self.choices if choice.start is not None), default=self._whole)

    @property
    def end(self) -> int | None:
        """The highest version that drew a last token."""
        return max((choice.end for choice in self.choices if choice.end is not None), default=self._whole)

    @property
    def most_spans(self) -> int:
        """Of the choice that has most; where tokens were not counted all are of one version."""
        return max((1 if choice.spans is None else len(choice.spans) for choice in self.choices), default=1)

    @property
    def _whole(self) -> int | None:
        """Of an answer that has no choices at all (embeddings)."""
        return None if self.choices or self.served is None else self.served.version

    def fits(self, wanted: Wanted) -> bool:
        """Whether the answer is what was asked for: not when nobody can tell."""
        return not wanted.binds_tokens or (self.unknown is None and all(map(wanted.accepts, self.versions)))

    def to_json(self, request_id: str, run: str | None, epoch: int | None) -> dict[str, Any]:
        """The field `weight_version` of an answer."""
        served = self.served
        said: dict[str, Any] = {"start": self.start, "end": self.end}
        if self.unknown is not None:
            said["unknown"] = self.unknown
        said["choices"] = [
            {
                "index": at,
                "start": choice.start,
                "end": choice.end,
                "spans": None
                if choice.spans is None
                else [{"first": s.first, "last": s.last, "version": s.version} for s in choice.spans],
            }
            for at, choice in enumerate(self.choices)
        ]
        return said | {
            "run": run,
            "view": served and served.view,
            "lineage": served and served.lineage,
            "epoch": epoch,
            "digest": served and served.digest[:SHORT_DIGEST],
            "proven": served is not None and served.proven,
            "kv": self.kv,
            "request_id": request_id,
        }


def unknown(reason: str) -> Label:
    """No version is named."""
    return Label((), None, reason)


def label(
    asked: Asked,
    counts: Sequence[int | None] | None,
    place: Place,
    crossed: Sequence[Crossing] | None,
    *,
    stamps: Sequence[TokenSpan] | None = None,
) -> Label:
    """Of an answer to a request that was sent at `place` and has crossed these commits; `counts` are tokens by choice, `stamps`
    what an engine that counts for nobody says of them itself."""
    if crossed is None:
        return unknown("the agent that saw the commits is gone, or keeps no such old ones")
    if not crossed:
        return _undisturbed(asked, counts, place)
    if asked.choices == 0:
        return unknown("a commit came while it was answered, and the engine does not say which side it was on")
    if asked.names is None and stamps is not None:
        return _stamped(stamps, place, crossed)
    if asked.names is None or counts is None or any(count is None for count in counts):
        return unknown("a commit came while it was answered, and its tokens cannot be counted")
    applied = None if place.applied is None else place.applied.version
    choices: list[ChoiceLabel] = []
    for name, count in zip(asked.names, counts, strict=True):
        spans = token_spans(name, count or 0, applied, crossed)
        if spans is None:
            return unknown("the engine did not count its tokens at a commit that came while it was answered")
        choices.append(_choice(spans))
    end = max((choice.end for choice in choices if choice.end is not None), default=None)
    return Label(choices, _served(end, place, crossed))


def _undisturbed(asked: Asked, counts: Sequence[int | None] | None, place: Place) -> Label:
    if place.applied is None:
        return unknown("nobody knew what the engine served when the request was sent")
    version = place.applied.version
    known = counts if counts is not None else [None] * (asked.choices or 0)
    choices = [
        ChoiceLabel(version, version, None)
        if count is None
        else _choice([TokenSpan(0, count, version)] if count else [])
        for count in known
    ]
    return Label(choices, place.applied)


def _stamped(stamps: Sequence[TokenSpan], place: Place, crossed: Sequence[Crossing]) -> Label:
    """By the engine's own stamps, where each of them is of a version that was applied meanwhile."""
    held = [place.applied, *(crossing.after for crossing in crossed)]
    known = {one.version for one in held if one is not None}
    if not all(span.version in known for span in stamps):
        return unknown("the engine names a version that was not applied while it answered")
    choice = _choice(stamps)
    return Label([choice], _served(choice.end, place, crossed))


def _choice(spans: Sequence[TokenSpan]) -> ChoiceLabel:
    return ChoiceLabel(spans[0].version if spans else None, spans[-1].version if spans else None, spans)


def _versions(choice: ChoiceLabel) -> set[int]:
    if choice.spans is not None:
        return {span.version for span in choice.spans}
    return set() if choice.start is None else {choice.start}


def _served(version: int | None, place: Place, crossed: Sequence[Crossing]) -> Applied | None:
    held = [place.applied, *(crossing.after for crossing in crossed)]
    return next(
        (one for one in reversed(held) if one is not None and (version is None or one.version == version)), None
    )
