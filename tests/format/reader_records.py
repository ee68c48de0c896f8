"""Records of the wire format as FORMAT.md section 2 has them: canonical JSON, and what each field may hold.

Part of the independent reader; never imports Syncline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from blake3 import blake3

Check = Callable[[Any], bool]


class Refused(Exception):
    """An object that must not be used; the text begins with its key."""


def need(condition: bool, key: str, why: str) -> None:
    if not condition:
        raise Refused(f"{key}: {why}")


def canonical(value: Any) -> bytes:
    """Keys sorted by code point, no white space, integers only. Python's own escapes differ in U+007F only when told to be ASCII."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def depth(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)
    return 0


def no_float(text: str) -> Any:
    raise ValueError(f"{text} is no integer")


def integer(least: int, most: int) -> Check:
    return lambda value: type(value) is int and least <= value <= most


def string(most: int, pattern: str = r"(?s:.*)") -> Check:
    return lambda value: isinstance(value, str) and len(value) <= most and re.fullmatch(pattern, value) is not None


def hexed(size: int) -> Check:
    return string(2 * size, f"[0-9a-f]{{{2 * size}}}")


def exactly(expected: Any) -> Check:
    return lambda value: type(value) is type(expected) and value == expected


def null_or(check: Check) -> Check:
    return lambda value: value is None or check(value)


def listed(check: Check, least: int, most: int) -> Check:
    return lambda value: isinstance(value, list) and least <= len(value) <= most and all(map(check, value))


def mapping(name: Check, check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(name, value)) and all(map(check, value.values()))


def fields(**checks: Check) -> Check:
    return lambda value: (
        isinstance(value, dict)
        and value.keys() == checks.keys()
        and all(check(value[name]) for name, check in checks.items())
    )


NAME_PATTERN = r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?"
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
BITS |= dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8)
BITS |= dict.fromkeys(("I16", "U16", "F16", "BF16"), 16)
BITS |= dict.fromkeys(("I32", "U32", "F32"), 32)
BITS |= dict.fromkeys(("C64", "F64", "I64", "U64"), 64)

written_name = string(63, NAME_PATTERN)
name: Check = lambda value: written_name(value) and ".." not in value  # noqa: E731 - one of the checks
version = integer(1, 10**12 - 1)
count = integer(0, 2**53 - 1)
epoch = integer(1, 2**53 - 1)
boolean: Check = lambda value: type(value) is bool  # noqa: E731
text = string(4096)
tensor_name: Check = lambda value: isinstance(value, str) and 1 <= len(value.encode()) <= 512 and "\0" not in value  # noqa: E731
short = string(32)


def file_name(value: Any) -> bool:
    return (
        isinstance(value, str)
        and len(value) <= 200
        and not {"", ".", ".."} & {*value.split("/")}
        and not {"\\", "\0"} & {*value}
    )


