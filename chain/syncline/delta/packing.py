"""Frames into chunks of about a target size. A chunk leaves as soon as it is full, with the codec tables that its sections refer to.

Payloads of frames that are added together are copied once, into their chunk. With an executor chunks are put together and hashed in its
threads, while the next frames are added, and leave in their order all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future

import numpy as np
from blake3 import blake3

from syncline.codecs.base import Codec
from syncline.kernels.checksums import frame_checksums
from syncline.kernels.directory import write
from syncline.wire.chunk import Chunk, CodecTable, EncodedFrame, Frames, Section, pack
from syncline.wire.limits import CODEC_TABLES_MAX
from syncline.wire.records import ChunkRef

_CLOSING_MOST = 4
"""Chunks that are put together at a time: each is held twice meanwhile, as payloads and as what it becomes."""


class Packer:
    """Add frames in order of (tensor, frame), then `finish`."""

    def __init__(
        self,
        nonce: Callable[[], bytes],
        sink: Callable[[ChunkRef, bytes], None],
        target: int,
        *,
        executor: Executor | None = None,
    ) -> None:
        """`nonce` gives 16 random bytes a chunk; `sink` takes each chunk once it is complete. Both are called where frames are added."""
        self._nonce = nonce
        self._sink = sink
        self._target = target
        self._executor = executor
        self._sections: list[tuple[int, Codec, Frames | list[EncodedFrame]]] = []
        """Those that are closed. Frames that came one by one stay so until the chunk is: columns of a single one take several times as
        much, and there may be as many as tensors."""
        self._params: list[bytes] = []
        self._parts: list[Frames] = []
        self._frames: list[EncodedFrame] = []
        """Of the open section, behind its parts."""
        self._tables: dict[bytes, int] = {}
        self._codec_of_table: list[int] = []
        self._open: tuple[int, Codec] | None = None
        self._bytes = 0
        self._room: memoryview | None = None
        self._filled = 0
        """Of the room, by what the open chunk refers to."""
        self._closing: deque[Future[tuple[ChunkRef, bytes]]] = deque()
        self._refs: list[ChunkRef] = []

    def add(self, tensor: int, codec: Codec, frame: EncodedFrame) -> None:
        """The next frame of the delta."""
        self._begin(tensor, codec, len(frame.payload))
        self._frames.append(frame)
        self._bytes += len(frame.payload)

    def add_frames(self, tensor: int, codec: Codec, frames: Frames) -> None:
        """The next frames, as if one was added after the other. Their payloads are to stand until `finish`."""
        ends = np.cumsum(frames.sizes)
        at = 0
        while at < len(frames):
            before, size = int(ends[at] - frames.sizes[at]), int(frames.sizes[at])
            self._begin(tensor, codec, size)
            fitting = int(np.searchsorted(ends, before + self._target - self._bytes, side="right"))
            end = max(fitting, at + 1)
            self._gather()
            self._parts.append(frames.part(at, end))
            self._bytes += int(ends[end - 1]) - before
            at = end

    def finish(self) -> list[ChunkRef]:
        """Close the last chunk."""
        self._close_chunk()
        self._hand_over(0)
        return self._refs

    def _begin(self, tensor: int, codec: Codec, size: int) -> None:
        """Make sure that a frame of this payload may join the open section."""
        if self._bytes and self._bytes + size > self._target:
            self._close_chunk()
        if self._open != (tensor, codec):
            self._close_section()
            if len(self._tables) == CODEC_TABLES_MAX and codec.shared is not None and codec.shared not in self._tables:
                self._close_chunk()
            self._open = (tensor, codec)

    def _gather(self) -> None:
        if self._frames:
            self._parts.append(self._laid(self._frames))
            self._frames = []

    def _laid(self, frames: Sequence[EncodedFrame]) -> Frames:
        """As columns, the payloads back to back. Where a chunk is put together as soon as it is closed, in memory that the next one uses
        again: fresh memory costs more than all else that is done here."""
        sizes = [len(frame.payload) for frame in frames]
        end = self._filled + sum(sizes)
        if self._executor is not None or len(frames) == 1 or end > self._target:
            return Frames.of(frames)
        if self._room is None:
            self._room = memoryview(bytearray(self._target))
        at = begin = self._filled
        for frame, size in zip(frames, sizes, strict=True):
            self._room[at : at + size] = frame.payload
            at += size
        self._filled = end
        named = np.array([(frame.index, frame.changed) for frame in frames], np.int64)
        indices, changed = np.ascontiguousarray(named.T)
        return Frames(indices, changed, np.array(sizes, np.int64), self._room[begin:end])

    def _close_section(self) -> None:
        if self._open is not None and (self._parts or self._frames):
            tensor, codec = self._open
            frames: Frames | list[EncodedFrame] = self._frames
            if self._parts:
                self._gather()
                frames = self._parts[0] if len(self._parts) == 1 else _joined(self._parts)
            self._sections.append((tensor, codec, frames))
            self._params.append(codec.params(self._place(codec)))
        self._parts, self._frames = [], []
        self._open = None

    def _place(self, codec: Codec) -> int:
        """Where the codec's table stands in this chunk."""
        if codec.shared is None:
            return 0
        if codec.shared not in self._tables:
            self._tables[codec.shared] = len(self._tables)
            self._codec_of_table.append(codec.id)
            self._bytes += len(codec.shared)
        return self._tables[codec.shared]

    def _close_chunk(self) -> None:
        self._close_section()
        if not self._sections:
            return
        tables = [CodecTable(owner, data) for owner, data in zip(self._codec_of_table, self._tables, strict=True)]
        sections = [
            Section(tensor, codec.id, frames if isinstance(frames, Frames) else self._laid(frames), params)
            for (tensor, codec, frames), params in zip(self._sections, self._params, strict=True)
        ]
        chunk = Chunk(self._nonce(), sections, tables)
        self._sections, self._params, self._tables, self._codec_of_table = [], [], {}, []
        self._bytes = 0
        if self._executor is None:
            self._leave(*_packed(chunk))
            self._filled = 0
        else:
            self._closing.append(self._executor.submit(_packed, chunk))
            self._hand_over(_CLOSING_MOST)

    def _hand_over(self, most: int) -> None:
        """Let chunks go in their order: those that are complete, and so many that at most `most` are left."""
        while self._closing and (len(self._closing) > most or self._closing[0].done()):
            self._leave(*self._closing.popleft().result())

    def _leave(self, ref: ChunkRef, data: bytes) -> None:
        self._sink(ref, data)
        self._refs.append(ref)


def _joined(parts: Sequence[Frames]) -> Frames:
    return Frames(
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.changed for part in parts]),
        np.concatenate([part.sizes for part in parts]),
        memoryview(b"".join(part.payloads for part in parts)),
    )


def _packed(chunk: Chunk) -> tuple[ChunkRef, bytes]:
    data = pack(chunk, checksums=frame_checksums, write=write)
    sections = chunk.sections
    name = blake3(data).hexdigest()
    return ChunkRef(blake3=name, size=len(data), first_tensor=sections[0].tensor, last_tensor=sections[-1].tensor), data
