"""The journal: absolute new bits on their way into a checkpoint's files.

A change of a checkpoint in place must survive kill -9 and power loss. So its changes are first written here, as
absolute bits at fixed places (writing them twice is writing them once), synced and sealed by a footer; only then are
the files patched. On restart a sealed journal is replayed whole and a journal without its footer is dropped: the files
then still hold the old version untouched.

    header   8 bytes `SLJNL\\0\\1\\0`; u32 length and u32 CRC-32 of the JSON; the canonical JSON
             {"files": names, "from": [version, digest], "marker": the marker to set, "marker_file": its name}
    records  u32 `SLJR`; u32 unit bytes; u32 file; u32 CRC-32 of the payload; u64 byte of the tensor in the file;
             u64 base, runs, length, stride of the frame (wire.tiling); u64 count;
             u32 CRC-32 of the record so far; u32 0
             payload: count u32 positions in the frame, ascending; zeros to 8 bytes; count new units; zeros to 8 bytes
    footer   8 bytes `SLJEND\\0\\0`; u64 records; u64 bytes before the footer; u32 CRC-32 of the footer before it; u32 0

All little-endian. Order on disk: header and records, fsync; footer, fsync; then the files.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from syncline.checkpoint.durable import naming_full_disk, remove_durably, sync_folder
from syncline.checkpoint.mapped import let_go
from syncline.checkpoint.marker import Marker
from syncline.errors import FormatInvalid
from syncline.wire import canonical
from syncline.wire.limits import MANIFEST_MAX_BYTES
from syncline.wire.tiling import Frame

HEADER_MAGIC = b"SLJNL\0\1\0"
FOOTER_MAGIC = b"SLJEND\0\0"
RECORD_MAGIC = 0x524A4C53  # `SLJR`
LET_GO_BYTES = 16 << 20
_LENGTH = struct.Struct("<8sII")
_RECORD = struct.Struct("<IIIIQQQQQQ")
_FOOTER = struct.Struct("<8sQQ")
_CRC = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Intent:
    """What a journal is about to do."""

    files: Sequence[str]
    """Names of the files that records point into."""
    from_version: int
    from_digest: str
    marker: Marker
    """The marker to set once the files are patched."""
    marker_file: str
    """Name of the marker's file: the marker proper, or that of a folder being materialized."""


@dataclass(frozen=True, slots=True)
class Change:
    """New bits of one frame of one tensor."""

    file: int
    offset: int
    """Byte in the file at which the tensor starts."""
    frame: Frame
    positions: NDArray[np.uint32]
    new: NDArray[Any]


