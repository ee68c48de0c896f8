"""What this node is told to serve: `target.json`, written by the operator or by hand, watched as a file.

    {"run": "r", "view": "main", "policy": "keep|drain|abort", "version": {"mode": "Latest"},
     "suspend": false, "generation": 1, "maxVersionLag": 2, "maxLagSeconds": 60}
    "version" may also be {"mode": "Pinned", "version": 7}; the bounds on lag are for gateways, and null or absent is none

A file that vanishes or cannot be read leaves the last good target in force and an error in `/status`: a broken edit
must never move a fleet. Nothing here reads a store.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from syncline.versions import Policy, TargetMode
from syncline.wire.records import Name, Version

TARGET_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed target file."""

    run: str
    view: str = "main"
    policy: Policy = Policy.KEEP
    pinned: int | None = None
    """None follows the newest version."""
    suspend: bool = False
    generation: int = 0
    max_version_lag: int | None = None
    """What a gateway lets requests in to is at most so many versions from its target; None sets no bound."""
    max_lag_seconds: float | None = None

    @property
    def mode(self) -> TargetMode:
        return TargetMode.LATEST if self.pinned is None else TargetMode.PINNED


class _Model(BaseModel):
    # Unknown fields are refused: an agent that ignored a field of a newer operator would break its promise silently.
    model_config = ConfigDict(frozen=True, extra="forbid")


class _VersionModel(_Model):
    mode: TargetMode = TargetMode.LATEST
    version: Version | None = None

    @model_validator(mode="after")
    def _consistent(self) -> _VersionModel:
        if (self.mode is TargetMode.PINNED) != (self.version is not None):
            raise ValueError("Pinned takes a version, Latest takes none")
        return self


class _TargetModel(_Model):
    run: Name
    view: Name = "main"
    policy: Literal["keep", "drain", "abort"] = "keep"
    version: _VersionModel = _VersionModel()
    suspend: bool = False
    generation: Annotated[int, Field(ge=0)] = 0
    maxVersionLag: Annotated[int, Field(ge=0, lt=10**12, strict=True)] | None = None
    maxLagSeconds: Annotated[float, Field(gt=0, le=1e9, strict=True, allow_inf_nan=False)] | None = None


_NAME = "a name: lower-case letters, digits, '.', '_', '-', at most 63 characters"
MUST_BE = {
    "run": _NAME,
    "view": _NAME,
    "policy": '"keep", "drain" or "abort"',
    "version": '{"mode": "Latest"} or {"mode": "Pinned", "version": 2}',
    "suspend": "true or false",
    "generation": "a whole number, 0 or more",
    "maxVersionLag": "a whole number of versions, 0 or more, or null",
    "maxLagSeconds": "a number of seconds above 0, or null",
}
"""The fields of a target, in the words of who writes one."""


class TargetFile:
    """The watched file; `poll` is cheap enough for every tick."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: bytes | None = None
        self._target: Target | None = None
        self._error: str | None = f"{path} was not read yet"

    @property
    def error(self) -> str | None:
        """Why the file as it stands is not in force; None when it is."""
        return self._error

    def poll(self) -> Target | None:
        """The target in force: the newest one that could be read. None while there never was one."""
        try:
            # Read each time: it is small, and two edits within one tick of the file system's clock look alike to stat.
            data = read_target(self._path)
            if data != self._seen:
                self._target = parse_target(data)
                self._seen = data
            self._error = None
        except OSError as error:
            self._seen = None
            self._error = f"{self._path} cannot be read: {error.strerror}; {self._meanwhile}"
        except ValueError as error:
            self._seen = None  # the writer may still be writing: read it again at the next tick
            self._error = f"{self._path} is not a target: {error}; {self._meanwhile}"
        return self._target

    @property
    def _meanwhile(self) -> str:
        if self._target is None:
            return "nothing is followed until it can be"
        return "the last good target stays in force"


def read_target(path: Path) -> bytes:
    """The file as it stands; OSError or ValueError where it is none that could be a target's."""
    if not path.is_file() and path.exists():
        raise ValueError("not a regular file")  # to open a pipe would wait for its writer
    with path.open("rb") as file:
        data = file.read(TARGET_MAX_BYTES + 1)
    if len(data) > TARGET_MAX_BYTES:
        raise ValueError(f"more than {TARGET_MAX_BYTES} bytes")
    return data


def parse_target(data: bytes | str) -> Target:
    """Read a target; ValueError that names the field otherwise."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    try:
        model = _TargetModel.model_validate(value)
    except ValidationError as error:
        # A set of the fields at fault: two faults of one field are told once.
        raise ValueError("; ".join(dict.fromkeys(_problem(e["type"], e["loc"]) for e in error.errors()))) from None
    return Target(
        run=model.run,
        view=model.view,
        policy=Policy(model.policy),
        pinned=model.version.version,
        suspend=model.suspend,
        generation=model.generation,
        max_version_lag=model.maxVersionLag,
        max_lag_seconds=model.maxLagSeconds,
    )


def _problem(kind: str, place: tuple[int | str, ...]) -> str:
    if not place:
        return "it must be a JSON object"
    field = str(place[0])
    if field not in MUST_BE:
        return f"unknown field {field!r:.80}; there are {', '.join(MUST_BE)}"
    return f"{field} is missing" if kind == "missing" and len(place) == 1 else f"{field} must be {MUST_BE[field]}"


def encode_target(target: Target) -> str:
    """The text of a target file (the demo and tests write it; the operator has its own template)."""
    version = {"mode": "Latest"} if target.pinned is None else {"mode": "Pinned", "version": target.pinned}
    value = {
        "run": target.run,
        "view": target.view,
        "policy": target.policy.value,
        "version": version,
        "suspend": target.suspend,
        "generation": target.generation,
        "maxVersionLag": target.max_version_lag,
        "maxLagSeconds": target.max_lag_seconds,
    }
    return json.dumps(value, indent=2) + "\n"
