"""Which version each token of an answer came from, by the commits that it can have crossed: SOCKET.md's rules.

Values only. What cannot be told is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from syncline_agent.engine import Crossing


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Output tokens [first, last) of one answer, all of one version."""

    first: int
    last: int
    version: int


def token_spans(
    request_id: str, tokens: int, applied: int | None, crossed: Iterable[Crossing]
) -> Sequence[TokenSpan] | None:
    """Spans of an answer of `tokens` tokens to a request that was sent while version `applied` was served, None where nobody
    knew; `crossed` are the commits between that and the answer's arrival, in order. Empty for no tokens; None where nobody
    can tell."""
    spans: list[TokenSpan] = []
    begun = False
    first, version = 0, applied
    for crossing in crossed:
        if crossing.after is None or crossing.spans is None:
            return None
        so_far = crossing.spans.get(request_id)
        if so_far is not None and request_id in (crossing.ended or ()):
            return None  # two requests of one id
        if so_far is None:
            if crossing.ended is None:
                return None
            if request_id in crossing.ended:
                break
            if begun:
                return None  # it was there, and is neither there nor over: another engine may have gone on with it
            version = crossing.after.version
            continue
        begun = True
        if so_far > tokens or so_far < first:
            return None
        if so_far > first:
            if version is None:
                return None
            spans.append(TokenSpan(first, so_far, version))
        first, version = so_far, crossing.after.version
    if tokens > first:
        if version is None:
            return None
        spans.append(TokenSpan(first, tokens, version))
    return spans
