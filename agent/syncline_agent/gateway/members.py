"""The members of a JSON object where they stand in its text, so that one can be taken out or put in and every other byte stays.

Reads whole objects that fit in memory; knows no field by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


class NotAnObject(ValueError):
    """The text is no JSON object; the message says where it stops being one."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the outermost object."""

    name: str
    start: int
    """Where its name begins in the text."""
    end: int
    """Behind its value."""
    value: Any


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object and the text that it was read from."""

    text: str
    members: Sequence[Member]

    @property
    def fields(self) -> dict[str, Any]:
        """Values by name; of a name that stands twice, the last, as every reader of JSON takes it."""
        return {member.name: member.value for member in self.members}

    def edited(self, *, without: Collection[str] = (), more: Mapping[str, Any] | None = None) -> bytes:
        """The object's text with members taken out and others put at its end (these replace any of their name)."""
        added = more or {}
        kept = [self.text[m.start : m.end] for m in self.members if m.name not in without and m.name not in added]
        kept += [f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}" for name, value in added.items()]
        return ("{" + ",".join(kept) + "}").encode()


def with_member(data: bytes, name: str, value: Any) -> bytes:
    """Text that `edited` made, with one member more at its end; it must have none of that name."""
    member = f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}".encode()
    return data[:-1] + (b"," if len(data) > 2 else b"") + member + b"}"


def read_object(data: bytes) -> JsonObject:
    """NotAnObject for whatever else."""
    try:
        text = data.decode()
        return JsonObject(text, _members(text))
    except UnicodeDecodeError as error:
        raise NotAnObject(f"it is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise NotAnObject(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise NotAnObject("it is nested too deep") from None
    except NotAnObject:
        raise
    except ValueError as error:  # a number of more digits than Python reads
        raise NotAnObject(str(error).partition(";")[0]) from None


def _members(text: str) -> list[Member]:
    at = _after_space(text, 0)
    _expect(text, at, "{")
    at = _after_space(text, at + 1)
    found: list[Member] = []
    if text[at : at + 1] == "}":
        _expect_end(text, at + 1)
        return found
    while True:
        name, end = _DECODER.raw_decode(text, at)
        if not isinstance(name, str):
            raise NotAnObject(f"a member has no name at character {at}")
        colon = _after_space(text, end)
        _expect(text, colon, ":")
        value, end = _DECODER.raw_decode(text, _after_space(text, colon + 1))
        found.append(Member(name, at, end, value))
        at = _after_space(text, end)
        if text[at : at + 1] == "}":
            _expect_end(text, at + 1)
            return found
        _expect(text, at, ",")
        at = _after_space(text, at + 1)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _expect(text: str, at: int, mark: str) -> None:
    if text[at : at + 1] != mark:
        raise NotAnObject(f"{mark!r} is missing at character {at}")


def _expect_end(text: str, at: int) -> None:
    if _after_space(text, at) != len(text):
        raise NotAnObject(f"something follows the object at character {at}")
