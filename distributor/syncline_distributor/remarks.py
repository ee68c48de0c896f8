"""What a trainer says about a version, as a manifest can hold it. Looked at before anything is encoded or uploaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import Self

from syncline.errors import Rejected
from syncline.wire.limits import STEP_MAX

LABEL_MAX, LABEL_TEXT_MAX = 64, 256
"""Characters of a label's name and text."""


@dataclass(frozen=True, slots=True)
class Remarks:
    """A step, a parent and labels that fit a manifest."""

    step: int | None
    parent: int | None
    labels: dict[str, str]

    @classmethod
    def of(cls, step: int | None, parent: int | None, labels: Mapping[str, str] | None) -> Self:
        """From what a caller gave; Rejected for what no manifest can hold."""
        given = dict(labels or {})
        for name, text in given.items():
            if not _fits(name, LABEL_MAX) or not _fits(text, LABEL_TEXT_MAX):
                raise Rejected(
                    f"label {name!r:.80} with {text!r:.80} does not fit: names are strings of up to {LABEL_MAX} "
                    f"characters, texts of up to {LABEL_TEXT_MAX}"
                )
        number = _whole(step, "step")
        if number is not None and not 0 <= number <= STEP_MAX:
            raise Rejected(f"step {number} is not within 0..{STEP_MAX}")
        return cls(number, _whole(parent, "parent"), given)


def _whole(value: object, what: str) -> int | None:
    if value is None:
        return None
    try:
        return index(value)  # pyright: ignore[reportArgumentType]  # NumPy's and torch's integers too
    except TypeError as error:
        raise Rejected(f"{what} {value!r:.80} is a {type(value).__name__}; give a whole number") from error


def _fits(text: object, most: int) -> bool:
    if not isinstance(text, str) or len(text) > most:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True
