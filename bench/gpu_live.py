"""An arm on a GPU while the engine computes: staging, commit, undo and sweep, exact first: `python bench/gpu_live.py --json FILE`.

Weights lie in fused stores as an engine holds them; deltas are files, made on the device. Seconds are wall time, with everything that
Python does in them. The engine is a loop in a thread of its own that keeps a few products of matrices, or readings of all weights, queued;
what it loses is its rate while the arm works against its rate alone. Extra memory is the allocator's peak beyond the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import torch
from gpu import require_gpu

from syncline.delta.device.encoding import DeviceEncoder
from syncline.delta.device.staging import digest
from syncline.errors import EngineUnavailable
from syncline.kernels.gpu.batch import unit_view
from syncline.wire.digest import total
from syncline.wire.records import TilingPart
from syncline.wire.tensors import TensorSpec, TensorTable, split_axis
from syncline.wire.tiling import Tiling
from syncline_agent.arm.device_memory import DeviceMemory
from syncline_agent.arm.layout import Block, Layout
from syncline_agent.arm.live import LiveWeights
from syncline_agent.engine import DeltaFiles, StageRequest
from syncline_agent.testing.spread import Loaded, Sizes, Steps

RATE = 6e-7
"""Learning rate that changes about 1.1 % of the elements."""
HIDDEN, INNER, KEYS = 4096, 16384, 1024
FUSED = {
    "self_attn.qkv": {"self_attn.q_proj": HIDDEN, "self_attn.k_proj": KEYS, "self_attn.v_proj": KEYS},
    "mlp.gate_up": {"mlp.gate_proj": INNER, "mlp.up_proj": INNER},
    "self_attn.o": {"self_attn.o_proj": HIDDEN},
}
LINEAGE = "ab" * 16
Facts = dict[str, float]


@dataclass(frozen=True, slots=True)
class Model:
    """Stores of a decoder, and which tensor lies where."""

    table: TensorTable
    layout: Layout
    shapes: Sequence[tuple[int, int]]
    """Of the stores."""

    @classmethod
    def of(cls, layers: int) -> Model:
        shapes: list[tuple[int, int]] = []
        places: dict[str, tuple[int, int, tuple[int, int]]] = {}
        for layer in range(layers):
            for members in (*FUSED.values(), {"mlp.down_proj": HIDDEN}):
                columns = INNER if "mlp.down_proj" in members else HIDDEN
                row = 0
                for name, rows in members.items():
                    places[f"model.layers.{layer:02d}.{name}.weight"] = len(shapes), row, (rows, columns)
                    row += rows
                shapes.append((row, columns))
        specs = [
            TensorSpec(name=name, dtype="BF16", shape=list(shape), axis=split_axis(name, list(shape)))
            for name, (_, _, shape) in sorted(places.items())
        ]
        table = TensorTable(tensors=specs)
        blocks = [
            Block(table.index[name], (0, 0), shape, store, row * shape[1], (shape[1], 1))
            for name, (store, row, shape) in places.items()
        ]
        return cls(table, Layout.of(table, blocks), shapes)

    def tensor(self, stores: Sequence[torch.Tensor], index: int) -> torch.Tensor:
        (block,) = self.layout.blocks[index]
        return unit_view(stores[block.store])[block.offset : block.offset + block.size[0] * block.size[1]]

    def digest(self, stores: Sequence[torch.Tensor]) -> str:
        specs = enumerate(self.table.tensors)
        return total(digest(spec, Tiling(), self.tensor(stores, n)) for n, spec in specs).hex


@dataclass(frozen=True, slots=True)
class Run:
    """Versions of the stores, and the deltas between neighbours as files."""

    model: Model
    folder: Path
    versions: Sequence[Sequence[torch.Tensor]]
    digests: Sequence[str]
    deltas: Sequence[Sequence[Path]]

    @classmethod
    def of(cls, model: Model, folder: Path, steps: int) -> Run:
        masters = [torch.randn(*shape, device="cuda") * 0.02 for shape in model.shapes]
        versions = [[master.bfloat16() for master in masters]]
        deltas: list[list[Path]] = []
        for step in range(steps):
            for master in masters:
                master.add_(torch.randn_like(master), alpha=0.4 * RATE)
            versions.append([master.bfloat16() for master in masters])
            files: list[Path] = []

            def sink(_: object, data: bytes, files: list[Path] = files, step: int = step) -> None:
                files.append(folder / f"{step}-{len(files)}.chunk")
                files[-1].write_bytes(data)

            encoder = DeviceEncoder(
                model.table, Tiling(), device=torch.device("cuda"), nonce=lambda: os.urandom(16), sink=sink
            )
            for tensor in range(len(model.table.tensors)):
                encoder.add(tensor, *(model.tensor(version, tensor) for version in versions[-2:]))
            encoder.finish()
            deltas.append(files)
        (folder / "table.json").write_bytes(model.table.encode())
        return cls(model, folder, versions, [model.digest(version) for version in versions], deltas)

    def request(self, base: int, target: int) -> StageRequest:
        return StageRequest(
            LINEAGE,
            "main",
            base,
            self.digests[base],
            target,
            self.digests[target],
            self.folder / "table.json",
            Tiling(),
            [DeltaFiles(v + 1, self.digests[v + 1], self.deltas[v]) for v in range(base, target)],
        )

    def check(self, stores: Sequence[torch.Tensor], version: int) -> None:
        if any(
            not torch.equal(unit_view(a), unit_view(b)) for a, b in zip(stores, self.versions[version], strict=True)
        ):
            raise SystemExit(f"live memory does not hold version {version}: no figure would mean anything")


class Engine:
    """A loop that computes; `rate` says how often a second."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._done = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        torch.cuda.init()
        torch.cuda.current_stream().synchronize()  # a thread has no context before it asks for one
        with torch.cuda.stream(torch.cuda.Stream()):
            queued: list[torch.cuda.Event] = []
            while not self._stopping:
                self._work()
                queued.append(torch.cuda.Event())
                queued[-1].record()
                if len(queued) > 2:
                    queued.pop(0).synchronize()
                    self._done += 1

    @contextmanager
    def running(self) -> Iterator[Engine]:
        self._thread.start()
        sleep(0.2)
        yield self
        self._stopping = True
        self._thread.join()
        torch.cuda.synchronize()

    def rate(self, during: Callable[[], object], seconds: float) -> float:
        """Rounds a second while `during` is done again and again."""
        began, done = perf_counter(), self._done
        while perf_counter() - began < seconds:
            during()
        return (self._done - done) / (perf_counter() - began)


