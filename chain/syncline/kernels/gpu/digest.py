"""The digest on the device: a sweep of live frames, and what staged changes add (FORMAT.md, Digest; wire.digest is the plain formula).

Both give two 64-bit sums a frame; sums over frames are the caller's, modulo 2^64 as integers wrap. A frame's units stand in live memory
where its batch says, and count at the positions of their tensor in the chain, which may be laid out differently (a rank's slice).
"""

# pyright: basic, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# Triton compiles these bodies; their annotations are its own

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from syncline.kernels.gpu.batch import FrameBatch, Staged, Walk
from syncline.kernels.gpu.scatter import place_of
from syncline.wire import digest as wire
from syncline.wire.limits import FRAME_MAX_UNITS
from syncline.wire.tiling import Frame

A1 = tl.constexpr(wire.A1)
A2 = tl.constexpr(wire.A2)
B1 = tl.constexpr(wire.B1)
B2 = tl.constexpr(wire.B2)
H1 = tl.constexpr(wire.H1)
H2 = tl.constexpr(wire.H2)
M1 = tl.constexpr(wire.M1)
M2 = tl.constexpr(wire.M2)
_BLOCK = 1024
_SPAN = 1 << 17
"""Words of a frame that one program sweeps."""
_SLOTS_A_PROGRAM = 4096
_SPLIT_MAX = 64
_ROWS = 128
"""Vectors of 16 bytes that it reads at a time: one a thread."""


@dataclass(frozen=True, slots=True)
class TensorPlaces:
    """Where the frames of a batch stand in the chain's tensors."""

    seeds: Tensor
    """int64[frames, 2]: the two seeds of each frame's tensor."""
    bases: Tensor
    """int64."""
    lengths: Tensor
    """int32."""
    strides: Tensor
    """int64."""
    flat: bool
    """Each frame is one run of its tensor."""

    @classmethod
    def of(cls, frames: Sequence[tuple[tuple[int, int], Frame]], device: torch.device) -> Self:
        """Frames in the order of their batch, each with its tensor's seeds."""
        bases = torch.tensor([f.base for _, f in frames], dtype=torch.int64, device=device)
        strides = torch.tensor([f.stride for _, f in frames], dtype=torch.int64, device=device)
        lengths = torch.tensor([f.length for _, f in frames], dtype=torch.int32, device=device)
        seeds = torch.tensor([seed for seed, _ in frames], dtype=torch.int64, device=device)
        return cls(seeds, bases, lengths, strides, all(f.runs == 1 for _, f in frames))


