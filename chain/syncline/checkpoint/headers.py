"""Safetensors headers: reading them without trust, and writing them.

A file is an 8-byte little-endian length, that many bytes of JSON, then the tensors' bytes. Whoever reads one here knows
afterwards that every tensor lies inside the file, that none overlaps another and that no byte belongs to none. A file
that is shorter than its header says may still be growing: SourceNotReady. Everything else that is wrong can never be
read: SourceInvalid.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from syncline.errors import FormatInvalid, LayoutRefused, SourceInvalid, SourceNotReady
from syncline.wire import dtypes
from syncline.wire.limits import DIMENSION_MAX, TENSOR_DIMS_MAX, TENSOR_NAME_MAX_BYTES, TENSORS_MAX

HEADER_MAX_BYTES = 100_000_000
"""The format's own bound."""
METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies in its file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Of its first byte, from the start of the file."""
    size: int
    """In bytes."""

    @property
    def unit_bytes(self) -> int:
        return dtypes.dtype(self.dtype).unit_bytes

    @property
    def units(self) -> int:
        return self.size // self.unit_bytes


@dataclass(frozen=True, slots=True)
class Header:
    """A file's tensors, by name."""

    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    file_bytes: int


def read_safetensors_header(file: BinaryIO, *, what: str) -> Header:
    """Read and check the header of an open file; `what` names it in errors."""
    file_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    if file_bytes < 8:
        raise SourceNotReady(f"{what} has only {file_bytes} bytes; wait until it is written")
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= HEADER_MAX_BYTES:
        raise SourceInvalid(
            f"{what} claims a header of {length} bytes; a safetensors header has 2 to {HEADER_MAX_BYTES}"
        )
    if length > file_bytes - 8:
        raise SourceNotReady(f"{what} ends inside its header of {length} bytes; wait until it is written")
    text = file.read(length)
    if len(text) != length:
        raise SourceNotReady(f"{what} became shorter while it was read")
    entries = _parse(text, what)
    metadata = _metadata(entries.pop(METADATA, {}), what)
    if len(entries) > TENSORS_MAX:
        raise SourceInvalid(f"{what} has {len(entries)} tensors, more than {TENSORS_MAX}")
    tensors = {name: _tensor(name, entry, 8 + length, what) for name, entry in entries.items()}
    end = _check_cover(tensors, 8 + length, what)
    if file_bytes < end:
        raise SourceNotReady(f"{what} has {file_bytes} of {end} bytes; wait until it is written")
    if file_bytes > end:
        raise SourceInvalid(f"{what} has {file_bytes - end} bytes after its last tensor; write it again")
    return Header(tensors, metadata, file_bytes)


def header_bytes(tensors: Iterable[tuple[str, str, list[int]]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Length and JSON of a file that holds the tensors (name, dtype, shape) back to back in that order.

    The JSON is padded so that the first tensor is 8-byte aligned; give wide dtypes first to keep them so. LayoutRefused for
    a header that no reader of the format takes.
    """
    entries: dict[str, Any] = {} if metadata is None else {METADATA: dict(metadata)}
    at = 0
    for name, dtype, shape in tensors:
        size = dtypes.size_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_MAX_BYTES:
        raise LayoutRefused(
            f"a safetensors header for {len(entries)} tensors has {len(text)} bytes, more than the format's "
            f"{HEADER_MAX_BYTES}; publish with smaller shards"
        )
    return len(text).to_bytes(8, "little") + text


def _parse(text: bytes, what: str) -> dict[str, Any]:
    if text[:1] != b"{":
        raise SourceInvalid(f"{what} is not a safetensors file: its header does not start with '{{'")
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise SourceInvalid(f"{what} is not a safetensors file: its header is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise SourceInvalid(f"{what} is not a safetensors file: its header is no object")
    return cast(dict[str, Any], value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _metadata(value: object, what: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SourceInvalid(f"{what} has metadata that is no object")
    items = cast(dict[str, Any], value)
    if not all(isinstance(v, str) for v in items.values()):
        raise SourceInvalid(f"{what} has metadata other than strings")
    return items


def _tensor(name: str, entry: object, data_start: int, what: str) -> StoredTensor:
    if not name:
        raise SourceInvalid(f"{what}: a tensor has an empty name; give it one and write it again")
    if not _is_name(name):
        raise SourceInvalid(
            f"{what} has a tensor name that is not 1 to {TENSOR_NAME_MAX_BYTES} bytes of UTF-8: {name!a}"
        )
    where = f"{what}, tensor {name}"
    if not isinstance(entry, dict) or set(cast(dict[str, Any], entry)) != {"dtype", "shape", "data_offsets"}:
        raise SourceInvalid(f"{where}: an entry has exactly dtype, shape and data_offsets")
    fields = cast(dict[str, Any], entry)
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if (
        not isinstance(dtype, str)
        or not _counts(shape, TENSOR_DIMS_MAX)
        or not _counts(offsets, 2)
        or len(offsets) != 2
    ):
        raise SourceInvalid(f"{where}: dtype, shape or data_offsets are not what safetensors allows")
    begin, end = offsets
    try:
        size = dtypes.size_bytes(dtype, shape)
    except FormatInvalid as error:
        raise SourceInvalid(f"{where}: {error}") from error
    if size > DIMENSION_MAX or end - begin != size:
        raise SourceInvalid(f"{where}: {dtype} {shape} takes {size} bytes, its offsets span {end - begin}")
    return StoredTensor(dtype, tuple(shape), data_start + begin, size)


def _is_name(name: str) -> bool:
    try:
        return 1 <= len(name.encode("utf-8")) <= TENSOR_NAME_MAX_BYTES and "\0" not in name
    except UnicodeEncodeError:  # JSON can spell half a surrogate pair
        return False


def _counts(value: object, at_most: int) -> bool:
    if not isinstance(value, list):
        return False
    items = cast(list[Any], value)
    return len(items) <= at_most and all(type(x) is int and 0 <= x <= DIMENSION_MAX for x in items)


def _check_cover(tensors: Mapping[str, StoredTensor], data_start: int, what: str) -> int:
    """End of the data, once it is known that the tensors lie back to back."""
    at = data_start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].size)):
        if tensor.offset != at:
            kind = "a hole before" if tensor.offset > at else "bytes shared with"
            raise SourceInvalid(f"{what} has {kind} tensor {name}, at byte {min(at, tensor.offset)}; write it again")
        at += tensor.size
    return at
