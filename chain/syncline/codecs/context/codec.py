"""Frames under one table. A codec of this module is bound to a table, an alphabet and a lane shift; `registry` binds it for a section."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.base import FrameChange, Placed, Uncodable, Units, UnitType
from syncline.codecs.context.table import ContextTable
from syncline.errors import FormatInvalid, FrameCorrupt
from syncline.kernels import clock, clock_decoding, clock_encoding
from syncline.kernels.clock import Alphabet
from syncline.wire.limits import CODEC_CONTEXT
from syncline.wire.varint import put_varint

LANES_MAX = 32
LANE_SHIFT_MIN, LANE_SHIFT_USUAL, LANE_SHIFT_MAX = 10, 15, 30
_WORDS_A_CHANGE = 6
"""At most: 24 + 12 + 32 bits, and what a state holds."""
FAULTS = {
    clock.COUNT: "it does not hold the number of changes that was promised",
    clock.WORDS: "its words do not end where its units end",
    clock.NO_MOVE: "a unit already holds its new bits",
    clock.RANGE: "a step leaves the range of its dtype",
    clock.TAIL: "a lane ends inside a change",
}


def lanes_of(units: int, lane_shift: int) -> int:
    """Coders that share a frame of `units`: the largest power of two up to units >> lane_shift, 1 to 32."""
    most = min(units >> lane_shift, LANES_MAX)
    return 1 << most.bit_length() - 1 if most else 1


def lane_shift(changed: int, units: int) -> int:
    """Lanes as short as 32,768 units, for many threads to share a frame, but of 400 changes: a lane costs three bytes."""
    shift = LANE_SHIFT_USUAL
    while shift < LANE_SHIFT_MAX and changed << shift < 400 * units:
        shift += 1
    return shift


def read_params(params: bytes, *, what: str) -> tuple[int, int]:
    """Number of the table and lane shift, from a section's parameters; FormatInvalid when they are not such."""
    try:
        number, at = _take(memoryview(params), 0)
        (lane_shift,) = params[at:]
    except (FrameCorrupt, ValueError):
        raise FormatInvalid(f"{what} has a section of codec context with parameters {params.hex()!r}") from None
    if not LANE_SHIFT_MIN <= lane_shift <= LANE_SHIFT_MAX:
        raise FormatInvalid(
            f"{what} has a section with lane shift {lane_shift}; {LANE_SHIFT_MIN} to {LANE_SHIFT_MAX} are known"
        )
    return number, lane_shift


@dataclass(frozen=True, slots=True)
class ContextCodec:
    """Payload: see wire/FORMAT.md, `context`."""

    table: ContextTable
    alphabet: Alphabet
    lane_shift: int
    id: int = CODEC_CONTEXT
    name: str = "context"
    seconds_per_unit: float = 0.25e-9
    seconds_per_change: float = 50e-9

    @property
    def shared(self) -> bytes | None:
        return self.table.data

    def params(self, table: int) -> bytes:
        out = bytearray()
        put_varint(out, table)
        out.append(self.lane_shift)
        return bytes(out)

    def encode(self, change: FrameChange) -> bytes:
        """Payload of a frame; Uncodable when the table has no code for one of its changes."""
        alphabet, table = self.alphabet, self.table
        base = change.base()
        lanes = lanes_of(change.units, self.lane_shift)
        clocks, tails = np.empty(change.positions.size, np.int64), np.zeros(lanes, np.int64)
        fullest, misses = clock_encoding.clocks(alphabet)(
            base,
            change.positions,
            table.ticks,
            table.planes,
            table.zone_bits,
            lanes.bit_length() - 1,
            clocks,
            tails,
            *clock_encoding.scratch(alphabet, lanes),
        )
        row = fullest * _WORDS_A_CHANGE + misses + 8
        words = np.empty(lanes * row, np.uint16)
        states, begins = np.empty(lanes, np.int64), np.empty(lanes, np.int64)
        coded = clock_encoding.encode(alphabet)(
            change.positions, change.before, change.after, clocks, tails, table.ticks, table.list_numbers, table.codes,
            table.zone_bits, words, row, states, begins,
        )  # fmt: skip
        if coded == clock.UNCODABLE:
            raise Uncodable
        parts = [words[begin : row * (lane + 1)] for lane, begin in enumerate(begins.tolist())]
        lengths = bytearray()
        for part in parts[:-1]:
            put_varint(lengths, part.size)
        return bytes(lengths) + b"".join(part.tobytes() for part in parts)

    def decode(self, payload: memoryview, frame: Units, *, changed: int) -> None:
        placed = self.place(payload, units=frame.size, dtype=frame.dtype, changed=changed, base=lambda: frame)
        frame[placed.positions] = placed.units

    def place(
        self, payload: memoryview, *, units: int, dtype: UnitType, changed: int, base: Callable[[], Units]
    ) -> Placed:
        table = self.table
        lanes = lanes_of(units, self.lane_shift)
        words, ends = split_lanes(payload, lanes)
        positions, values, old = np.empty(changed, np.uint32), np.empty(changed, dtype), np.empty(changed, dtype)
        outcome, found = clock_decoding.decode(self.alphabet)(
            base(), table.ticks, table.planes, table.list_numbers, table.guides, table.entries, table.zone_bits,
            words, ends, lanes.bit_length() - 1, positions, values, old,
            *clock_decoding.scratch(self.alphabet, lanes, changed),
        )  # fmt: skip
        if outcome != clock.DONE:
            raise FrameCorrupt(f"context: {FAULTS[outcome]} ({found} of {changed} changes read)")
        return Placed(positions, values, old)


def split_lanes(payload: memoryview, lanes: int) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """The words, and where each lane's begin (and the last one's end)."""
    at = 0
    ends = np.zeros(lanes + 1, np.int64)
    for lane in range(lanes - 1):
        length, at = _take(payload, at)
        ends[lane + 1] = ends[lane] + length
    left = len(payload) - at
    if left % 2 or ends[lanes - 1] > left // 2:
        raise FrameCorrupt("context: the lanes are longer than the payload, or a word is cut")
    ends[lanes] = left // 2
    return np.frombuffer(payload, np.dtype("<u2"), offset=at), ends


def _take(payload: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 28, 7):
        if at == len(payload):
            break
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                break
            return value, at
    raise FrameCorrupt("context: a lane's length is not a varint")
