"""One delta as parsed: which frames change, and the bytes that say how. Everything is checked against the table before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Self, TypeVar

import numpy as np
from typing_extensions import Buffer

from syncline.codecs.base import Codec
from syncline.codecs.context.table import ContextTable
from syncline.codecs.registry import SectionCodecs
from syncline.delta.columns import Column, Columns
from syncline.delta.parallel import in_order
from syncline.errors import FormatInvalid
from syncline.kernels import directory as directories
from syncline.kernels.checksums import frame_checksums
from syncline.wire.chunk import EncodedFrame, ReadChunk, read_chunk
from syncline.wire.directory import Directory
from syncline.wire.records import ChunkRef
from syncline.wire.tensors import Grids, TensorTable
from syncline.wire.tiling import Tiling

_AHEAD = 4
"""Chunks that are read at a time: a hostile one takes as much memory as all frames of the table, at most."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CodedFrame:
    """A frame with the codec that reads it."""

    codec: Codec
    frame: EncodedFrame


def frame_at(columns: Columns, codecs: Sequence[Codec], payloads: Sequence[memoryview], place: int) -> CodedFrame:
    """The frame at a place of the columns, which number these codecs and buffers."""
    begin, payload = int(columns.starts[place]), payloads[int(columns.buffers[place])]
    frame = EncodedFrame(
        int(columns.indices[place]), int(columns.changed[place]), payload[begin : begin + int(columns.sizes[place])]
    )
    return CodedFrame(codecs[int(columns.codecs[place])], frame)


class Delta:
    """One parsed delta. Payloads are views of the chunk buffers that it was parsed from, and keep them alive."""

    def __init__(self, columns: Columns, codecs: Sequence[Codec], payloads: Sequence[memoryview]) -> None:
        """All frames; their codecs and the buffers of their payloads, by the numbers that the columns give them."""
        self.columns = columns
        self.codecs = codecs
        self.payloads = payloads

    @classmethod
    def of(cls, frames: Mapping[int, Mapping[int, CodedFrame]]) -> Self:
        """From single frames, by tensor and index."""
        each = [(tensor, index, own[index]) for tensor, own in sorted(frames.items()) for index in sorted(own)]
        rows = [
            (tensor, index, coded.frame.changed, number, number, 0, len(coded.frame.payload))
            for number, (tensor, index, coded) in enumerate(each)
        ]
        columns = Columns(*np.array(rows, np.int64).reshape(-1, 7).T.copy())
        return cls(
            columns, [coded.codec for *_, coded in each], [memoryview(coded.frame.payload) for *_, coded in each]
        )

    @classmethod
    def parse(
        cls,
        table: TensorTable,
        tiling: Tiling,
        chunks: Iterable[tuple[ChunkRef | str, Buffer]],
        *,
        executor: Executor | None = None,
    ) -> Self:
        """Parse all chunks of a delta, each with its entry in the manifest, or where there is none with a name for messages. With an
        executor some are read beside each other.

        FormatInvalid when a chunk names tensors, frames or codecs that do not exist, a frame twice, or other tensors than its entry
        says; FrameCorrupt on a checksum. Memory is bounded by the table's frames, whatever the chunks say.
        """
        grids = table.grids(tiling)
        read = directories.reader(grids.counts)
        most = int(grids.counts.sum())
        parts: list[Columns] = []
        names: list[str] = []
        codecs: list[Codec] = []
        tables: dict[bytes, ContextTable] = {}
        payloads: list[memoryview] = []

        def opened(given: tuple[ChunkRef | str, Buffer]) -> tuple[ChunkRef | str, str, ReadChunk]:
            named, data = given
            name = named if isinstance(named, str) else named.blake3
            frames_of = _frames_of(grids, name)
            view = memoryview(data)
            what = f"chunk {name}"
            return named, name, read_chunk(view, what=what, frames_of=frames_of, checksums=frame_checksums, read=read)

        for named, name, chunk in _few_ahead(executor, opened, chunks):
            if isinstance(named, ChunkRef):
                _check_span(named, chunk.directory)
            of_chunk = SectionCodecs(chunk.tables, what=f"chunk {name}", known=tables)
            numbers = _numbers(chunk.directory, table, of_chunk, codecs)
            parts.append(_columns(chunk.directory, numbers, len(payloads)))
            payloads.append(chunk.payloads)
            names.append(name)
            _check_units(parts[-1], table, grids, name)
            if sum(part.count for part in parts) > most:
                break  # a frame is there twice
        columns = Columns.joined(parts).ordered()
        if (at := columns.twice()) is not None:
            name, spec = names[int(columns.buffers[at])], table.tensors[int(columns.tensors[at])]
            raise FormatInvalid(f"chunk {name} has frame {columns.indices[at]} of {spec.name} a second time")
        return cls(columns, codecs, payloads)

    @cached_property
    def tensors(self) -> Sequence[int]:
        """Indices of the tensors that change, ascending."""
        return np.unique(self.columns.tensors).tolist()

    def frames(self, tensor: int) -> Mapping[int, CodedFrame]:
        """Changed frames of a tensor by frame index, made at each call: for those who look at one after the other."""
        own = self.columns.at(self.columns.of_tensor(tensor))
        columns = (own.indices, own.changed, own.codecs, own.buffers, own.starts, own.starts + own.sizes)
        rows: list[list[int]] = np.stack(columns, axis=1).tolist()
        return {
            index: CodedFrame(self.codecs[codec], EncodedFrame(index, changed, self.payloads[buffer][begin:end]))
            for index, changed, codec, buffer, begin, end in rows
        }

    def part(self, tensor: int, first: int, last: int) -> Self:
        """The changed frames of one tensor from index `first` to `last`."""
        own = self.columns.of_tensor(tensor)
        low, high = np.searchsorted(self.columns.indices[own], [first, last + 1]).tolist()
        return type(self)(self.columns.at(slice(own.start + low, own.start + high)), self.codecs, self.payloads)


