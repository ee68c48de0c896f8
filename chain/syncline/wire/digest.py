"""The digest: what *proven* means (DESIGN section 5).

A 128-bit sum, free of order, over (tensor, position, bits). A changed unit therefore changes the digest by `term(new) - term(old)`, so
the digest of a version is predicted from its changes alone, and ranks sum their parts. It finds accidents, not forgeries: chunks are
named by BLAKE3 and manifests can be signed for that.

Per 32-bit word with bits b at word position p of a tensor whose name hashes to (s1, s2), all modulo 2^32:

    x = p_low * A_i + b * B_i + p_high * H_i + s_i;  x ^= x >> 16;  x *= M_i;  x ^= x >> 15        (i = 1, 2)

and the two 64-bit lanes sum, modulo 2^64,  lane1 += x2 << 32 | x1,  lane2 += x1 * x2.  A unit of 1, 2 or 4 bytes is one word; one of
8 bytes is two, low word first, at positions 2p and 2p + 1. For a fixed position both x are bijections of b, so one changed unit always
changes lane 1; 32-bit arithmetic keeps a sweep near memory speed on a GPU. This module is the plain reference; kernels.digest is fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3

A1, A2 = 0x9E3779B1, 0x85EBCA77
B1, B2 = 0xC2B2AE3D, 0x27D4EB2F
H1, H2 = 0x165667B1, 0xD3A2646D
M1, M2 = 0x7FEB352D, 0x846CA68B
MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Digest:
    """A pair of 64-bit lanes; digests add and subtract lane by lane modulo 2^64."""

    lane1: int = 0
    lane2: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest((self.lane1 + other.lane1) & MASK64, (self.lane2 + other.lane2) & MASK64)

    def __sub__(self, other: Digest) -> Digest:
        return Digest((self.lane1 - other.lane1) & MASK64, (self.lane2 - other.lane2) & MASK64)

    def to_bytes(self) -> bytes:
        """16 bytes: lane 1, lane 2, little-endian."""
        return self.lane1.to_bytes(8, "little") + self.lane2.to_bytes(8, "little")

    @classmethod
    def from_bytes(cls, data: bytes) -> Digest:
        if len(data) != 16:
            raise ValueError(f"a digest has 16 bytes, not {len(data)}")
        return cls(int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little"))

    @property
    def hex(self) -> str:
        """32 lower-case hex digits of `to_bytes`."""
        return self.to_bytes().hex()

    @classmethod
    def from_hex(cls, text: str) -> Digest:
        return cls.from_bytes(bytes.fromhex(text))


def total(digests: Iterable[Digest]) -> Digest:
    """Sum of digests."""
    result = Digest()
    for digest in digests:
        result = result + digest
    return result


def seeds(tensor_name: str) -> tuple[int, int]:
    """(s1, s2): the first eight bytes of BLAKE3 of the (owner's) tensor name, as two little-endian 32-bit integers."""
    raw = blake3(tensor_name.encode("utf-8")).digest(length=8)
    return int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:], "little")


def term(seed: tuple[int, int], position: int, bits: int, unit_bytes: int = 2) -> Digest:
    """What one unit adds to its tensor's digest."""
    if unit_bytes == 8:
        return _word(seed, 2 * position, bits & MASK32) + _word(seed, 2 * position + 1, bits >> 32)
    return _word(seed, position, bits)


def _word(seed: tuple[int, int], position: int, bits: int) -> Digest:
    low, high = position & MASK32, position >> 32
    x1 = (low * A1 + bits * B1 + high * H1 + seed[0]) & MASK32
    x1 ^= x1 >> 16
    x1 = x1 * M1 & MASK32
    x1 ^= x1 >> 15
    x2 = (low * A2 + bits * B2 + high * H2 + seed[1]) & MASK32
    x2 ^= x2 >> 16
    x2 = x2 * M2 & MASK32
    x2 ^= x2 >> 15
    return Digest(x2 << 32 | x1, x1 * x2)