def small() -> None:
    """Ranks of several layouts and dtypes on the device, beside the same on the host."""
    tiling = TilingPart(min_units=64, max_units=4096, ways=4)
    cases = [("BF16", ["context", "raw", "context"], 0.05), ("F8_E4M3", ["context"], 0.05)]
    cases += [("F32", ["xor-zstd", "context"], 0.05), ("BF16", ["raw"], 0.9)]
    for dtype, codecs, share in cases:
        sizes = Sizes(ways=2, dtype=dtype, hidden=96, inner=320, vocabulary=1000)
        made = [Steps.of(sizes, tiling, 1, share, codec, chain=len(codecs)) for codec in codecs]
        deltas = [each.deltas[n] for n, each in enumerate(made)]
        for rank in range(sizes.ways):
            loaded = Loaded.at(made[0], rank, 0)
            kind = "u1" if loaded.stores[0].itemsize == 1 else f"i{loaded.stores[0].itemsize}"
            stores = [torch.from_numpy(store.view(kind).copy()).cuda() for store in loaded.stores]
            memory = DeviceMemory(
                loaded.memory.layout, tiling.tiling, stores, loaded=made[0].versions[0].__getitem__, slab_bytes=1 << 16
            )
            wanted, changes = loaded.memory.stage(deltas), memory.stage(deltas)
            if (wanted.changed, wanted.digests) != (changes.changed, changes.digests):
                raise SystemExit(f"{dtype}, rank {rank}: staged other changes than the host")
            for undo in (False, True):
                loaded.memory.scatter(wanted, undo=undo)
                memory.scatter(changes, undo=undo)
                held = [store.cpu().numpy().view(s.dtype) for store, s in zip(stores, loaded.stores, strict=True)]
                if memory.read_back(changes, undo=undo) or any(map(np.any, map(np.not_equal, held, loaded.stores))):
                    raise SystemExit(f"{dtype}, rank {rank}: other bits than the host's after a scatter (undo: {undo})")
    print("small: every rank's memory is the host's, bit for bit, after a chain and after its undo", flush=True)


def timed(facts: Facts, name: str, work: Callable[[], object]) -> None:
    torch.cuda.synchronize()
    start = perf_counter()
    work()
    facts[f"{name}_seconds"] = perf_counter() - start


def follow(run: Run, facts: Facts) -> tuple[list[torch.Tensor], LiveWeights]:
    """Prove, stage, commit, undo, catch up: the versions' very bits at each turn."""
    stores = [unit_view(store.clone()) for store in run.versions[0]]
    held = torch.cuda.memory_allocated()
    memory: list[DeviceMemory] = []
    timed(facts, "attach", lambda: memory.append(DeviceMemory(run.model.layout, Tiling(), stores)))
    facts["attached_bytes"] = torch.cuda.memory_allocated() - held
    live = LiveWeights(run.model.table, Tiling(), memory[0])
    timed(facts, "warm_up", live.warm_up)
    timed(facts, "prove", lambda: live.prove(LINEAGE, "main", 0, run.digests[0]))
    timed(facts, "first_stage", lambda: live.stage(run.request(0, 1)))
    for target, undo in ((1, False), (0, True)):
        (live.ready_undo if undo else live.ready)(target)
        timed(facts, "undo" if undo else "first_commit", lambda target=target: live.scatter(target))
        timed(facts, "read_back", lambda target=target: live.confirm(target))
        run.check(stores, target)
    timed(facts, "sweep", live.sweep)
    last = len(run.digests) - 1
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    timed(facts, f"stage_of_{last - 1}", lambda: live.stage(run.request(0, last - 1)))
    facts[f"stage_of_{last - 1}_extra_gigabytes"] = (torch.cuda.max_memory_allocated() - held) / 1e9
    live.ready(last - 1)
    timed(facts, "commit", lambda: live.scatter(last - 1))
    live.confirm(last - 1)
    run.check(stores, last - 1)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    timed(facts, "stage", lambda: live.stage(run.request(last - 1, last)))
    facts["staged_gigabytes"] = (torch.cuda.memory_allocated() - held) / 1e9
    facts["stage_extra_gigabytes"] = (torch.cuda.max_memory_allocated() - held) / 1e9
    return stores, live


