"""How many tokens each choice of an answer has, by what the engine says of it; None where it does not say. Pure.

A count that is too low would give tokens of a new version the old one's name, so whatever may hide tokens makes it None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_IDS = re.compile(rb'("(?:prompt_)?token_ids"\s*:\s*)\[[\d\s,]*\]')
"""A match is a name: a text's own quotation marks stand behind a backslash."""


class Tally:
    """Of one answer, fed with its events or with the whole of it."""

    def __init__(self, choices: int | None) -> None:
        self._expected = choices
        self._tokens: dict[int, int] = {}
        self._uncounted: set[int] = set()
        self._finished: set[int] = set()

    @property
    def counts(self) -> Sequence[int | None] | None:
        """By the choice's number; None where the number of choices is not what was expected."""
        if self._expected is None or set(range(self._expected)) != self._finished:
            return None
        return [None if at in self._uncounted else self._tokens.get(at, 0) for at in range(self._expected)]

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


def without_ids(data: bytes) -> bytes:
    """JSON text without the token ids that the caller did not ask for."""
    return _IDS.sub(rb"\1null", data)


def _choices(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = told.get("choices")
    if isinstance(choices, list):
        return [choice for choice in choices if isinstance(choice, dict)]
    meta = told.get("meta_info")  # SGLang's own route has one choice and no list of them
    if isinstance(meta, dict):
        return [{"index": told.get("index", 0), "finish_reason": meta.get("finish_reason")}]
    return []


def _says(delta: Any) -> bool:
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")
