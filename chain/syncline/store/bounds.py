"""Which keys every adapter takes, and which none does.

A key is a path of ASCII segments that any of the adapters can hold: no empty segment, none that begins with a dot (so
no `..`, and a folder store has names of its own), no leading or trailing slash, no control characters. The adapters
check before they touch anything, so that a key out of bounds never reaches a file system or a request line.
"""

from __future__ import annotations

import re

from syncline.errors import StoreMisused
from syncline.store.base import KEY_MAX_BYTES

SEGMENT_MAX_BYTES = 240
"""Longest segment; file systems stop at 255 bytes."""

_SEGMENT = re.compile(r"[A-Za-z0-9_=+@-][A-Za-z0-9._=+@-]*", re.ASCII)
_PREFIX_TAIL = re.compile(r"([A-Za-z0-9_=+@-][A-Za-z0-9._=+@-]*)?", re.ASCII)


def checked_key(key: str) -> str:
    """The key itself, or StoreMisused."""
    _check(key, what="key", last=_SEGMENT)
    return key


def check_listing(prefix: str, after: str, limit: int | None) -> None:
    """StoreMisused unless these can be listed.

    A prefix is a key's beginning: whole segments and perhaps a part of the next, or nothing. `after` is only compared
    with keys.
    """
    _check(prefix, what="prefix", last=_PREFIX_TAIL)
    if len(after) > KEY_MAX_BYTES or not after.isascii() or not after.isprintable():
        raise StoreMisused(
            f"nothing can be listed after {after[:60]!r}: give a key, at most {KEY_MAX_BYTES} ASCII characters"
        )
    if limit is not None and limit < 0:
        raise StoreMisused(f"a listing of at most {limit} objects cannot be; give 0 or more, or None for all")


def _check(text: str, *, what: str, last: re.Pattern[str]) -> None:
    if len(text) > KEY_MAX_BYTES:
        raise StoreMisused(f"{what} {text[:60]!r}… has {len(text)} characters; at most {KEY_MAX_BYTES} are allowed")
    *folders, name = text.split("/")
    for segment, pattern in (*((f, _SEGMENT) for f in folders), (name, last)):
        if len(segment) > SEGMENT_MAX_BYTES or not pattern.fullmatch(segment):
            raise StoreMisused(
                f"{what} {text!r} is out of bounds at {segment[:60]!r}: a segment is "
                f"1 to {SEGMENT_MAX_BYTES} characters of A-Z a-z 0-9 . _ = + @ - and does not begin with a dot"
            )
