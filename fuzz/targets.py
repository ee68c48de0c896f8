"""What is done with a fuzzer's bytes. Each target takes any bytes and raises only where Syncline is at fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import LANE_SHIFT_MIN, ContextCodec
from syncline.codecs.context.table import ContextTable
from syncline.delta import Delta, stage_tensor
from syncline.errors import Corrupt, FormatInvalid, FrameCorrupt
from syncline.kernels.directory import reader
from syncline.wire.chunk import read_chunk
from syncline.wire.directory import Counts, Directory
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

UNITS = 3000
"""Of the frame that `context` decodes against: with the smallest lane shift it has two lanes."""
TILING = Tiling(min_units=64, max_units=256, ways=2)
_DTYPES = sorted(ALPHABETS)


def base(dtype: str, units: int = UNITS) -> np.ndarray:
    """The same bits at every call."""
    unit = ALPHABETS[dtype].unit
    return np.frombuffer(np.random.default_rng(7).bytes(units * unit.itemsize), unit)


def context(data: bytes) -> None:
    """Bytes: dtype, lane shift beyond the least, changes (u16), bytes of the table (u16), the table, the payload."""
    if len(data) < 6:
        return
    dtype = _DTYPES[data[0] % len(_DTYPES)]
    changed = int.from_bytes(data[2:4], "little") % UNITS + 1
    length = int.from_bytes(data[4:6], "little")
    frame = base(dtype)
    try:
        table = ContextTable.parse(data[6 : 6 + length])
        codec = ContextCodec(table, ALPHABETS[dtype], LANE_SHIFT_MIN + data[1] % 21)
        payload = memoryview(data)[6 + length :]
        placed = codec.place(payload, units=frame.size, dtype=frame.dtype, changed=changed, base=lambda: frame)
    except (FormatInvalid, FrameCorrupt):
        return
    assert changed == placed.positions.size == np.unique(placed.positions).size
    assert np.all(placed.positions[1:] > placed.positions[:-1])
    assert np.all(frame[placed.positions] != placed.units)
    assert table == ContextTable.parse(table.data)


def weights() -> tuple[TensorTable, list[np.ndarray]]:
    """A tensor of every dtype that the context coder knows."""
    table = TensorTable(tensors=[TensorSpec(name=d, dtype=d, shape=[40, 32], axis=0) for d in _DTYPES])
    return table, [base(t.dtype, t.units) for t in table.tensors]


def read_twice(data: bytes, frames: np.ndarray) -> None:
    """By the compiled reader of directories and by the plain one: the same columns, or both refuse."""
    compiled, quick = reader(frames), []

    def frames_of(tensor: int) -> int:
        if tensor >= frames.size:
            raise FormatInvalid(f"tensor {tensor} of {frames.size}")
        return int(frames[tensor])

    def watched(directory: memoryview, counts: Counts) -> None:
        quick.append(compiled(directory, counts))

    try:
        plain = read_chunk(data, frames_of=frames_of, read=watched)
    except FrameCorrupt:
        assert quick[0] is not None
    except FormatInvalid:
        assert quick in ([], [None])
    else:
        for column in fields(Directory):
            ours, theirs = (getattr(said, column.name) for said in (plain.directory, quick[0]))
            assert np.asarray(ours).tolist() == np.asarray(theirs).tolist()


def chunk(data: bytes) -> None:
    """Bytes: a chunk."""
    table, live = weights()
    read_twice(data, table.grids(TILING).counts)
    before = [flat.copy() for flat in live]
    try:
        delta = Delta.parse(table, TILING, [("fuzzed", data)])
        for tensor in delta.tensors:
            staged = stage_tensor(table, TILING, tensor, live[tensor], [delta])
            assert all(np.all(part.old != part.new) for part in staged.frames)
    except Corrupt:
        pass
    assert all(np.array_equal(a, b) for a, b in zip(before, live, strict=True))


TARGETS: dict[str, Callable[[bytes], None]] = {"context": context, "chunk": chunk}
