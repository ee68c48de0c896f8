"""What the encoder's kernels mean, in plain torch and Python integers, a lane after the other. Tests compare bit for bit.

Nothing else calls this module, and it launches no kernel.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

import torch
from torch import Tensor

from syncline.kernels.clock import ESCAPE, NIBBLES, SIGNED, VALUE_BITS, Alphabet
from syncline.kernels.gpu.batch import DeviceTable
from syncline.wire.tiling import Frame

_STATE_BITS = 48
Step = tuple[int, int, int]
"""Frequency, start, bits: `frequency` slots out of 2^bits, from `start` on."""


def units_of(flat: Tensor, frame: Frame) -> Tensor:
    """A frame's units in position order, as int64 without a sign; `flat` is a tensor's integer view."""
    positions = torch.arange(frame.units, device=flat.device)
    places = frame.base + positions // frame.length * frame.stride + positions % frame.length
    return flat[places].to(torch.int64) & (1 << 8 * flat.element_size()) - 1


def lane_of(units: Tensor, lane: int, lanes: int, piece: int) -> Tensor:
    """The units of the pieces that are dealt to a lane."""
    positions = torch.arange(units.numel(), device=units.device)
    return units[positions // piece % lanes == lane]


def encode_frame(
    old: Tensor, new: Tensor, alphabet: Alphabet, table: DeviceTable, lanes: int
) -> list[list[int]] | None:
    """Words of each lane in the order in which a decoder reads them; None where the table has no code for a change."""
    coded: list[list[int]] = []
    for lane in range(lanes):
        steps = _steps(
            lane_of(old, lane, lanes, alphabet.piece), lane_of(new, lane, lanes, alphabet.piece), alphabet, table
        )
        if steps is None:
            return None
        coded.append(_words(steps))
    return coded


def payload(words: list[list[int]]) -> bytes:
    """A frame's payload from its lanes' words."""
    lengths = bytearray()
    for lane in words[:-1]:
        value = len(lane)
        while value >= 0x80:
            lengths.append(value & 0x7F | 0x80)
            value >>= 7
        lengths.append(value)
    return bytes(lengths) + b"".join(word.to_bytes(2, "little") for lane in words for word in lane)


def symbol(old: int, new: int, alphabet: Alphabet) -> tuple[int, int, int]:
    """Symbol, raw value and raw bits of a change."""
    if alphabet.order == NIBBLES:
        low = (_place(new & 15, 4) - _place(old & 15, 4)) % 16
        high = (_place(new >> 4, 4) - _place(old >> 4, 4)) % 16
        return high << 4 | low, 0, 0
    step = new - old
    if alphabet.order == SIGNED:
        step = _place(new, alphabet.bits) - _place(old, alphabet.bits)
    if alphabet.bits == 8:
        return step % 256, 0, 0
    size, sign = abs(step) - 1, int(step < 0)
    if size < 8:
        return 1 + 2 * size + sign, 0, 0
    k = size.bit_length() - 1
    if k > 15:
        return ESCAPE, new, alphabet.bits
    return 14 + k, (size - (1 << k)) * 2 + sign, k + 1


def count(old: Tensor, new: Tensor, alphabet: Alphabet) -> tuple[Tensor, Tensor]:
    """Units of each context, int64[256]; symbols of the changed ones in each, int64[256, 256]."""
    contexts = old >> alphabet.shift & alphabet.mask
    symbols = torch.zeros(256, 256, dtype=torch.int64)
    for at in torch.nonzero(old != new).flatten().tolist():
        symbols[int(contexts[at]), symbol(int(old[at]), int(new[at]), alphabet)[0]] += 1
    return torch.bincount(contexts, minlength=256).cpu(), symbols


def _place(bits: int, width: int) -> int:
    """Sign-magnitude order."""
    top = 1 << width - 1
    return bits if bits < top else -1 - (bits - top)


def _share(tick: int, zone_bits: int) -> int:
    zone = min(tick >> zone_bits, 3)
    rest = tick - (zone << zone_bits)
    return (1 << zone_bits) + (16 - (16 >> zone) << zone_bits) + rest * (8 >> zone)


def _steps(old: Tensor, new: Tensor, alphabet: Alphabet, table: DeviceTable) -> list[Step] | None:
    """A lane's steps in the decoder's order."""
    z = table.zone_bits
    horizon = 4 << z
    miss = (1 << z, 0, z + 4)
    contexts = old >> alphabet.shift & alphabet.mask
    ticks = table.widths[contexts].to(torch.int64)
    ends = torch.cumsum(ticks, 0)
    codes = table.codes.cpu()
    steps: list[Step] = []
    passed = 0
    for at in torch.nonzero(old != new).flatten().tolist():
        end, width = int(ends[at]), int(ticks[at])
        row = (int(table.lists[contexts[at]]) & 255) * 256
        name, raw, bits = symbol(int(old[at]), int(new[at]), alphabet)
        code = int(codes[row + name])
        if not code:
            code, raw, bits = int(codes[row + ESCAPE]), int(new[at]), alphabet.bits
        if not code or not width:
            return None
        misses, clock = divmod(end - width - passed, horizon)
        close = clock + width
        if close > horizon and horizon - clock < close - horizon:
            misses, clock, close = misses + 1, 0, close - horizon
        first = _share(clock, z)
        steps += [miss] * misses
        steps.append((_share(min(close, horizon), z) - first, first, z + 4))
        steps.append((code & 0xFFFF, code >> 16, VALUE_BITS))
        for low in range(0, bits, 16):
            part = min(16, bits - low)
            steps.append((1, raw >> low & (1 << part) - 1, part))
        passed = end
    rest = (int(ends[-1]) if ends.numel() else 0) - passed
    return steps + [miss] * -(-rest // horizon)


def _words(steps: list[Step]) -> list[int]:
    """rANS over the steps, last to first, from state 0."""
    words: list[int] = []
    x = 0
    for frequency, start, bits in reversed(steps):
        while x >= frequency << _STATE_BITS - bits:
            words.append(x & 0xFFFF)
            x >>= 16
        x = (x // frequency << bits) + x % frequency + start
    while x:
        words.append(x & 0xFFFF)
        x >>= 16
    return words[::-1]
