"""Frames into chunks of about a target size. A chunk leaves as soon as it is full, with the codec tables that its sections refer to."""

from __future__ import annotations

from collections.abc import Callable

from blake3 import blake3

from syncline.codecs.base import Codec
from syncline.wire.chunk import Chunk, CodecTable, EncodedFrame, Frames, Section, pack
from syncline.wire.limits import CODEC_TABLES_MAX
from syncline.wire.records import ChunkRef


class Packer:
    """Add frames in order of (tensor, frame), then `finish`."""

    def __init__(self, nonce: Callable[[], bytes], sink: Callable[[ChunkRef, bytes], None], target: int) -> None:
        """`nonce` gives 16 random bytes a chunk; `sink` takes each chunk once it is complete."""
        self._nonce = nonce
        self._sink = sink
        self._target = target
        self._sections: list[Section] = []
        self._frames: list[EncodedFrame] = []
        self._tables: dict[bytes, int] = {}
        self._codec_of_table: list[int] = []
        self._open: tuple[int, Codec] | None = None
        self._bytes = 0
        self._refs: list[ChunkRef] = []

    def add(self, tensor: int, codec: Codec, frame: EncodedFrame) -> None:
        """The next frame of the delta."""
        if self._bytes and self._bytes + len(frame.payload) > self._target:
            self._close_chunk()
        if self._open != (tensor, codec):
            self._close_section()
            if len(self._tables) == CODEC_TABLES_MAX and codec.shared is not None and codec.shared not in self._tables:
                self._close_chunk()
            self._open = (tensor, codec)
        self._frames.append(frame)
        self._bytes += len(frame.payload)

    def finish(self) -> list[ChunkRef]:
        """Close the last chunk."""
        self._close_chunk()
        return self._refs

    def _close_section(self) -> None:
        if self._open is not None and self._frames:
            tensor, codec = self._open
            self._sections.append(Section(tensor, codec.id, Frames.of(self._frames), codec.params(self._place(codec))))
        self._frames = []
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
        data = pack(Chunk(self._nonce(), self._sections, tables))
        ref = ChunkRef(
            blake3=blake3(data).hexdigest(),
            size=len(data),
            first_tensor=self._sections[0].tensor,
            last_tensor=self._sections[-1].tensor,
        )
        self._sink(ref, data)
        self._refs.append(ref)
        self._sections, self._tables, self._codec_of_table = [], {}, []
        self._bytes = 0
