"""CRC-32 of many frames in one call that lets other threads run: beside an engine's loop, a call a frame hands the interpreter over as
often as there are frames.

The same numbers as `wire.chunk.frame_checksum`, which says what is summed up and is the reference beside this.
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
from syncline.wire.directory import Directory, Sums

_POLYNOMIAL = 0xEDB88320
_STEP = 8
"""Bytes at a time, each through a table of its own."""
_PREFIX_BYTES = 17
"""Tensor u32, frame u64, codec u8, changed u32."""


def frame_checksums(payloads: Sequence[memoryview], directory: Directory) -> Sums:
    """Of all frames of a directory, as `wire.chunk.pack` and `parse` take them. ValueError where a payload lies in no buffer."""
    sizes, ends = np.ascontiguousarray(directory.sizes), np.cumsum(directory.sizes)
    prefixes = _prefixes(directory)
    found = np.empty(sizes.size, np.uint32)
    done = filled = 0
    for buffer in payloads:
        filled += len(buffer)
        upto = max(int(np.searchsorted(ends, filled, side="right")), done)
        own = np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
        inside = sizes[done:upto]
        # one by one too: a sum of large ones comes round to anything
        if own.size != inside.sum() or ((inside < 0) | (inside > own.size)).any():
            break
        _compiled()(own, inside, prefixes[done:upto].reshape(-1), _tables(), found[done:upto])
        done = upto
    if done < sizes.size:
        raise ValueError(
            f"frame {done} of {sizes.size} does not lie in a buffer of payloads by its {sizes[done]} bytes"
        )
    return found


def _prefixes(directory: Directory) -> NDArray[np.uint8]:
    prefixes = np.empty((directory.indices.size, _PREFIX_BYTES), np.uint8)
    heads = (directory.tensors.astype("<u4"), directory.codecs.astype(np.uint8))
    tensors, codecs = (np.repeat(column, directory.frames) for column in heads)
    at = 0
    for column in (tensors, directory.indices.astype("<u8"), codecs, directory.changed.astype("<u4")):
        prefixes[:, at : at + column.itemsize] = column.view(np.uint8).reshape(-1, column.itemsize)
        at += column.itemsize
    return prefixes


@cache
def _tables() -> NDArray[np.uint32]:
    """Of a byte, and of a byte with one to seven zeros behind it."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ np.uint32(_POLYNOMIAL), first >> 1)
    rows = [first]
    for _ in range(_STEP - 1):
        rows.append(first[rows[-1] & 0xFF] ^ rows[-1] >> np.uint32(8))
    return np.concatenate(rows)


@cache
def _compiled() -> Any:
    return compiled_as(_sums_kernel, (array(U8), array(INT), array(U8), array(U32), array(U32, writable=True)))


@nb.njit(nogil=True, error_model="numpy", _nrt=False)
def _prefixed(prefixes, frame, tables):
    crc = np.uint32(0xFFFFFFFF)
    for place in range(frame * _PREFIX_BYTES, (frame + 1) * _PREFIX_BYTES):
        crc = tables[np.uint64((crc ^ np.uint32(prefixes[place])) & np.uint32(0xFF))] ^ crc >> np.uint32(8)
    return crc


@nb.njit(nogil=True, error_model="numpy", _nrt=False)
def _stepped(payloads, at, crc, tables):
    """Eight bytes on."""
    low = crc ^ (
        np.uint32(payloads[np.uint64(at)])
        | np.uint32(payloads[np.uint64(at + 1)]) << np.uint32(8)
        | np.uint32(payloads[np.uint64(at + 2)]) << np.uint32(16)
        | np.uint32(payloads[np.uint64(at + 3)]) << np.uint32(24)
    )
    return (
        tables[np.uint64(1792) + np.uint64(low & np.uint32(0xFF))]
        ^ tables[np.uint64(1536) + np.uint64(low >> np.uint32(8) & np.uint32(0xFF))]
        ^ tables[np.uint64(1280) + np.uint64(low >> np.uint32(16) & np.uint32(0xFF))]
        ^ tables[np.uint64(1024) + np.uint64(low >> np.uint32(24))]
        ^ tables[np.uint64(768) + np.uint64(payloads[np.uint64(at + 4)])]
        ^ tables[np.uint64(512) + np.uint64(payloads[np.uint64(at + 5)])]
        ^ tables[np.uint64(256) + np.uint64(payloads[np.uint64(at + 6)])]
        ^ tables[np.uint64(payloads[np.uint64(at + 7)])]
    )


@nb.njit(nogil=True, error_model="numpy", _nrt=False)
def _ended(payloads, at, end, crc, tables):
    while at + _STEP <= end:
        crc = _stepped(payloads, at, crc, tables)
        at += _STEP
    while at < end:
        crc = tables[np.uint64((crc ^ np.uint32(payloads[at])) & np.uint32(0xFF))] ^ crc >> np.uint32(8)
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


def _sums_kernel(payloads, lengths, prefixes, tables, found):
    at = 0
    frame = 0
    while frame < lengths.size:
        if frame + 4 > lengths.size:
            end = at + lengths[frame]
            found[frame] = _ended(payloads, at, end, _prefixed(prefixes, frame, tables), tables)
            at = end
            frame += 1
            continue
        # Four at a time: a step waits for the one before it, and memory has time for three others.
        second = at + lengths[frame]
        third = second + lengths[frame + 1]
        fourth = third + lengths[frame + 2]
        end = fourth + lengths[frame + 3]
        one, two = _prefixed(prefixes, frame, tables), _prefixed(prefixes, frame + 1, tables)
        three, four = _prefixed(prefixes, frame + 2, tables), _prefixed(prefixes, frame + 3, tables)
        together = min(min(second - at, third - second), min(fourth - third, end - fourth)) // _STEP * _STEP
        for place in range(0, together, _STEP):
            one = _stepped(payloads, at + place, one, tables)
            two = _stepped(payloads, second + place, two, tables)
            three = _stepped(payloads, third + place, three, tables)
            four = _stepped(payloads, fourth + place, four, tables)
        found[frame] = _ended(payloads, at + together, second, one, tables)
        found[frame + 1] = _ended(payloads, second + together, third, two, tables)
        found[frame + 2] = _ended(payloads, third + together, fourth, three, tables)
        found[frame + 3] = _ended(payloads, fourth + together, end, four, tables)
        at = end
        frame += 4
