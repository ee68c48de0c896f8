"""The one encoding of JSON objects in a store.

UTF-8; object keys sorted by code point; no white space; integers only (no fractions, no exponents); strings escape only `"`, `\\` and
control characters (short forms where JSON has them, else \\u00xx in lower case). Equal values therefore have equal bytes, so a BLAKE3
or a signature over the bytes is one over the value. `decode` refuses everything that `encode` would not have written.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from syncline.errors import FormatInvalid
from syncline.wire.limits import JSON_MAX_DEPTH

INTEGER_LIMIT = 1 << 63


def encode(value: object) -> bytes:
    """Canonical bytes of a value of dicts with string keys, lists, strings, integers, booleans and None."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8")


def decode(data: bytes | memoryview, *, max_bytes: int, what: str) -> Any:
    """Parse canonical bytes. FormatInvalid, naming `what`, for anything else."""
    if len(data) > max_bytes:
        raise FormatInvalid(f"{what} has {len(data)} bytes, more than the {max_bytes} allowed")
    raw = bytes(data)
    _check_depth(raw, what)
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_float=_no_fraction,
            parse_constant=_no_fraction,
            parse_int=_bounded_integer,
        )
        same = encode(value) == raw
    except (ValueError, RecursionError) as error:
        raise FormatInvalid(f"{what} is not canonical JSON: {error}") from error
    if not same:
        raise FormatInvalid(f"{what} is JSON but not in its canonical encoding")
    return value


def _check_depth(raw: bytes, what: str) -> None:
    # Counted on bytes, before the parser recurses; brackets inside strings only make the count stricter when unbalanced,
    # so strings are skipped.
    if raw.count(b"[") + raw.count(b"{") <= JSON_MAX_DEPTH:
        return
    depth = 0
    in_string = escaped = False
    for byte in raw:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            if depth > JSON_MAX_DEPTH:
                raise FormatInvalid(f"{what} nests deeper than {JSON_MAX_DEPTH}")
        elif byte in b"]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object repeats a key")
    return result


def _no_fraction(text: str) -> NoReturn:
    raise ValueError(f"{text} is not an integer")


def _bounded_integer(text: str) -> int:
    if len(text) > 20:
        raise ValueError(f"an integer of {len(text)} digits is out of bounds")
    value = int(text)
    if not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
        raise ValueError(f"{value} is out of bounds")
    return value
