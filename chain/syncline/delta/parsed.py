"""One delta as parsed: which frames change, and the bytes that say how. Everything is checked against the table before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from typing_extensions import Buffer

from syncline.codecs.base import Codec
from syncline.codecs.registry import SectionCodecs
from syncline.errors import FormatInvalid
from syncline.kernels.checksums import frame_checksums
from syncline.wire.chunk import Chunk, EncodedFrame, parse
from syncline.wire.records import ChunkRef
from syncline.wire.tensors import TensorTable
from syncline.wire.tiling import Tiling


@dataclass(frozen=True, slots=True)
class CodedFrame:
    """A frame with the codec that reads it."""

    codec: Codec
    frame: EncodedFrame


class Delta:
    """One parsed delta. Payloads are views of the chunk buffers that it was parsed from, and keep them alive."""

    def __init__(self, frames: Mapping[int, Mapping[int, CodedFrame]]) -> None:
        self._frames = frames

    @classmethod
    def parse(cls, table: TensorTable, tiling: Tiling, chunks: Iterable[tuple[ChunkRef | str, Buffer]]) -> Self:
        """Parse all chunks of a delta, each with its entry in the manifest, or where there is none with a name for messages.

        FormatInvalid when a chunk names tensors, frames or codecs that do not exist, a frame twice, or other tensors than its entry
        says; FrameCorrupt on a checksum. Memory is bounded by the table's frames, whatever the chunks say.
        """
        frames: dict[int, dict[int, CodedFrame]] = {}
        for named, data in chunks:
            name = named if isinstance(named, str) else named.blake3
            chunk = parse(
                memoryview(data),
                what=f"chunk {name}",
                frames_of=_frames_of(table, tiling, name),
                checksums=frame_checksums,
            )
            if isinstance(named, ChunkRef):
                _check_span(named, chunk)
            codecs = SectionCodecs(chunk.tables, what=f"chunk {name}")
            for section in chunk.sections:
                spec = table.tensors[section.tensor]
                grid = spec.grid(tiling)
                reader = codecs.codec(section.codec, section.params, spec.dtype)
                of_tensor, least = frames.setdefault(section.tensor, {}), grid.least_units
                for frame in section.frames:
                    if frame.changed > least and frame.changed > grid.frame(frame.index).units:
                        raise FormatInvalid(
                            f"chunk {name}: frame {frame.index} of {spec.name} changes more units than it has"
                        )
                    if frame.index in of_tensor:
                        raise FormatInvalid(f"chunk {name} has frame {frame.index} of {spec.name} a second time")
                    of_tensor[frame.index] = CodedFrame(reader, frame)
        return cls(frames)

    @property
    def tensors(self) -> Sequence[int]:
        """Indices of the tensors that change, ascending."""
        return sorted(self._frames)

    def frames(self, tensor: int) -> Mapping[int, CodedFrame]:
        """Changed frames of a tensor by frame index."""
        return self._frames.get(tensor, {})


def _frames_of(table: TensorTable, tiling: Tiling, name: str) -> Callable[[int], int]:
    def count(tensor: int) -> int:
        if tensor >= len(table.tensors):
            raise FormatInvalid(f"chunk {name} names tensor {tensor} of {len(table.tensors)}")
        return table.tensors[tensor].grid(tiling).count

    return count


def _check_span(ref: ChunkRef, chunk: Chunk) -> None:
    span = (chunk.sections[0].tensor, chunk.sections[-1].tensor) if chunk.sections else None
    if span != (ref.first_tensor, ref.last_tensor):
        found = "no tensor" if span is None else f"tensors {span[0]} to {span[1]}"
        raise FormatInvalid(
            f"chunk {ref.blake3} holds {found}, its manifest says {ref.first_tensor} to {ref.last_tensor}; do not use the version"
        )