class JournalWriter:
    """Writes a journal; leaving it without `seal` removes what was written."""

    def __init__(self, path: Path, intent: Intent) -> None:
        self._path = path
        text = canonical.encode(
            {
                "files": list(intent.files),
                "from": [intent.from_version, intent.from_digest],
                "marker": intent.marker.model_dump(mode="json"),
                "marker_file": intent.marker_file,
            }
        )
        self._records = 0
        self._sealed = False
        with naming_full_disk(path):
            self._file = path.open("wb")
            self._file.write(_LENGTH.pack(HEADER_MAGIC, len(text), zlib.crc32(text)) + text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if not self._sealed:
            remove_durably(self._path)

    def add(self, change: Change) -> None:
        """Append one frame's changes."""
        positions = np.ascontiguousarray(change.positions, dtype="<u4").view(np.uint8).data
        new = np.ascontiguousarray(change.new).view(np.uint8).data
        parts = (positions, bytes(-len(positions) % 8), new, bytes(-len(new) % 8))
        crc = 0
        for part in parts:
            crc = zlib.crc32(part, crc)
        frame = change.frame
        head = _RECORD.pack(
            RECORD_MAGIC,
            change.new.dtype.itemsize,
            change.file,
            crc,
            change.offset,
            frame.base,
            frame.runs,
            frame.length,
            frame.stride,
            len(change.positions),
        )
        with naming_full_disk(self._path):
            self._file.write(head + _CRC.pack(zlib.crc32(head), 0))
            for part in parts:
                self._file.write(part)
        self._records += 1

    def seal(self) -> None:
        """From here on the changes will happen, whatever happens to this process."""
        with naming_full_disk(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            footer = _FOOTER.pack(FOOTER_MAGIC, self._records, self._file.tell())
            self._file.write(footer + _CRC.pack(zlib.crc32(footer), 0))
            self._file.flush()
            os.fsync(self._file.fileno())
        sync_folder(self._path.parent)
        self._sealed = True


class SealedJournal:
    """A journal that is to be replayed. Mapped, and let go behind the reader: its size is that of the changes."""

    def __init__(self, path: Path, intent: Intent, view: memoryview, records: int, start: int) -> None:
        self._path = path
        self.intent = intent
        self._view = view
        self._records = records
        self._start = start

    @classmethod
    def open(cls, path: Path) -> SealedJournal | None:
        """The journal, or None when there is none or it has no footer. FormatInvalid when a sealed one was damaged."""
        try:
            with path.open("rb") as file:
                if file.seek(0, os.SEEK_END) == 0:
                    return None
                view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except FileNotFoundError:
            return None
        end = len(view) - _FOOTER.size - _CRC.size
        if end < _LENGTH.size:
            return None
        magic, records, size = cast(tuple[bytes, int, int], _FOOTER.unpack_from(view, end))
        crc, _ = _CRC.unpack_from(view, end + _FOOTER.size)
        if magic != FOOTER_MAGIC or crc != zlib.crc32(view[end : end + _FOOTER.size]) or size != end:
            return None
        magic, length, crc = cast(tuple[bytes, int, int], _LENGTH.unpack_from(view))
        text = view[_LENGTH.size : _LENGTH.size + length]
        if magic != HEADER_MAGIC or length > end - _LENGTH.size or crc != zlib.crc32(text):
            raise _damaged(path, "its header")
        return cls(path, _intent(path, text), view[:end], records, _LENGTH.size + length)

    def changes(self) -> Iterator[Change]:
        """All records in order, each checked; arrays are views of the map."""
        at = kept = self._start
        for number in range(self._records):
            if at - kept > LET_GO_BYTES:
                let_go(self._view)
                kept = at
            what = f"record {number}"
            if at + _RECORD.size + _CRC.size > len(self._view):
                raise _damaged(self._path, what)
            head = self._view[at : at + _RECORD.size]
            magic, unit, file, crc, offset, base, runs, length, stride, count = cast(
                tuple[int, ...], _RECORD.unpack_from(head)
            )
            head_crc, _ = _CRC.unpack_from(self._view, at + _RECORD.size)
            if magic != RECORD_MAGIC or head_crc != zlib.crc32(head):
                raise _damaged(self._path, what)
            at += _RECORD.size + _CRC.size
            padded = count * 4 + (-count * 4 % 8)
            size = padded + count * unit + (-count * unit % 8)
            payload = self._view[at : at + size]
            if len(payload) != size or crc != zlib.crc32(payload):
                raise _damaged(self._path, what)
            at += size
            positions = np.frombuffer(payload, "<u4", count)
            new = np.frombuffer(payload, f"<u{unit}", count, offset=padded)
            yield Change(file, offset, Frame(base, runs, length, stride), positions, new)
        if at != len(self._view):
            raise _damaged(self._path, "bytes after its last record")


def _intent(path: Path, text: memoryview) -> Intent:
    value: Any = canonical.decode(text, max_bytes=2 * MANIFEST_MAX_BYTES, what=str(path))
    try:
        marker = Marker.model_validate(value["marker"])
        version, digest = value["from"]
        return Intent(value["files"], version, digest, marker, value["marker_file"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, "its header") from error


def _damaged(path: Path, what: str) -> FormatInvalid:
    return FormatInvalid(f"{path} was sealed but is damaged ({what}); the checkpoint must be materialized again")
