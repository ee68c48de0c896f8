"""Encoding on one GPU, the comparison of old and new included; exact first, then timed: `python bench/gpu_encode.py --json FILE`.

The weights are those of gpu_decode: distinct frames that stand many times over, before and after a step, so that every byte comes from
memory. The payloads of all frames are compared with the CPU codec's. Times are CUDA events on an otherwise idle device, the best of
several; beside them stands the time to read both once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gpu import milliseconds, require_gpu
from gpu_decode import DISTINCT, SHARE_GB, Pair, Row, adam_like, frame, laid_out, packed_codes

from syncline.codecs.base import FrameChange
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec, lanes_of
from syncline.codecs.context.counts import Counts, count_symbols, count_units
from syncline.codecs.context.fitting import fit
from syncline.kernels.clock import Alphabet
from syncline.kernels.gpu.batch import DeviceTable, FrameBatch
from syncline.kernels.gpu.compact import compact, payload_offsets
from syncline.kernels.gpu.counts import DeviceCounts, count
from syncline.kernels.gpu.encode import EncodeScratch, LaneWords, encode
from syncline.kernels.gpu.host import reached_from
from syncline.wire.limits import FRAME_MAX_UNITS as FRAME

SAMPLE = 256
"""Frames that are counted for a table."""
HOST_GB = 8
"""Old weights in pinned host memory, at most: pinning takes its time."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Frames before and after on the device, and the payloads that must come of them."""

    alphabet: Alphabet
    old: torch.Tensor
    new: torch.Tensor
    before: FrameBatch
    after: FrameBatch
    table: DeviceTable
    out: LaneWords
    payloads: list[bytes]
    counts: list[int]
    """Changes of the distinct frames."""

    @property
    def gigabytes(self) -> float:
        return self.old.numel() * self.old.element_size() / 1e9

    @property
    def changed(self) -> int:
        return sum(self.counts) * (self.before.count // len(self.counts))


def workload(
    dtype: str, pairs: Sequence[Pair], gigabytes: float, *, shift: int, bands: bool = False, host: bool = False
) -> Workload:
    """`gigabytes` of frames; with `bands` each is a band of columns of a matrix that sixteen share; with `host` the old ones are there."""
    device = torch.device("cuda")
    alphabet = ALPHABETS[dtype]
    changes = [FrameChange.between(old, new) for old, new in pairs]
    units = np.zeros(256, np.int64)
    symbols = np.zeros((256, 256), np.int64)
    for (old, _), change in zip(pairs, changes, strict=True):
        units += count_units(alphabet, old)
        count_symbols(alphabet, change.before, change.after, symbols)
    table = fit(Counts(units, symbols), alphabet, exact=False)
    codec = ContextCodec(table, alphabet, shift)
    payloads = [codec.encode(change) for change in changes]
    lanes = lanes_of(FRAME, shift)
    copies = max(int(gigabytes * 1e9) // (FRAME * alphabet.bits // 8 * len(pairs)), 1)
    old, new = (laid_out([pair[side] for pair in pairs], bands=bands).to(device).repeat(copies) for side in (0, 1))
    if host:
        old = torch.empty(old.numel(), dtype=old.dtype, pin_memory=True).copy_(old)
    frames = [(0, frame(i, bands=bands)) for i in range(copies * len(pairs))]
    return Workload(
        alphabet,
        old,
        new,
        reached_from(FrameBatch.of([old], frames), device),
        FrameBatch.of([new], frames),
        DeviceTable.of(alphabet, table.zone_bits, table.widths, table.lists, table.of_context, device),
        LaneWords.empty(len(frames), lanes, max(map(len, payloads)) * 5 // 8 // lanes + 16, device),
        payloads,
        [change.positions.size for change in changes],
    )


def check(work: Workload, scratch: EncodeScratch) -> int:
    """Encode, and compare every frame's payload with the CPU's. Returns the bytes of all of them."""
    encode(work.before, work.after, work.alphabet, work.table, work.out, scratch)
    if int(work.out.status.abs().max()):
        raise SystemExit(f"frames failed to encode: {torch.bincount(work.out.status).tolist()} of each outcome")
    if not bool((work.out.changed.view(-1, len(work.counts)).cpu() == torch.tensor(work.counts)).all()):
        raise SystemExit("the numbers of changes are not those of the frames")
    offsets = payload_offsets(work.out)
    size = int(offsets[-1])
    into = torch.empty(size, dtype=torch.uint8, device=offsets.device)
    compact(work.out, offsets, into)
    expected = torch.frombuffer(bytearray(b"".join(work.payloads)), dtype=torch.uint8).to(into.device)
    if not all(bool((part == expected).all()) for part in into.view(-1, expected.numel()).split(8)):
        raise SystemExit("the payloads are not those of the CPU's codec")
    return size


def measure(name: str, work: Workload) -> list[Row]:
    scratch = EncodeScratch.of(work.new.device)
    size = check(work, scratch)
    share = work.changed / work.old.numel()
    queues = sum(part.numel() * part.element_size() for part in (scratch.entries, scratch.held))
    room = work.out.words.numel() * 2
    print(
        f"\n{name}: the CPU's bytes; {work.gigabytes:.1f} GB, {share:.4%} changed ({work.changed / 1e6:.0f} M), "
        f"{8 * size / work.changed:.2f} bits a change, {work.out.lanes} lanes a frame, {work.before.walk.name} walk; "
        f"scratch {queues / 1e6:.0f} MB and {room / 1e6:.0f} MB for lanes' words, payloads {size / 1e6:.0f} MB",
        flush=True,
    )
    offsets = payload_offsets(work.out)
    into = torch.empty(size, dtype=torch.uint8, device=offsets.device)
    counts = DeviceCounts.none(offsets.device)
    sample = [(0, frame(i, bands=False)) for i in range(min(SAMPLE, work.before.count))]
    few = reached_from(FrameBatch.of([work.old], sample), work.new.device), FrameBatch.of([work.new], sample)
    both = [side.view(torch.int64) for side in (work.old, work.new)]
    rows: list[Row] = []

    def row(what: str, run: Callable[[], object], *, whole: bool = True) -> None:
        ms = milliseconds(run)
        scaled = ms * SHARE_GB / work.gigabytes
        print(f"  {what:<30} {ms:8.2f} ms" + (f"    {scaled:8.2f} ms at {SHARE_GB} GB" if whole else ""), flush=True)
        facts: Row = {"workload": name, "what": what, "gigabytes": round(work.gigabytes, 2), "ms": round(ms, 3)}
        facts |= {"changed": work.changed, "bits_a_change": round(8 * size / work.changed, 3)}
        rows.append(facts | ({f"ms_at_{SHARE_GB}_gb": round(scaled, 3)} if whole else {}))

    if work.old.device == work.new.device:
        row("read both (floor)", lambda: [side.sum() for side in both])
    else:
        near = torch.empty_like(both[0], device=work.new.device)
        row("copy old from the host (floor)", lambda: near.copy_(both[0], non_blocking=True))
    row("encode, diff included", lambda: encode(work.before, work.after, work.alphabet, work.table, work.out, scratch))
    row("compact", lambda: compact(work.out, payload_offsets(work.out), into))
    row(f"counts of {len(sample)} frames", lambda: count(*few, work.alphabet, counts), whole=False)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=SHARE_GB)
    parser.add_argument("--only", default="", help="names of workloads, with commas between")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    require_gpu()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)

    def bf16(rate: float) -> list[Pair]:
        return [adam_like(rate, seed) for seed in range(DISTINCT)]

    cases: dict[str, Callable[[], Workload]] = {
        "bf16": lambda: workload("BF16", bf16(6e-7), args.gigabytes, shift=15),
        "bf16-dense": lambda: workload("BF16", bf16(1.5e-6), args.gigabytes, shift=15),
        "bf16-sparse": lambda: workload("BF16", bf16(5e-8), args.gigabytes, shift=15),
        "bf16-columns": lambda: workload("BF16", bf16(6e-7), args.gigabytes, shift=15, bands=True),
        "nvfp4": lambda: workload("F4", [packed_codes(0.00085, s) for s in range(DISTINCT)], args.gigabytes, shift=15),
        "bf16-host": lambda: workload("BF16", bf16(6e-7), min(args.gigabytes, HOST_GB), shift=15, host=True),
    }
    rows: list[Row] = []
    for name, make in cases.items():
        if args.only and name not in args.only.split(","):
            continue
        work = make()
        rows += measure(name, work)
        del work
        torch.cuda.empty_cache()
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
