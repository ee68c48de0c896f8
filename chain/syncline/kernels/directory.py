"""A chunk's directory read and written in one call that lets other threads run: beside an engine's loop, a step of Python a varint holds
the interpreter for as long as kernels take for all of the weights.

The same columns and bytes as `wire.directory` has, which says what they are, is the reference beside this, and says what is wrong: here a
directory is only well or not.
"""

# pyright: basic, reportCallIssue=false
# compiled functions have no annotations

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from syncline.kernels.compiling import INT, U8, U32, array, compiled_as
from syncline.wire.directory import FRAME_BYTES_MIN, FRAME_INDEX_MAX, Column, Counts, Directory, Read
from syncline.wire.limits import (
    CHUNK_MAX_BYTES,
    CODEC_TABLE_MAX_BYTES,
    CODEC_TABLES_MAX,
    FRAME_MAX_UNITS,
    SECTION_PARAMS_MAX_BYTES,
    TENSORS_MAX,
)

_VARINT_BYTES = 9
_SECTION_BYTES = 2 * _VARINT_BYTES + 2
"""Most that a section takes beside its parameters: tensor, codec, length of the parameters, frames."""
_FRAME_BYTES = 3 * _VARINT_BYTES + 4


def reader(frames: Column) -> Read:
    """Reads directories of a table whose tensors have so many frames each; what it keeps of one is bounded by them, and by its bytes."""
    most = int(np.minimum(frames, CHUNK_MAX_BYTES).sum())

    def read(directory: memoryview, counts: Counts) -> Directory | None:
        room = min(most, len(directory) // FRAME_BYTES_MIN)
        if counts.tables > CODEC_TABLES_MAX or counts.sections > room:  # a section has a frame
            return None
        data = _bytes(directory)
        tables = np.empty(2 * counts.tables, np.int64)
        heads = np.empty(5 * counts.sections, np.int64)
        columns, sums = np.empty(3 * room, np.int64), np.empty(room, np.uint32)
        many = _reading()(data, counts.body_bytes, frames, tables, heads, columns, sums)
        if many < 0:
            return None
        tensors, codecs, starts, lengths, of_section = heads.reshape(5, -1)
        ends = (starts + lengths).tolist()
        params = [bytes(directory[begin:end]) for begin, end in zip(starts.tolist(), ends, strict=True)]
        indices, changed, sizes = columns.reshape(3, room)[:, :many]
        codec_tables = tables[::2].tolist(), tables[1::2].tolist()
        return Directory(*codec_tables, tensors, codecs, params, of_section, indices, changed, sizes, sums[:many])

    return read


def write(directory: Directory) -> bytes | None:
    """What `wire.directory.write_directory` gives; None for what it refuses."""
    said = directory
    of_section, of_frame = [said.codecs, said.params, said.frames], [said.changed, said.sizes, said.sums]
    if {len(own) for own in of_section} != {said.tensors.size} or {len(own) for own in of_frame} != {said.indices.size}:
        return None
    params = b"".join(directory.params)
    room = 2 * _VARINT_BYTES * len(directory.table_codecs) + len(params)
    room += _SECTION_BYTES * directory.tensors.size + _FRAME_BYTES * directory.indices.size
    out = np.empty(room, np.uint8)
    written = _writing()(
        out,
        _ints(directory.table_codecs),
        _ints(directory.table_sizes),
        *map(_ints, (directory.tensors, directory.codecs, [len(own) for own in directory.params], directory.frames)),
        _bytes(params),
        *map(_ints, (directory.indices, directory.changed, directory.sizes)),
        np.ascontiguousarray(directory.sums),
    )
    return None if written < 0 else out[:written].tobytes()


def _bytes(data: memoryview | bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)


def _ints(values: Sequence[int] | Column) -> Column:
    return np.ascontiguousarray(values, np.int64)


@nb.njit(nogil=True, error_model="numpy", _nrt=False)
def _varint(data, at, most):
    """The value, or less than none where there is no such, and the place behind it."""
    value = np.int64(0)
    for turn in range(_VARINT_BYTES):
        if at >= data.size:
            break
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 127) << (7 * turn)
        if byte < 128:
            if (byte == 0 and turn > 0) or value > most:
                break
            return value, at
    return np.int64(-1), at


