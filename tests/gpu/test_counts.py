"""What the counting kernel sees in frames, against plain sums."""

from __future__ import annotations

import pytest
import torch

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.kernels.gpu import reference_encode as plain
from syncline.kernels.gpu.batch import UNIT_TYPES, FrameBatch
from syncline.kernels.gpu.counts import DeviceCounts, count
from syncline.wire.tiling import Frame

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", sorted(ALPHABETS))
def test_counts_are_those_of_plain_sums(dtype: str) -> None:
    alphabet = ALPHABETS[dtype]
    kind = UNIT_TYPES[alphabet.bits]
    draw = torch.Generator().manual_seed(alphabet.bits)
    frames = [Frame(3, 4, 31, 100), Frame(34, 4, 31, 100), Frame(410, 1, 1100, 1100)]
    old = torch.randint(0, 1 << alphabet.bits, (1600,), generator=draw).to(kind)
    far = torch.randint(0, 1 << alphabet.bits, (1600,), generator=draw).to(kind)
    near = (old + torch.randint(-20, 21, (1600,), generator=draw)).to(kind)
    pick = torch.randint(0, 8, (1600,), generator=draw)
    new = torch.where(pick == 0, far, torch.where(pick < 3, near, old))
    counts = DeviceCounts.none(CPU)
    placed = [(0, frame) for frame in frames]
    for part in (placed[:1], placed[1:]):
        count(FrameBatch.of([old], part), FrameBatch.of([new], part), alphabet, counts)
    units = torch.zeros(256, dtype=torch.int64)
    symbols = torch.zeros(256, 256, dtype=torch.int64)
    for frame in frames:
        seen, changed = plain.count(plain.units_of(old, frame), plain.units_of(new, frame), alphabet)
        units += seen
        symbols += changed
    assert torch.equal(units, counts.units)
    assert torch.equal(symbols, counts.symbols)
    assert int(symbols.sum()) > 300


def test_counting_takes_the_same_frames_of_both() -> None:
    flat = torch.zeros(64, dtype=torch.int16)
    one = FrameBatch.of([flat], [(0, Frame(0, 1, 32, 32))])
    two = FrameBatch.of([flat], [(0, Frame(0, 1, 32, 32)), (0, Frame(32, 1, 32, 32))])
    with pytest.raises(ValueError, match="1 old frames, 2 new ones"):
        count(one, two, ALPHABETS["BF16"], DeviceCounts.none(CPU))
