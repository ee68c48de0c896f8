"""Write the corpus's seeds: well-formed inputs of both targets. `python -m fuzz.make_corpus`"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np

from fuzz.targets import TILING, UNITS, base, weights
from syncline.codecs.base import FrameChange
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec
from syncline.codecs.context.counts import Counts, count_symbols, count_units
from syncline.codecs.context.fitting import fit
from syncline.delta import CodecChoice, DeltaEncoder


def moved(old: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Most changes by one, some by anything."""
    random = np.random.default_rng(seed)
    step = np.where(random.random(old.size) < 0.9, 1, random.integers(1, 200, old.size)).astype(old.dtype)
    return np.where(random.random(old.size) < share, old + step, old)


def contexts() -> Iterator[bytes]:
    """A frame of every dtype, with one lane and with two."""
    for number, dtype in enumerate(sorted(ALPHABETS)):
        old = base(dtype)
        change = FrameChange.between(old, moved(old, 0.02, number))
        alphabet = ALPHABETS[dtype]
        counts = Counts.none()
        counts.units[:] += count_units(alphabet, old)
        count_symbols(alphabet, change.before, change.after, counts.symbols)
        table = fit(counts, alphabet, exact=number % 2 == 0)
        for beyond in (0, 5):
            payload = ContextCodec(table, alphabet, 10 + beyond).encode(change)
            head = bytes([number, beyond]) + (change.positions.size - 1).to_bytes(2, "little")
            yield head + len(table.data).to_bytes(2, "little") + table.data + payload
    assert UNITS >> 10 == 2


def chunks() -> Iterator[bytes]:
    """A delta of all tensors under each codec."""
    table, old = weights()
    for codec in ("raw", "sparse", "xor-zstd", "xor-lz4", "context", None):
        made: list[bytes] = []
        encoder = DeltaEncoder(
            table,
            TILING,
            nonce=lambda: bytes(16),
            sink=lambda _, data, made=made: made.append(data),
            choice=CodecChoice(forced=codec),
        )
        for tensor, flat in enumerate(old):
            encoder.add(tensor, flat, moved(flat, 0.02, tensor))
        encoder.finish()
        yield from made


def main() -> None:
    """Write what is not there yet; what fuzzing found stays."""
    for name, inputs in (("context", contexts()), ("chunk", chunks())):
        folder = Path(__file__).parent / "corpus" / name
        folder.mkdir(parents=True, exist_ok=True)
        for data in inputs:
            (folder / blake2b(data, digest_size=8).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    main()