def _read_kernel(data, left, bounds, tables, heads, columns, sums):
    """The number of frames, or less than none."""
    at = np.int64(0)
    for table in range(tables.size // 2):
        if at >= data.size:
            return -1
        codec = np.int64(data[at])
        size, at = _varint(data, at + 1, CODEC_TABLE_MAX_BYTES)
        if size < 0 or size > left:
            return -1
        tables[2 * table] = codec
        tables[2 * table + 1] = size
        left -= size
    sections = heads.size // 5
    room = sums.size
    done = 0
    tensor, last_tensor, last_index = np.int64(0), np.int64(-1), np.int64(-1)
    for section in range(sections):
        step, at = _varint(data, at, TENSORS_MAX)
        tensor += step
        if step < 0 or tensor >= bounds.size or tensor >= TENSORS_MAX or at >= data.size:
            return -1
        codec = np.int64(data[at])
        length, at = _varint(data, at + 1, SECTION_PARAMS_MAX_BYTES)
        if length < 0 or length > data.size - at:
            return -1
        heads[section] = tensor
        heads[sections + section] = codec
        heads[2 * sections + section] = at
        heads[3 * sections + section] = length
        many, at = _varint(data, at + length, FRAME_INDEX_MAX)
        if many < 1 or many > room - done:
            return -1
        heads[4 * sections + section] = many
        expected = np.int64(0)
        for turn in range(many):
            gap, at = _varint(data, at, FRAME_INDEX_MAX)
            index = expected + gap
            if gap < 0 or index >= bounds[tensor]:
                return -1
            if turn == 0 and tensor == last_tensor and index <= last_index:
                return -1
            expected = index + 1
            changed, at = _varint(data, at, FRAME_MAX_UNITS)
            if changed < 1:
                return -1
            size, at = _varint(data, at, CHUNK_MAX_BYTES)
            if size < 0 or size > left or data.size - at < 4:
                return -1
            left -= size
            columns[done] = index
            columns[room + done] = changed
            columns[2 * room + done] = size
            sums[done] = (
                np.uint32(data[at])
                | np.uint32(data[at + 1]) << np.uint32(8)
                | np.uint32(data[at + 2]) << np.uint32(16)
                | np.uint32(data[at + 3]) << np.uint32(24)
            )
            at += 4
            done += 1
        last_tensor, last_index = tensor, expected - 1
    if at != data.size or left != 0:
        return -1
    return done


@nb.njit(nogil=True, error_model="numpy", _nrt=False)
def _put(out, at, value):
    while value >= 128:
        out[at] = value & 127 | 128
        at += 1
        value >>= 7
    out[at] = value
    return at + 1


def _write_kernel(
    out,
    table_codecs, table_sizes,
    tensors, codecs, lengths, frames, params,
    indices, changed, sizes, sums,
):  # fmt: skip
    """Bytes written, or less than none."""
    at = np.int64(0)
    for table in range(table_codecs.size):
        if table_sizes[table] < 0 or table_codecs[table] < 0 or table_codecs[table] > 255:
            return -1
        out[at] = table_codecs[table]
        at = _put(out, at + 1, table_sizes[table])
    done, taken = np.int64(0), np.int64(0)
    previous = np.int64(0)
    for section in range(tensors.size):
        if tensors[section] < previous or frames[section] < 0 or frames[section] > indices.size - done:
            return -1
        if codecs[section] < 0 or codecs[section] > 255:
            return -1
        at = _put(out, at, tensors[section] - previous)
        previous = tensors[section]
        out[at] = codecs[section]
        at = _put(out, at + 1, lengths[section])
        for byte in range(taken, taken + lengths[section]):
            out[at] = params[byte]
            at += 1
        taken += lengths[section]
        at = _put(out, at, frames[section])
        expected = np.int64(0)
        for frame in range(done, done + frames[section]):
            if indices[frame] < expected or changed[frame] < 0 or sizes[frame] < 0:
                return -1
            at = _put(out, at, indices[frame] - expected)
            expected = indices[frame] + 1
            at = _put(out, at, changed[frame])
            at = _put(out, at, sizes[frame])
            checksum = np.int64(sums[frame])
            for byte in range(4):
                out[at + byte] = checksum >> (8 * byte) & 255
            at += 4
        done += frames[section]
    return at


@cache
def _reading() -> Any:
    ints, room = array(INT), array(INT, writable=True)
    return compiled_as(_read_kernel, (array(U8), INT, ints, room, room, room, array(U32, writable=True)))


@cache
def _writing() -> Any:
    ints = array(INT)
    return compiled_as(_write_kernel, (array(U8, writable=True), *[ints] * 6, array(U8), *[ints] * 3, array(U32)))
