"""What the kernels of this package that read deltas mean, in plain torch and Python integers: slow, and the specification in code.

Tests compare bit for bit (a frame's staged changes in any order); nothing else calls this module.
"""

# pyright: basic
# torch does not say what a tensor's list holds

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from syncline.kernels.clock import (
    COUNT,
    DONE,
    ESCAPE,
    NIBBLES,
    NO_MOVE,
    RANGE,
    SIGNED,
    TAIL,
    VALUE_BITS,
    WORDS,
    Alphabet,
)
from syncline.kernels.gpu.arrange import RUN
from syncline.kernels.gpu.batch import PIECE_BYTES, CodedFrames, DeviceTable, FrameBatch, Staged
from syncline.kernels.gpu.digest import TensorPlaces
from syncline.wire.digest import Digest, term, total


class LaneFault(Exception):
    """A lane stopped; the argument says why."""


@dataclass(slots=True)
class Lane:
    """One rANS state and the words that it has not read yet."""

    words: list[int]
    state: int = 0
    at: int = 0

    def refill(self) -> None:
        while self.state < 1 << 32 and self.at < len(self.words):
            self.state = self.state << 16 | self.words[self.at]
            self.at += 1

    def step(self, frequency: int, start: int, bits: int) -> None:
        self.state = frequency * (self.state >> bits) + self.state % (1 << bits) - start
        self.refill()

    def raw(self, bits: int) -> int:
        value = self.state % (1 << bits)
        self.step(1, value, bits)
        return value


def decode(batch: FrameBatch, coded: CodedFrames, staged: Staged) -> Tensor:
    """As `decode.decode`, lane by lane."""
    status: list[int] = []
    payload = bytes(coded.payload.tolist())
    lanes = coded.lanes
    for frame, old in enumerate(frame_units(batch)):
        changes: list[tuple[int, int, int]] = []
        worst = DONE
        for number in range(lanes):
            start, words = (int(t[frame * lanes + number]) for t in (coded.starts, coded.words))
            part = payload[start : start + 2 * words]
            lane = Lane([int.from_bytes(part[i : i + 2], "little") for i in range(0, len(part), 2)])
            try:
                _decode_lane(lane, old, (number, lanes), coded, changes)
            except LaneFault as fault:
                worst = max(worst, fault.args[0])
        changed, first = int(coded.changed[frame]), int(staged.firsts[frame])
        status.append(COUNT if worst == DONE and len(changes) != changed else worst)
        for slot, (position, before, after) in enumerate(changes[:changed], first):
            staged.positions[slot] = position
            staged.old[slot] = _signed(before, coded.alphabet.bits)
            staged.new[slot] = _signed(after, coded.alphabet.bits)
    return torch.tensor(status, dtype=torch.int32)


def arrange(staged: Staged) -> None:
    """As `arrange.arrange`."""
    for first, changed in zip(staged.firsts.tolist(), staged.changed.tolist(), strict=True):
        for at in range(first, first + changed, RUN):
            run = slice(at, min(at + RUN, first + changed))
            order = staged.positions[run].argsort()
            for part in (staged.positions, staged.old, staged.new):
                part[run] = part[run][order]


def scatter(batch: FrameBatch, staged: Staged, *, back: bool = False) -> None:
    """As `scatter.scatter`, or `scatter.undo` where `back`."""
    for slots, places in _slots(batch, staged):
        batch.anchor[places] = (staged.old if back else staged.new)[slots]


def count_missing(batch: FrameBatch, staged: Staged) -> int:
    """As `scatter.count_missing`, for positions inside their frames."""
    return sum(int((batch.anchor[places] != staged.new[slots]).sum()) for slots, places in _slots(batch, staged))


def sweep(batch: FrameBatch, places: TensorPlaces) -> list[Digest]:
    """As `digest.sweep`."""
    return [
        total(_term(places, frame, position, bits, batch) for position, bits in enumerate(units))
        for frame, units in enumerate(frame_units(batch))
    ]


def change_digest(batch: FrameBatch, staged: Staged, places: TensorPlaces) -> list[Digest]:
    """As `digest.change_digest`."""
    bits = 8 * batch.anchor.element_size()
    sums: list[Digest] = []
    for frame, (slots, _) in enumerate(_slots(batch, staged)):
        changes = zip(*(t[slots].tolist() for t in (staged.positions, staged.old, staged.new)), strict=True)
        sums.append(
            total(
                _term(places, frame, p, new % (1 << bits), batch) - _term(places, frame, p, old % (1 << bits), batch)
                for p, old, new in changes
            )
        )
    return sums


def frame_units(batch: FrameBatch) -> list[list[int]]:
    """The bits of each frame, in the order of its positions."""
    bits = 8 * batch.anchor.element_size()
    rows: list[list[int]] = []
    for frame in range(batch.count):
        positions = torch.arange(int(batch.units[frame]))
        rows.append([unit % (1 << bits) for unit in batch.anchor[_places(batch, frame, positions)].tolist()])
    return rows


