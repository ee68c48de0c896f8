"""Decode, order, commit scatter, read-back and digest on one GPU, exact first, then timed: `python bench/gpu_decode.py --json FILE`.

Weights are incompressible: a few distinct frames of an Adam-like step, encoded by the CPU's codec, stand many times over in device memory,
each at a place of its own, so that every byte that is read comes from memory. Times are CUDA events on an otherwise idle device, the best
of several; beside them stands the time to read the weights once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu import milliseconds, require_gpu
from gpu_sectors import distinct, touch
from numpy.typing import NDArray

from syncline.codecs.base import FrameChange
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec, lane_shift, lanes_of, split_lanes
from syncline.codecs.context.counts import Counts, count_symbols, count_units
from syncline.codecs.context.fitting import fit
from syncline.kernels.gpu.arrange import arrange
from syncline.kernels.gpu.batch import UNIT_TYPES, CodedFrames, DeviceTable, FrameBatch, Staged
from syncline.kernels.gpu.decode import decode
from syncline.kernels.gpu.digest import TensorPlaces, change_digest, sweep
from syncline.kernels.gpu.scatter import count_missing, scatter, undo
from syncline.wire.limits import FRAME_MAX_UNITS as FRAME
from syncline.wire.tiling import Frame

DISTINCT = 32
BANDS = 16
SHARE_GB = 55.6
"""What one GPU of eight holds of the workload that DESIGN's figures are for; where less was measured, times are scaled to it."""

Units = NDArray[Any]
Pair = tuple[Units, Units]
Row = dict[str, object]


def adam_like(rate: float, seed: int) -> Pair:
    """BF16 weights before and after a step of about `rate`; before it each lay anywhere within its rounding interval."""
    torch.manual_seed(seed)
    weights = (torch.randn(FRAME) * 0.02).bfloat16()
    ulp = torch.exp2(torch.floor(torch.log2(weights.float().abs().clamp_min(1e-30))) - 7)
    master = weights.float() + (torch.rand(FRAME) - 0.5) * ulp * 0.999
    moved = (master + rate * torch.randn(FRAME) * 0.4).bfloat16()
    return weights.view(torch.int16).numpy().view(np.uint16), moved.view(torch.int16).numpy().view(np.uint16)


