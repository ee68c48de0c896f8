"""The context codec's bytes are the format's and stay as they are, however its loops are written."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from syncline.codecs.base import FrameChange
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec
from syncline.codecs.context.counts import Counts, count_symbols, count_units
from syncline.codecs.context.fitting import fit
from syncline.kernels.clock import Alphabet
from syncline.testing import grpo_a

FRAME = 1 << 17
"""Units: 32 lanes at the smallest shift, and a last frame that is none of whole pieces a lane."""


def sha256_of(alphabet: Alphabet, changes: list[FrameChange]) -> str:
    """Of the table and the payloads, with one lane a frame and with many, with an exact table and with one that knows escapes."""
    counts = Counts.none()
    for change in changes:
        counts.units[:] += count_units(alphabet, change.base())
        count_symbols(alphabet, change.before, change.after, counts.symbols)
    digest = hashlib.sha256()
    for exact in (True, False):
        table = fit(counts, alphabet, exact=exact)
        digest.update(table.data)
        for shift in (10, 14, 30):
            codec = ContextCodec(table, alphabet, shift)
            for change in changes:
                payload = codec.encode(change)
                digest.update(len(payload).to_bytes(4, "little") + payload)
                frame = change.base().copy()
                codec.decode(memoryview(payload), frame, changed=change.positions.size)
                assert np.array_equal(change.whole(), frame)
    return digest.hexdigest()[:16]


def test_the_bytes_of_a_real_step_are_those_of_the_format() -> None:
    old, new = grpo_a.base(), next(grpo_a.steps())
    flat = [np.concatenate([weights[name].reshape(-1) for name in old]) for weights in (old, new)]
    changes = [FrameChange.between(*(part[at : at + FRAME] for part in flat)) for at in range(0, flat[0].size, FRAME)]
    assert "668d1a33d639e229" == sha256_of(ALPHABETS["BF16"], changes)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("BF16", "557e660c7d707025"),
        ("F16", "62511a07ff3fc2ed"),
        ("F32", "d4cfdb9494dc9353"),
        ("F8_E4M3", "e8d5a1783a706f66"),
        ("F4", "2e9039ce85c90ec1"),
        ("U8", "c94c2d4e0ed79d02"),
        ("I16", "8db579050a964d24"),
        ("U32", "3da4376f23cc735c"),
    ],
)
def test_the_bytes_of_random_changes_are_those_of_the_format(dtype: str, expected: str) -> None:
    alphabet = ALPHABETS[dtype]
    changes = []
    for seed, (size, share) in enumerate([(1, 1.0), (15, 0.5), (4099, 0.2), (70_001, 0.01), (40_000, 0.9)]):
        random = np.random.default_rng(seed)
        old = np.frombuffer(random.bytes(size * alphabet.unit.itemsize), alphabet.unit)
        flips = alphabet.unit.type(1) << random.integers(0, alphabet.bits, size).astype(alphabet.unit)
        new = old ^ np.where(random.random(size) < share, flips, alphabet.unit.type(0))
        changes.append(FrameChange.between(old, new))
    assert expected == sha256_of(alphabet, changes)