def _few_ahead(executor: Executor | None, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """In order, a few at a time."""
    left = iter(items)
    while few := list(islice(left, _AHEAD if executor is not None else 1)):
        yield from in_order(executor, work, few)


def _frames_of(grids: Grids, name: str) -> Callable[[int], int]:
    def count(tensor: int) -> int:
        if tensor >= len(grids.grids):
            raise FormatInvalid(f"chunk {name} names tensor {tensor} of {len(grids.grids)}")
        return grids.grids[tensor].count

    return count


def _numbers(said: Directory, table: TensorTable, of_chunk: SectionCodecs, codecs: list[Codec]) -> Column:
    """Of each section its codec's number in the list, which grows by those that are new."""
    known: dict[int, int] = {}
    numbers = np.empty(said.tensors.size, np.int64)
    sections = zip(said.tensors.tolist(), said.codecs.tolist(), said.params, strict=True)
    for place, (tensor, codec, params) in enumerate(sections):
        bound = of_chunk.codec(codec, params, table.tensors[int(tensor)].dtype)
        if id(bound) not in known:  # kept in the list, and so its name here
            known[id(bound)] = len(codecs)
            codecs.append(bound)
        numbers[place] = known[id(bound)]
    return numbers


def _columns(said: Directory, codecs: Column, buffer: int) -> Columns:
    ends = np.cumsum(said.sizes)
    return Columns(
        np.repeat(said.tensors, said.frames),
        said.indices,
        said.changed,
        np.repeat(codecs, said.frames),
        np.full(said.indices.size, buffer),
        ends - said.sizes,
        said.sizes,
    )


def _check_units(frames: Columns, table: TensorTable, grids: Grids, name: str) -> None:
    doubtful = np.flatnonzero(frames.changed > grids.least_units[frames.tensors])
    tensors = frames.tensors[doubtful]
    for tensor in map(int, np.unique(tensors)):
        own = doubtful[tensors == tensor]
        indices = frames.indices[own]
        # Not the columns of all: how many there are is only said, as long as nobody holds the weights.
        cut = grids.grids[tensor].at(indices)
        beyond = frames.changed[own] > cut.runs * cut.lengths
        if beyond.any():
            index, spec = int(indices[int(beyond.argmax())]), table.tensors[tensor]
            raise FormatInvalid(f"chunk {name}: frame {index} of {spec.name} changes more units than it has")


def _check_span(ref: ChunkRef, said: Directory) -> None:
    span = (int(said.tensors[0]), int(said.tensors[-1])) if said.tensors.size else None
    if span != (ref.first_tensor, ref.last_tensor):
        found = "no tensor" if span is None else f"tensors {span[0]} to {span[1]}"
        raise FormatInvalid(
            f"chunk {ref.blake3} holds {found}, its manifest says {ref.first_tensor} to {ref.last_tensor}; do not use the version"
        )