def packed_codes(share: float, seed: int) -> Pair:
    """Two E2M1 codes a byte, of which `share` of the bytes move by one code."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((FRAME, 2)) * 2
    codes = np.searchsorted([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.abs(values)).astype(np.uint8)
    codes |= ((values < 0) * 8).astype(np.uint8)
    old = codes[:, 0] | codes[:, 1] << 4
    step = np.where(codes[:, 0] & 7 == 7, -1, 1)
    moved = old & 0xF0 | ((codes[:, 0] + step) & 15).astype(np.uint8)
    return old, np.where(generator.random(FRAME) < share, moved, old)


@dataclass(frozen=True, slots=True)
class Workload:
    """Frames on the device, and what they must become."""

    old: torch.Tensor
    """All distinct frames, as they lie in memory."""
    new: torch.Tensor
    live: torch.Tensor
    batch: FrameBatch
    coded: CodedFrames
    staged: Staged
    changed: int
    bits: float
    bound: float
    """Entropy a change of positions and symbols in the same contexts."""

    @property
    def gigabytes(self) -> float:
        return self.live.numel() * self.live.element_size() / 1e9


def workload(
    dtype: str, pairs: Sequence[Pair], gigabytes: float, *, shift: int | None = None, bands: bool = False
) -> Workload:
    """`gigabytes` of frames; with `bands` each is a band of columns of a matrix that sixteen share.

    The lane shift is the writer's own unless `shift` says another.
    """
    device = torch.device("cuda")
    alphabet = ALPHABETS[dtype]
    changes = [FrameChange.between(old, new) for old, new in pairs]
    units = np.zeros(256, np.int64)
    symbols = np.zeros((256, 256), np.int64)
    for (old, _), change in zip(pairs, changes, strict=True):
        units += count_units(alphabet, old)
        count_symbols(alphabet, change.before, change.after, symbols)
    table = fit(Counts(units, symbols), alphabet, exact=False)
    if shift is None:
        shift = lane_shift(int(symbols.sum()), int(units.sum()))
    codec = ContextCodec(table, alphabet, shift)
    lanes = lanes_of(FRAME, shift)
    payloads = [codec.encode(change) for change in changes]
    starts: list[Units] = []
    words: list[Units] = []
    at = 0
    for payload in payloads:
        _, ends = split_lanes(memoryview(payload), lanes)
        starts.append(at + len(payload) - 2 * int(ends[-1]) + 2 * ends[:-1])
        words.append(np.diff(ends).astype(np.int32))
        at += len(payload)
    copies = max(int(gigabytes * 1e9) // (FRAME * alphabet.bits // 8 * len(pairs)), 1)
    sides = [laid_out([pair[side] for pair in pairs], bands=bands).to(device) for side in (0, 1)]
    live = sides[0].repeat(copies)
    batch = FrameBatch.of([live], [(0, frame(i, bands=bands)) for i in range(copies * len(pairs))])
    offsets = torch.arange(copies, device=device)[:, None] * at
    payload = torch.frombuffer(bytearray(b"".join(payloads)), dtype=torch.uint8).to(device).repeat(copies)
    counts = torch.tensor([c.positions.size for c in changes], dtype=torch.int32, device=device).repeat(copies)
    coded = CodedFrames(
        alphabet,
        DeviceTable.of(alphabet, table.zone_bits, table.widths, table.lists, table.of_context, device),
        lanes,
        counts,
        payload,
        (torch.from_numpy(np.concatenate(starts)).to(device)[None, :] + offsets).flatten(),
        torch.from_numpy(np.concatenate(words)).to(device).repeat(copies),
    )
    coded.check(batch)
    changed = int(counts.sum())
    staged = Staged.empty(counts, changed, UNIT_TYPES[alphabet.bits])
    return Workload(
        sides[0], sides[1], live, batch, coded, staged, changed, 8 * payload.numel() / changed, bound(units, symbols)
    )


def bound(units: Units, symbols: Units) -> float:
    """Bits a change that a perfect coder with these contexts would take."""
    changes = symbols.sum(1)

    def spread(counts: Units) -> Units:
        return counts * np.log2(np.maximum(counts, 1))

    where = (spread(units) - spread(changes) - spread(units - changes)).sum()
    what = (spread(changes) - spread(symbols).sum(1)).sum()
    return float((where + what) / changes.sum())


def laid_out(frames: Sequence[Units], *, bands: bool) -> torch.Tensor:
    """The frames in memory's order, as integers that torch has."""
    flat = np.concatenate(frames)
    flat = torch.from_numpy(flat.view(f"i{flat.itemsize}" if flat.itemsize > 1 else flat.dtype))
    if bands:
        flat = flat.view(len(frames) // BANDS, BANDS, FRAME // 256, 256).transpose(1, 2).contiguous().view(-1)
    return flat


def frame(index: int, *, bands: bool) -> Frame:
    """Frame `index` of the live weights."""
    if not bands:
        return Frame(index * FRAME, 1, FRAME, FRAME)
    matrix, band = divmod(index, BANDS)
    return Frame(matrix * BANDS * FRAME + band * 256, FRAME // 256, 256, 256 * BANDS)


def same(flat: torch.Tensor, row: torch.Tensor) -> bool:
    """Whether `flat` is `row` over and over."""
    return all(bool((part == row).all()) for part in flat.view(-1, row.numel()).split(8))


def check(work: Workload) -> None:
    """Decode, order, write, read back and undo: everything must be what it shall be, and then what it was."""
    status = decode(work.batch, work.coded, work.staged)
    if int(status.abs().max()):
        raise SystemExit(f"frames failed to decode: {torch.bincount(status).tolist()} of each outcome")
    arrange(work.staged)
    scatter(work.batch, work.staged)
    if not same(work.live, work.new) or int(count_missing(work.batch, work.staged)):
        raise SystemExit("the scattered weights are not the new ones")
    undo(work.batch, work.staged)
    if not same(work.live, work.old):
        raise SystemExit("undo did not bring the old weights back")


def measure(name: str, work: Workload) -> list[Row]:
    check(work)
    share = work.changed / work.live.numel()
    print(
        f"\n{name}: exact; {work.gigabytes:.1f} GB, {share:.4%} changed ({work.changed / 1e6:.0f} M), "
        f"{work.bits:.2f} bits a change (entropy {work.bound:.2f}), "
        f"{work.coded.lanes} lanes a frame, {work.batch.walk.name} walk",
        flush=True,
    )
    rows: list[Row] = []

    def row(what: str, run: Callable[[], object]) -> None:
        rows.append(
            timed(
                name,
                what,
                run,
                work,
                {"changed": work.changed, "bits_a_change": round(work.bits, 3), "entropy": round(work.bound, 3)},
            )
        )

    words = work.live.view(torch.int64)
    row("read once (floor)", lambda: words.sum())
    row("decode", lambda: decode(work.batch, work.coded, work.staged))
    row("scatter as decoded, in no order", lambda: scatter(work.batch, work.staged))
    row("order what is staged", lambda: arrange(work.staged))
    row("scatter", lambda: scatter(work.batch, work.staged))
    row("read back", lambda: count_missing(work.batch, work.staged))
    undo(work.batch, work.staged)
    places = TensorPlaces.of([((1, 2), frame(i, bands=False)) for i in range(work.batch.count)], work.live.device)
    before, added = sweep(work.batch, places), change_digest(work.batch, work.staged, places)
    scatter(work.batch, work.staged)
    if not torch.equal(before + added, sweep(work.batch, places)):
        raise SystemExit("the digest's change is not the change of the digest")
    undo(work.batch, work.staged)
    row("digest change", lambda: change_digest(work.batch, work.staged, places))
    row("digest sweep", lambda: sweep(work.batch, places))
    return rows


def timed(name: str, what: str, run: Callable[[], object], work: Workload, more: Row) -> Row:
    ms = milliseconds(run)
    scaled = ms * SHARE_GB / work.gigabytes
    print(f"  {what:<38} {ms:8.2f} ms    {scaled:8.2f} ms at {SHARE_GB} GB", flush=True)
    facts: Row = {"workload": name, "what": what, "gigabytes": round(work.gigabytes, 2)}
    return facts | {"ms": round(ms, 3), f"ms_at_{SHARE_GB}_gb": round(scaled, 3)} | more


def scatters(work: Workload, share: float) -> list[Row]:
    """A commit of `share` of the units at ascending places, and the same sectors of memory only read, only written, and copied."""
    slots = int(FRAME * share)
    count = work.batch.count
    positions = torch.empty(count, slots, dtype=torch.int32, device="cuda")
    for part in positions.split(1024):
        drawn = torch.randint(0, FRAME - slots, part.shape, dtype=torch.int32, device="cuda").sort(1).values
        part.copy_(drawn + torch.arange(slots, dtype=torch.int32, device="cuda"))
    changed = torch.full((count,), slots, dtype=torch.int32, device="cuda")
    empty = Staged.empty(changed, 0, work.live.dtype)
    units = torch.randint(0, 1 << 15, (count * slots,), dtype=torch.int16, device="cuda").view(work.live.dtype)
    staged = replace(empty, positions=positions.view(-1), old=units, new=units)
    touched = {size: distinct(positions, work.live.element_size(), size) for size in (32, 64, 128)}
    name = f"{count * slots / 1e6:.0f} M"
    print(f"  {name} touch " + ", ".join(f"{n / 1e6:.0f} M runs of {size} bytes" for size, n in touched.items()))
    facts: Row = {"changed": count * slots, **{f"runs_of_{size}": n for size, n in touched.items()}}
    rows = [timed("bf16", f"scatter of {name}", lambda: scatter(work.batch, staged), work, facts)]
    if int(count_missing(work.batch, staged)):
        raise SystemExit("the scattered units are not all there")
    rows.append(timed("bf16", f"read back of {name}", lambda: count_missing(work.batch, staged), work, facts))
    for what, read, write in (("read", True, False), ("written", False, True), ("copied", True, True)):
        rows.append(
            timed(
                "bf16",
                f"their sectors, only {what}",
                lambda r=read, w=write: touch(work.live, positions, FRAME, read=r, write=w),
                work,
                facts,
            )
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=SHARE_GB)
    parser.add_argument("--only", default="", help="names of workloads, with commas between")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    require_gpu()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    bf16 = [adam_like(6e-7, seed) for seed in range(DISTINCT)]
    cases: dict[str, Callable[[], Workload]] = {
        "bf16": lambda: workload("BF16", bf16, args.gigabytes, shift=15),
        "bf16-16-lanes": lambda: workload("BF16", bf16, args.gigabytes, shift=16),
        "bf16-columns": lambda: workload("BF16", bf16, args.gigabytes, shift=15, bands=True),
        "nvfp4": lambda: workload("F4", [packed_codes(0.00085, s) for s in range(DISTINCT)], args.gigabytes),
        "nvfp4-32-lanes": lambda: workload(
            "F4", [packed_codes(0.00085, s) for s in range(DISTINCT)], args.gigabytes, shift=15
        ),
    }
    rows: list[Row] = []
    for name, make in cases.items():
        if args.only and name not in args.only.split(","):
            continue
        work = make()
        rows += measure(name, work)
        if name == "bf16":
            rows += [row for share in (0.0017, 0.01) for row in scatters(work, share)]
        del work
        torch.cuda.empty_cache()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
