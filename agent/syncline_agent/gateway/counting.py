"""How many tokens each choice of an answer has, and of which versions they are where the engine says that itself (SGLang's own
route); None where it does not say. Pure.

A count that is too low would give tokens of a new version the old one's name, so whatever may hide tokens makes it None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from syncline_agent.lane.reading import TokenSpan

_IDS = re.compile(rb'("(?:prompt_)?token_ids"\s*:\s*)\[[\d\s,]*\]')
"""A match is a name: a text's own quotation marks stand behind a backslash."""
_NAME = b'"token_ids":['
_STAMP = re.compile(r"(?:[a-z0-9._-]+@)?(\d{1,12})(?:\.[0-9a-f]{8})?")
"""As an arm stamps an engine (`7`), or a reload does (`main@7.90ab12cd`)."""
STAMPED = "stamped"
"""Marks a choice whose engine says versions itself."""


class Tally:
    """Of one answer, fed with its events or with the whole of it."""

    def __init__(self, choices: int | None) -> None:
        self._expected = choices
        self._tokens: dict[int, int] = {}
        self._uncounted: set[int] = set()
        self._finished: set[int] = set()
        self._stamps: Sequence[TokenSpan] | None = None
        self._hidden = False

    @property
    def stamps(self) -> Sequence[TokenSpan] | None:
        """The versions that SGLang noted at the tokens of its one choice, as far as they are versions of Syncline's."""
        return self._stamps if self._expected == 1 and self._finished == {0} else None

    @property
    def counts(self) -> Sequence[int | None] | None:
        """By the choice's number; None where the number of choices is not what was expected, or some may have tokens unseen."""
        if self._hidden or self._expected is None or set(range(self._expected)) != self._finished:
            return None
        return [None if at in self._uncounted else self._tokens.get(at, 0) for at in range(self._expected)]

    def hide(self) -> None:
        """Something came that may hold tokens of any choice, and cannot be read."""
        self._hidden = True

    def event(self, told: Mapping[str, Any]) -> bool:
        """Take one event of a stream; whether it ends the last choice."""
        before = len(self._finished)
        for choice in _choices(told):
            self._choice(choice)
        return before < len(self._finished) == self._expected

    def whole(self, told: Mapping[str, Any]) -> None:
        """Take an answer that is no stream."""
        for choice in _choices(told):
            self._choice(choice)
        usage = told.get("usage")
        if self._expected == 1 and 0 in self._uncounted and isinstance(usage, dict):
            tokens = usage.get("completion_tokens")
            if isinstance(tokens, int):
                self._uncounted.discard(0)
                self._tokens[0] = tokens

    def _choice(self, choice: Mapping[str, Any]) -> None:
        at = choice.get("index", 0)
        if not isinstance(at, int):
            return
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            self._tokens[at] = self._tokens.get(at, 0) + len(ids)
        elif choice.get("finish_reason") is not None or choice.get("text") or _says(choice.get("delta")):
            self._uncounted.add(at)
        if choice.get("finish_reason") is not None:
            self._finished.add(at)
            self._stamps = _stamps(choice.get("weight_versions")) if STAMPED in choice else None


def without_ids(data: bytes) -> bytes:
    """JSON text without the token ids that the caller did not ask for."""
    at = data.find(_NAME)
    if at >= 0 and data.count(b'token_ids"') == 1 + data.count(b'"prompt_token_ids":null'):  # one choice: nearly always
        begin = at + len(_NAME)
        end = data.find(b"]", begin)
        if data[begin:end].isdigit():
            return b"%bnull%b" % (data[: begin - 1], data[end + 1 :])
    return _IDS.sub(rb"\1null", data)


def _choices(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = told.get("choices")
    if isinstance(choices, list):
        return [choice for choice in choices if isinstance(choice, dict)]
    meta = told.get("meta_info")  # SGLang's own route has one choice and no list of them
    if isinstance(meta, dict):
        named = ("finish_reason", "weight_versions")
        return [{STAMPED: True, "index": told.get("index", 0), **{name: meta.get(name) for name in named}}]
    return []


def _stamps(told: Any) -> Sequence[TokenSpan] | None:
    """`[{"version": "7", "start": 0, "end": 12}]`, without gaps."""
    if not isinstance(told, list):
        return None
    spans: list[TokenSpan] = []
    for span in told:
        match = _STAMP.fullmatch(str(span.get("version"))) if isinstance(span, dict) else None
        first, last = (span.get("start"), span.get("end")) if isinstance(span, dict) else (None, None)
        if match is None or not isinstance(first, int) or not isinstance(last, int):
            return None
        if first != (spans[-1].last if spans else 0) or last < first:
            return None
        if last > first:
            spans.append(TokenSpan(first, last, int(match[1])))
    return spans


def _says(delta: Any) -> bool:
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")
