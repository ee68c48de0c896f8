"""A step from a trainer's GPU memory to a replica's, through the whole publisher: `python bench/gpu_publish.py --json FILE`.

Weights, the publisher's base and the replica lie on one device; only chunks pass through the host (a store in memory). Seconds are wall
time of the second delta, so that nothing is compiled in it; the peak is the allocator's, beyond weights, base and replica.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

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

RATE = 6e-7
"""Learning rate that changes about 1.1 % of the elements."""
STEPS = 3


def masters(layers: int) -> dict[str, torch.Tensor]:
    """FP32 weights of a decoder with hidden size 4096 and feed-forward 16384."""
    shapes = {"self_attn.q_proj": (4096, 4096), "self_attn.o_proj": (4096, 4096), "mlp.up_proj": (16384, 4096)}
    shapes |= {"mlp.down_proj": (4096, 16384)}
    return {
        f"model.layers.{n:02d}.{name}.weight": torch.randn(*shape, device="cuda") * 0.02
        for n in range(layers)
        for name, shape in shapes.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    require_gpu()
    torch.manual_seed(0)
    weights = masters(args.layers)
    served = {name: tensor.bfloat16() for name, tensor in weights.items()}
    gigabytes = sum(t.nbytes for t in served.values()) / 1e9
    store = MemoryStore(SystemClock())
    publisher = Publisher(store, "run", device="cuda", files={"config.json": b"{}"})
    start = perf_counter()
    publisher.publish(served)
    print(
        f"{torch.cuda.get_device_name()}: {gigabytes:.2f} GB BF16; first version, whole: {perf_counter() - start:.1f} s"
    )
    replica = {name: tensor.clone() for name, tensor in served.items()}
    reader = ChainReader(store, "run", "main")
    facts: dict[str, float] = {"gigabytes": gigabytes}
    for step in range(1, STEPS):
        for name, tensor in weights.items():
            tensor.add_(torch.randn_like(tensor), alpha=0.4 * RATE)
            served[name].copy_(tensor)
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        start = perf_counter()
        published = publisher.publish(served)
        facts["publish_seconds"] = perf_counter() - start
        facts["publish_peak_gigabytes"] = (torch.cuda.max_memory_allocated() - held) / 1e9
        facts |= {f"publish_{phase}_seconds": seconds for phase, seconds in published.seconds.items()}
        manifest = published.manifest
        table = reader.table(manifest)
        names = [spec.name for spec in table.tensors]
        start = perf_counter()
        chunks = [(ref, reader.chunk(ref)) for ref in manifest.chunks]
        delta = Delta.parse(table, Tiling(), chunks)
        facts["parse_seconds"] = perf_counter() - start
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        start = perf_counter()
        staged = stage(table, Tiling(), lambda tensor, names=names: replica[names[tensor]], delta)
        torch.cuda.synchronize()
        facts["stage_seconds"] = perf_counter() - start
        facts["staged_gigabytes"] = staged.nbytes / 1e9
        facts["stage_peak_gigabytes"] = (torch.cuda.max_memory_allocated() - held) / 1e9
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        staged.scatter()
        end.record()
        end.synchronize()
        facts["commit_milliseconds"] = begin.elapsed_time(end)
        if not staged.stands() or any(not torch.equal(replica[n], served[n]) for n in names):
            raise SystemExit("the replica does not hold the trainer's bits: no figure would mean anything")
        live = total(digest(spec, Tiling(), replica[spec.name]) for spec in table.tensors)
        if live.hex != manifest.digest:
            raise SystemExit("the replica's digest is not the manifest's")
        statistics = manifest.statistics
        facts["share_changed"] = statistics.changed_units / statistics.units
        facts["bits_a_change"] = 8 * statistics.payload_bytes / statistics.changed_units
        facts["share_by_context"] = statistics.codecs.get("context", 0) / statistics.changed_units
        print(f"\nversion {manifest.version}, step {step}: bit for bit the trainer's, digest {live.hex}")
        for name, value in facts.items():
            print(f"  {name:32} {value:10.4f}")
    if args.json:
        args.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