def sweep(batch: FrameBatch, places: TensorPlaces) -> Tensor:
    """int64[frames, 2]: digest of what each frame holds in live memory. Queued on the current stream; scratch: the result."""
    sums = torch.zeros(batch.count, 2, dtype=torch.int64, device=batch.device)
    size = batch.anchor.element_size()
    words = _words(batch.anchor)
    if batch.count and places.flat and batch.walk == Walk.FLAT:
        _sweep_run[(batch.count, FRAME_MAX_UNITS * (2 if size == 8 else 1) // _SPAN)](
            words, batch.bases, batch.units, places.seeds, places.bases, sums,
            SIZE=size, ROWS=_ROWS, SPAN=_SPAN, num_warps=4,
        )  # fmt: skip
    elif batch.count:
        _sweep[(batch.count, FRAME_MAX_UNITS // _SPAN)](
            words, batch.bases, batch.lengths, batch.strides, batch.units,
            places.seeds, places.bases, places.lengths, places.strides, sums, SIZE=size, BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip
    return sums


def change_digest(batch: FrameBatch, staged: Staged, places: TensorPlaces) -> Tensor:
    """int64[frames, 2]: what writing each frame's changes adds to its tensor's digest."""
    sums = torch.zeros(batch.count, 2, dtype=torch.int64, device=batch.device)
    if batch.count:
        _changes[(batch.count, _split(staged.positions.numel(), batch.count))](
            staged.firsts, staged.changed, staged.positions, _words(staged.old), _words(staged.new),
            places.seeds, places.bases, places.lengths, places.strides, sums,
            SIZE=batch.anchor.element_size(), BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip
    return sums


def _split(slots: int, frames: int) -> int:
    """Programs that share a frame's changes: about one for every 4096."""
    return min(max(slots // (_SLOTS_A_PROGRAM * max(frames, 1)), 1), _SPLIT_MAX)


def _words(units: Tensor) -> Tensor:
    return units.view(torch.int32) if units.element_size() == 8 else units


@triton.jit
def _mixed(x, MULTIPLIER: tl.constexpr):
    x = x ^ (x >> 16)
    x = x * tl.full(x.shape, MULTIPLIER, tl.uint32)
    return x ^ (x >> 15)


@triton.jit
def _terms(x1, x2):
    """Both lanes' terms of words, from the two sums that their bits and positions make."""
    x1, x2 = _mixed(x1, M1), _mixed(x2, M2)
    wide1, wide2 = x1.to(tl.uint64), x2.to(tl.uint64)
    return (wide2 << 32) | wide1, wide1 * wide2


@triton.jit
def _term(place, bits, seed1, seed2):
    """Both lanes' terms of words `bits` at int64 word positions."""
    low, high = place.to(tl.uint32), (place >> 32).to(tl.uint32)
    return _terms(low * A1 + high * H1 + bits * B1 + seed1, low * A2 + high * H2 + bits * B2 + seed2)


@triton.jit
def _bits(words, SIZE: tl.constexpr):
    """Words as unsigned 32-bit integers."""
    wide = words.to(tl.int32)
    if SIZE == 1:
        wide = wide & 0xFF
    elif SIZE == 2:
        wide = wide & 0xFFFF
    return wide.to(tl.uint32, bitcast=True)


@triton.jit
def _sweep_run(
    anchor, bases, counts, seeds, tensor_bases, sums, SIZE: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr
):  # fmt: skip
    """A span of a frame that is one run at 16-byte boundaries, and one run of its tensor: a vector of 16 bytes a thread.

    Within a block a position's own share of the sums is a constant of its place; only the block's is added.
    """
    SHARE: tl.constexpr = 4 // SIZE if SIZE < 4 else 1
    HALVES: tl.constexpr = 2 if SIZE == 8 else 1
    VECTOR: tl.constexpr = 4 * SHARE
    frame = tl.program_id(0)
    words = tl.load(counts + frame) * HALVES
    first = tl.load(tensor_bases + frame) * HALVES
    base = tl.load(bases + frame) * HALVES // VECTOR
    seed1 = tl.load(seeds + 2 * frame).to(tl.uint32)
    seed2 = tl.load(seeds + 2 * frame + 1).to(tl.uint32)
    pointer = anchor.to(tl.pointer_type(tl.int32))
    row = tl.arange(0, ROWS)
    column = tl.arange(0, 4)[None, :]
    inside = row[:, None] * VECTOR + column * SHARE
    share1, share2 = inside.to(tl.uint32) * A1, inside.to(tl.uint32) * A2
    lane1 = tl.zeros((ROWS,), tl.uint64)
    lane2 = tl.zeros((ROWS,), tl.uint64)
    at = tl.program_id(1) * SPAN
    stop = tl.minimum(at + SPAN, words)
    while at < stop:
        place = first + at
        vector = base + at // VECTOR + row
        there = at + row * VECTOR < stop
        fours = tl.load(pointer + (vector * 4)[:, None] + column, mask=there[:, None], other=0)
        fours = fours.to(tl.uint32, bitcast=True)
        plain = (at + ROWS * VECTOR <= stop) & ((place >> 32) == ((place + ROWS * VECTOR - 1) >> 32))
        low, high = place.to(tl.uint32), (place >> 32).to(tl.uint32)
        add1, add2 = low * A1 + high * H1 + seed1, low * A2 + high * H2 + seed2
        for part in tl.static_range(SHARE):
            bits = fours if SIZE >= 4 else (fours >> (8 * SIZE * part)) & ((1 << (8 * SIZE)) - 1)
            if plain:
                term1, term2 = _terms(share1 + add1 + bits * B1, share2 + add2 + bits * B2)
                add1, add2 = add1 + A1, add2 + A2
            else:
                term1, term2 = _term(place + part + inside, bits, seed1, seed2)
                term1, term2 = tl.where(there[:, None], term1, 0), tl.where(there[:, None], term2, 0)
            lane1 += tl.sum(term1, 1)
            lane2 += tl.sum(term2, 1)
        at += ROWS * VECTOR
    tl.atomic_add(sums + 2 * frame, tl.sum(lane1, 0).to(tl.int64, bitcast=True))
    tl.atomic_add(sums + 2 * frame + 1, tl.sum(lane2, 0).to(tl.int64, bitcast=True))


@triton.jit
def _sweep(
    anchor, bases, lengths, strides, counts, seeds, tensor_bases, tensor_lengths, tensor_strides, sums,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Frames of any geometry, unit by unit."""
    HALVES: tl.constexpr = 2 if SIZE == 8 else 1
    frame = tl.program_id(0)
    base, length, stride = tl.load(bases + frame), tl.load(lengths + frame), tl.load(strides + frame)
    units = tl.load(counts + frame)
    seed1 = tl.load(seeds + 2 * frame).to(tl.uint32)
    seed2 = tl.load(seeds + 2 * frame + 1).to(tl.uint32)
    tensor_base = tl.load(tensor_bases + frame)
    tensor_length, tensor_stride = tl.load(tensor_lengths + frame), tl.load(tensor_strides + frame)
    lane1 = tl.zeros((BLOCK,), tl.uint64)
    lane2 = tl.zeros((BLOCK,), tl.uint64)
    at = tl.program_id(1) * BLOCK
    while at < units:
        unit = at + tl.arange(0, BLOCK)
        there = unit < units
        where = place_of(unit, base, length, stride)
        place = place_of(unit, tensor_base, tensor_length, tensor_stride)
        for half in tl.static_range(HALVES):
            words = tl.load(anchor + where * HALVES + half, mask=there, other=0)
            term1, term2 = _term(place * HALVES + half, _bits(words, SIZE), seed1, seed2)
            lane1 += tl.where(there, term1, 0)
            lane2 += tl.where(there, term2, 0)
        at += tl.num_programs(1) * BLOCK
    tl.atomic_add(sums + 2 * frame, tl.sum(lane1, 0).to(tl.int64, bitcast=True))
    tl.atomic_add(sums + 2 * frame + 1, tl.sum(lane2, 0).to(tl.int64, bitcast=True))


@triton.jit
def _changes(
    firsts, changes, positions, olds, news, seeds, tensor_bases, tensor_lengths, tensor_strides, sums,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    HALVES: tl.constexpr = 2 if SIZE == 8 else 1
    frame = tl.program_id(0)
    first, changed = tl.load(firsts + frame), tl.load(changes + frame)
    seed1 = tl.load(seeds + 2 * frame).to(tl.uint32)
    seed2 = tl.load(seeds + 2 * frame + 1).to(tl.uint32)
    base, length, stride = (
        tl.load(tensor_bases + frame),
        tl.load(tensor_lengths + frame),
        tl.load(tensor_strides + frame),
    )
    lane1 = tl.zeros((BLOCK,), tl.uint64)
    lane2 = tl.zeros((BLOCK,), tl.uint64)
    at = tl.program_id(1) * BLOCK
    while at < changed:
        slot = first + at + tl.arange(0, BLOCK)
        there = at + tl.arange(0, BLOCK) < changed
        place = place_of(tl.load(positions + slot, mask=there, other=0), base, length, stride)
        for half in tl.static_range(HALVES):
            old = _bits(tl.load(olds + slot * HALVES + half, mask=there, other=0), SIZE)
            new = _bits(tl.load(news + slot * HALVES + half, mask=there, other=0), SIZE)
            old1, old2 = _term(place * HALVES + half, old, seed1, seed2)
            new1, new2 = _term(place * HALVES + half, new, seed1, seed2)
            lane1 += tl.where(there, new1 - old1, 0)
            lane2 += tl.where(there, new2 - old2, 0)
        at += tl.num_programs(1) * BLOCK
    tl.atomic_add(sums + 2 * frame, tl.sum(lane1, 0).to(tl.int64, bitcast=True))
    tl.atomic_add(sums + 2 * frame + 1, tl.sum(lane2, 0).to(tl.int64, bitcast=True))