def beside(run: Run, live: LiveWeights, facts: Facts, name: str, work: Callable[[], object], seconds: float) -> None:
    """What an engine loses to staging and to sweeps, and what a commit waits for a sweep."""
    last = len(run.digests) - 1
    engine = Engine(work)
    with engine.running():
        alone = engine.rate(lambda: sleep(0.05), seconds)
        facts[f"{name}_rounds_a_second"] = alone
        took: list[float] = []

        def stage() -> None:
            start = perf_counter()
            live.stage(run.request(last - 1, last))
            took.append(perf_counter() - start)

        rate = engine.rate(stage, seconds)
        facts[f"{name}_lost_to_staging"] = 1 - rate / alone
        facts[f"{name}_stage_seconds"] = sum(took) / len(took)
        facts[f"{name}_seconds_lost_a_stage"] = (1 - rate / alone) * sum(took) / len(took)
        for rest in (0.0, 9.0):
            rate = engine.rate(lambda rest=rest: live.sweep(rest=rest), seconds)
            facts[f"{name}_lost_to_sweeping_rest_{rest:g}"] = 1 - rate / alone
    sweeper = threading.Thread(target=lambda: [live.sweep() for _ in range(8)])
    sweeper.start()
    waits: list[float] = []
    while sweeper.is_alive():
        live.ready(last)
        start = perf_counter()
        live.scatter(last)
        waits.append(perf_counter() - start)
        live.confirm(last)
        live.ready_undo(last - 1)
        live.scatter(last - 1)
        live.confirm(last - 1)
        live.stage(run.request(last - 1, last))
    sweeper.join()
    live.sweep()
    facts[f"{name}_commit_amid_sweeps_seconds_most"] = max(waits)


def without_room(run: Run, live: LiveWeights, stores: Sequence[torch.Tensor], facts: Facts) -> None:
    """A stage that finds no memory is refused, leaves nothing behind, and works once there is room again."""
    last = len(run.digests) - 1
    live.discard()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    room = torch.empty(torch.cuda.mem_get_info()[0] - (64 << 20), dtype=torch.uint8, device="cuda")
    held = torch.cuda.memory_allocated()
    try:
        live.stage(run.request(last - 1, last))
    except EngineUnavailable as error:
        print(f"without room: {error}", flush=True)
    else:
        raise SystemExit("staged in no room")
    facts["left_after_a_refusal_bytes"] = torch.cuda.memory_allocated() - held
    del room
    torch.cuda.empty_cache()
    run.check(stores, last - 1)
    live.stage(run.request(last - 1, last))
    live.ready(last)
    live.scatter(last)
    live.confirm(last)
    run.check(stores, last)


def measure(layers: int, seconds: float) -> Facts:
    model = Model.of(layers)
    facts: Facts = {"gigabytes": sum(2 * a * b for a, b in model.shapes) / 1e9}
    with tempfile.TemporaryDirectory() as folder:
        start = perf_counter()
        run = Run.of(model, Path(folder), 4)
        print(f"{facts['gigabytes']:.2f} GB, four deltas: made in {perf_counter() - start:.0f} s", flush=True)
        facts["chunk_megabytes_a_step"] = sum(path.stat().st_size for path in run.deltas[-1]) / 1e6
        stores, live = follow(run, facts)
        if seconds:
            a, b, out = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(3))
            beside(run, live, facts, "products", lambda: torch.mm(a, b, out=out), seconds)
            read = [store.view(torch.bfloat16).view(-1, HIDDEN) for store in stores]
            vector = torch.randn(HIDDEN, 1, device="cuda", dtype=torch.bfloat16)
            beside(run, live, facts, "readings", lambda: [torch.mm(weights, vector) for weights in read], seconds)
        without_room(run, live, stores, facts)
    return facts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="*", default=[4, 12], help="of each model")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each rate; 0 for none")
    parser.add_argument("--skip-small", action="store_true", help="leave out the ranks that are compared with the host")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    require_gpu()
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), flush=True)
    if not args.skip_small:
        small()
    rows = []
    for layers in args.layers:
        rows.append(measure(layers, args.seconds))
        print(f"\n{rows[-1]['gigabytes']:.2f} GB BF16: every version and undo bit for bit")
        for name, value in rows[-1].items():
            print(f"  {name:44} {value:14.5f}", flush=True)
        torch.cuda.empty_cache()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