TILING = fields(
    min_units=integer(1, 1 << 20), max_units=integer(1, 1 << 20), ways=lambda value: value in (1, 2, 4, 8, 16, 32, 64)
)
TENSOR = fields(
    name=tensor_name,
    dtype=lambda value: value in BITS,
    shape=listed(count, 0, 16),
    axis=integer(0, 15),
    aliases=listed(tensor_name, 0, 64),
)
BODY = fields(nonce=hexed(16), files=listed(fields(name=file_name, size=count, blake3=hexed(32)), 1, 65_536))
SIGNATURE = null_or(fields(algorithm=string(32, "[a-z0-9-]+"), key_id=string(256), value=string(4096)))
SHARED = {"run": name, "view": name, "version": version, "lineage": hexed(16), "digest": hexed(16), "writer": hexed(16)}
SHARED |= {"nonce": hexed(16), "created_ms": count, "signature": SIGNATURE}
DELTA = {
    "tensors": fields(blake3=hexed(32), size=integer(1, 64 << 20)),
    "chunks": listed(
        fields(blake3=hexed(32), size=integer(1, 256 << 20), first_tensor=count, last_tensor=count), 0, 65_536
    ),
    "statistics": fields(
        codecs=mapping(short, count),
        **dict.fromkeys(
            ("units", "changed_units", "changed_tensors", "frames", "payload_bytes", "full_bytes", "nonfinite"), count
        ),
    ),
}
FIELDS: dict[str, dict[str, Check]] = {
    "run": {"run": name, "lineage": hexed(16), "created_ms": count, "tiling": TILING},
    "tensors": {"tensors": listed(TENSOR, 0, 1 << 20)},
    "version": SHARED
    | DELTA
    | {
        "epoch": epoch,
        "parent": null_or(version),
        "base": null_or(version),
        "step": null_or(count),
        "anchor": null_or(BODY),
    }
    | {"tensor_digests": string(64 << 20), "labels": mapping(string(64), string(256))},
    "anchor": SHARED | {"manifest": hexed(32), "anchor": BODY},
    "skip": SHARED | DELTA | {"base": version, "base_digest": hexed(16), "manifest": hexed(32)},
    "head": {"lineage": hexed(16), "version": version, "epoch": epoch},
    "veto": {"lineage": hexed(16), "version": version, "reason": text, "created_ms": count},
    "consumer": {"lineage": hexed(16), "cluster": name, "namespace": name, "pool": name, "node": name, "ttl_ms": count}
    | {"applied": null_or(version), "applied_digest": null_or(hexed(16)), "proven": boolean, "target": null_or(version)}
    | {
        "pinned": null_or(version),
        "boot": null_or(version),
        "lag_ms": null_or(count),
        "phase": short,
        "apply_path": short,
    }
    | {"error": null_or(text), "leaving": boolean},
    "lease": {"lineage": hexed(16), "owner": text, "ttl_ms": count, "version": null_or(version)},
}
GATEWAY = fields(
    url=string(900, r"https?://[^/@?#\s]+(/[^/@?#\s]+)*"), pod=null_or(string(253)), waiting=count, at_engine=count
)
LARGE = {"version", "anchor", "skip", "tensors"}


def record(key: str, data: bytes, kind: str, **expected: Any) -> dict[str, Any]:
    """The record in `data`, after every check that its own bytes and its key allow."""
    need(len(data) <= (64 << 20 if kind in LARGE else 1 << 20), key, "larger than its kind may be")
    try:
        value = json.loads(data.decode(), parse_float=no_float, parse_constant=no_float)
        need(canonical(value) == data, key, "not in canonical encoding")
    except ValueError as problem:
        raise Refused(f"{key}: {problem}") from None
    need(isinstance(value, dict) and value.get("format") == "syncline/1", key, "not of format syncline/1")
    need(
        value.get("check") == blake3(canonical(value | {"check": ""})).hexdigest()[:16],
        key,
        "does not match its own check",
    )
    need(depth(value) <= 16, key, "nested too deep")
    checks = {"check": hexed(8), "format": exactly("syncline/1"), "kind": exactly(kind)} | FIELDS[kind]
    if kind == "consumer" and "gateway" in value:
        checks |= {"gateway": GATEWAY}
    need(value.keys() == checks.keys(), key, f"fields {sorted(value.keys() ^ checks.keys())} are unknown or missing")
    for field, check in checks.items():
        need(check(value[field]), key, f"field {field} does not hold")
    for field, wanted in expected.items():
        need(value[field] == wanted, key, f"{field} is {value[field]}, not {wanted}")
    for field in ("parent", "base"):
        need(value.get(field) is None or value[field] < value["version"], key, f"{field} is not below the version")
    if kind == "version":
        need((value["base"] is None) == (value["anchor"] is not None), key, "anchor is null exactly when base is not")
        need(value["base"] is not None or not value["chunks"], key, "chunks without a base")
        need(value["base"] is None or value["parent"] is not None, key, "a base without a parent")
    if value.get("anchor") is not None:
        names = [file["name"] for file in value["anchor"]["files"]]
        folders = {name[:at] for name in names for at, letter in enumerate(name) if letter == "/"}
        need(len(set(names)) == len(names) and not folders & {*names}, key, "file names that cannot stand side by side")
        need(not any(name.split("/")[0] == ".syncline" for name in names), key, "a file in .syncline/")
    return value