def _decode_lane(
    lane: Lane, old: list[int], share_of: tuple[int, int], coded: CodedFrames, changes: list[tuple[int, int, int]]
) -> None:
    alphabet, table = coded.alphabet, coded.table
    z = table.zone_bits
    zone, horizon, slots = 1 << z, 4 << z, 16 << z
    widths = table.widths.tolist()
    number, lanes = share_of
    piece = 8 * PIECE_BYTES // alphabet.bits
    lane.refill()
    clock = 0
    for position in [p for p in range(len(old)) if p // piece % lanes == number]:
        unit = old[position]
        context = unit >> alphabet.shift & alphabet.mask
        end = clock + widths[context]
        while end > _target(lane.state % slots, z):
            if lane.state % slots < zone:
                lane.step(zone, 0, z + 4)
                end -= horizon
                clock = 0
                continue
            lane.step(_share(min(end, horizon), z) - _share(clock, z), _share(clock, z), z + 4)
            changes.append((position, unit, _changed(lane, unit, context, alphabet, table)))
            end = 0
            break
        clock = end
    if clock > 0:
        if lane.state % slots >= zone:
            raise LaneFault(TAIL)
        lane.step(zone, 0, z + 4)
    if lane.state or lane.at < len(lane.words):
        raise LaneFault(WORDS)


def _changed(lane: Lane, unit: int, context: int, alphabet: Alphabet, table: DeviceTable) -> int:
    """New bits of a unit, read from its value list and the raw bits behind."""
    bits = alphabet.bits
    symbol = _symbol(lane, int(table.lists[context]), table)
    if symbol == ESCAPE:
        new = sum(lane.raw(min(16, bits - low)) << low for low in range(0, bits, 16))
        if new == unit:
            raise LaneFault(NO_MOVE)
        return new
    if alphabet.order == NIBBLES:
        low = _flip(_flip(unit % 16, 4) + symbol, 4)
        return _flip(_flip(unit >> 4, 4) + (symbol >> 4), 4) << 4 | low
    if bits == 8:
        moved = (_flip(unit, 8) if alphabet.order == SIGNED else unit) + symbol
        return _flip(moved, 8) if alphabet.order == SIGNED else moved % 256
    if symbol <= 16:
        step, back = (symbol + 1) >> 1, (symbol - 1) & 1
    elif symbol <= 29:
        raw = lane.raw(symbol - 13)
        step, back = (1 << symbol - 14) + (raw >> 1) + 1, raw & 1
    else:
        raise LaneFault(RANGE)
    top = 1 << (bits - 1)
    signed = alphabet.order == SIGNED
    place = (-1 - unit % top if unit >= top else unit) if signed else unit
    place += -step if back else step
    if not (-top <= place < top if signed else 0 <= place < 2 * top):
        raise LaneFault(RANGE)
    return top - 1 - place if signed and place < 0 else place


def _symbol(lane: Lane, where: int, table: DeviceTable) -> int:
    slot = lane.state % (1 << VALUE_BITS)
    entry = where >> 8
    while True:
        start, frequency, symbol = _entry(int(table.entries[entry]))
        if slot < start + frequency:
            lane.step(frequency, start, VALUE_BITS)
            return symbol
        entry += 1


def _entry(packed: int) -> tuple[int, int, int]:
    return packed >> 20 & 0xFFF, (packed >> 8 & 0xFFF) + 1, packed & 0xFF


def _flip(code: int, bits: int) -> int:
    """Sign-magnitude to integer order and back, modulo 2^bits."""
    code %= 1 << bits
    return code ^ ((1 << (bits - 1)) - 1) if code >> (bits - 1) else code


def _share(tick: int, z: int) -> int:
    zone = min(tick >> z, 3)
    return (17 - (16 >> zone) << z) + (tick - (zone << z)) * (8 >> zone)


def _target(slot: int, z: int) -> int:
    if slot < 1 << z:
        return (4 << z) - 1
    zone = max(k for k in range(4) if slot >= 17 - (16 >> k) << z)
    return (zone << z) + (slot - (17 - (16 >> zone) << z) >> 3 - zone)


def _places(batch: FrameBatch, frame: int, positions: Tensor) -> Tensor:
    base, length, stride = (int(t[frame]) for t in (batch.bases, batch.lengths, batch.strides))
    wide = positions.to(torch.int64)
    return base + wide // length * stride + wide % length


def _slots(batch: FrameBatch, staged: Staged) -> list[tuple[slice, Tensor]]:
    """Each frame's slots, and the places that they name."""
    found: list[tuple[slice, Tensor]] = []
    for frame, (first, changed) in enumerate(zip(staged.firsts.tolist(), staged.changed.tolist(), strict=True)):
        slots = slice(first, first + changed)
        found.append((slots, _places(batch, frame, staged.positions[slots])))
    return found


def _term(places: TensorPlaces, frame: int, position: int, bits: int, batch: FrameBatch) -> Digest:
    base, length, stride = (int(t[frame]) for t in (places.bases, places.lengths, places.strides))
    seed = (int(places.seeds[frame, 0]), int(places.seeds[frame, 1]))
    place = base + position // length * stride + position % length
    return term(seed, place, bits, batch.anchor.element_size())


def _signed(unit: int, bits: int) -> int:
    return unit - (1 << bits) if bits > 8 and unit >> (bits - 1) else unit
