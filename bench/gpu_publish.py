"""A step from a trainer's GPU memory to a replica's, through the whole publisher: `python bench/gpu_publish.py --json FILE`.

Weights and the replica lie on one device, the publisher's base there too, or in pinned host memory: both are measured, one after the
other, beside a bare copy of the weights over the link, which bounds the latter. Only chunks pass through the host (a store in memory).
Seconds are wall time of the second delta, so that nothing is compiled in it; the peak is the allocator's, beyond weights, base and replica.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import get_args

import torch
from gpu import require_gpu

from syncline.chain import ChainReader
from syncline.clock import SystemClock
from syncline.delta import Delta
from syncline.delta.device.staging import digest, stage
from syncline.store.memory import MemoryStore
from syncline.wire.digest import total
from syncline.wire.tiling import Tiling
from syncline_distributor import Publisher
from syncline_distributor.placing import BaseMemory

RATE = 6e-7
"""Learning rate that changes about 1.1 % of the elements."""
STEPS = 3
LINK_BYTES = 256 << 20
"""Of a bare copy."""

Weights = dict[str, torch.Tensor]
Facts = dict[str, float]


def masters(layers: int, device: torch.device, width: int) -> Weights:
    """FP32 weights of a decoder with this hidden size and four times as much feed-forward."""
    shapes = {"self_attn.q_proj": (width, width), "self_attn.o_proj": (width, width)}
    shapes |= {"mlp.up_proj": (4 * width, width), "mlp.down_proj": (width, 4 * width)}
    return {
        f"model.layers.{n:02d}.{name}.weight": torch.randn(*shape, device=device) * 0.02
        for n in range(layers)
        for name, shape in shapes.items()
    }


class Card:
    """The device's clock and memory; in the interpreter, where a dry run is, neither says anything."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._real = device.type == "cuda"

    def wait(self) -> None:
        if self._real:
            torch.cuda.synchronize()

    def mark(self) -> int:
        """What is held now; the peak counts from here."""
        if not self._real:
            return 0
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def peak_gigabytes(self, mark: int) -> float:
        return (torch.cuda.max_memory_allocated() - mark) / 1e9 if self._real else 0.0

    def milliseconds(self, run: Callable[[], object]) -> float:
        """Of the device itself."""
        if not self._real:
            run()
            return 0.0
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def link_gigabytes_per_second(self) -> float:
        """Of copies from pinned host memory, the best of several."""
        far = torch.ones(LINK_BYTES, dtype=torch.uint8, pin_memory=self._real)
        near = torch.empty_like(far, device=self.device)
        seconds: list[float] = []
        for _ in range(4):
            self.wait()
            start = perf_counter()
            near.copy_(far, non_blocking=True)
            self.wait()
            seconds.append(perf_counter() - start)
        return LINK_BYTES / 1e9 / min(seconds)


def measure(card: Card, weights: Weights, base_memory: BaseMemory) -> Facts:
    served = {name: tensor.bfloat16() for name, tensor in weights.items()}
    store = MemoryStore(SystemClock())
    files = {"config.json": b"{}"}
    publisher = Publisher(store, "run", device=str(card.device), base_memory=base_memory, files=files)
    start = perf_counter()
    publisher.publish(served)
    print(f"\nbase in {base_memory} memory; first version, whole: {perf_counter() - start:.1f} s", flush=True)
    replica = {name: tensor.clone() for name, tensor in served.items()}
    reader = ChainReader(store, "run", "main")
    facts: Facts = {}
    for _ in range(1, STEPS):
        for name, tensor in weights.items():
            tensor.add_(torch.randn_like(tensor), alpha=0.4 * RATE)
            served[name].copy_(tensor)
        card.wait()
        mark = card.mark()
        start = perf_counter()
        published = publisher.publish(served)
        facts["publish_seconds"] = perf_counter() - start
        facts["publish_peak_gigabytes"] = card.peak_gigabytes(mark)
        facts |= {f"publish_{phase}_seconds": seconds for phase, seconds in published.seconds.items()}
        facts |= followed(card, reader, published.version, served, replica)
        print(f"version {published.version}: bit for bit the trainer's, digest {published.manifest.digest}")
        for name, value in facts.items():
            print(f"  {name:32} {value:10.4f}", flush=True)
    return facts


def followed(card: Card, reader: ChainReader, version: int, served: Weights, replica: Weights) -> Facts:
    """Bring a replica on by what the store holds, and compare it with the trainer."""
    facts: Facts = {}
    manifest = reader.manifest(version)
    table = reader.table(manifest)
    names = [spec.name for spec in table.tensors]
    start = perf_counter()
    delta = Delta.parse(table, Tiling(), [(ref, reader.chunk(ref)) for ref in manifest.chunks])
    facts["parse_seconds"] = perf_counter() - start
    mark = card.mark()
    start = perf_counter()
    staged = stage(table, Tiling(), lambda tensor: replica[names[tensor]], delta)
    card.wait()
    facts["stage_seconds"] = perf_counter() - start
    facts["staged_gigabytes"] = staged.nbytes / 1e9
    facts["stage_peak_gigabytes"] = card.peak_gigabytes(mark)
    facts["commit_milliseconds"] = card.milliseconds(staged.scatter)
    if not staged.stands() or any(not torch.equal(replica[n], served[n]) for n in names):
        raise SystemExit("the replica does not hold the trainer's bits: no figure would mean anything")
    live = total(digest(spec, Tiling(), replica[spec.name]) for spec in table.tensors)
    if live.hex != manifest.digest:
        raise SystemExit("the replica's digest is not the manifest's")
    statistics = manifest.statistics
    facts["share_changed"] = statistics.changed_units / statistics.units
    facts["bits_a_change"] = 8 * statistics.payload_bytes / statistics.changed_units
    facts["share_by_context"] = statistics.codecs.get("context", 0) / statistics.changed_units
    return facts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--device", default="cuda", help="cpu tries the script out, in Triton's interpreter")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    card = Card(torch.device(args.device))
    if card.device.type == "cuda":
        require_gpu()
        print(torch.cuda.get_device_name(), "torch", torch.__version__)
    torch.manual_seed(0)
    weights = masters(args.layers, card.device, args.width)
    gigabytes = sum(tensor.numel() for tensor in weights.values()) * 2 / 1e9
    link = card.link_gigabytes_per_second()
    print(f"{gigabytes:.2f} GB BF16; over the link, bare: {gigabytes / link:.3f} s, {link:.1f} GB/s", flush=True)
    found: dict[str, Facts | float] = {"gigabytes": gigabytes, "link_gigabytes_per_second": link}
    for base_memory in get_args(BaseMemory):
        found[f"base_in_{base_memory}_memory"] = measure(card, weights, base_memory)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
