"""Writes the golden store: two small runs whose every byte is fixed, made by today's writers with a fixed seed and clock.

    python tests/format/make_golden.py

rewrites `golden/store` (keys as file paths) and `golden/expected.json` (for each run and version, the BLAKE3 of every tensor's bytes as the
trainer had them). The format promises that what was written stays readable: once version 1 is released these files change only together
with the wire format's version, or with a writer that chooses other bytes for the same weights. They hold frames compressed by
libzstd and liblz4, so another version of these may pack them differently too; what was committed must stay readable all the same.
Which codec a tensor gets is taken from the writer's hands: each takes the next in turn, so that all of them stand in every chunk.

    version 1   whole weights; every dtype, an empty and two 0-d tensors, a tie
    2, 3        deltas
    4           a fork: trained from 2, encoded against 3; a skip delta leads to it from 1
    5           a second writer takes the run; no weight changes
    6           a delta; an anchor beside it
    7           a tensor has another shape: whole weights
    8           a delta that was vetoed
    9           a delta on top of it
    consumers, leases   one of each

The other run is that of the `context` codec; golden_context has it.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any
from unittest.mock import patch

import golden_context
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.codecs.base import Codec, FrameChange
from syncline.codecs.registry import codec_named
from syncline.delta import CodecChoice, DeltaEncoder
from syncline.delta.comparing import ComparedFrame, TensorComparison
from syncline.metrics import Metrics
from syncline.store.memory import MemoryStore
from syncline.wire import dtypes
from syncline.wire.tensors import TensorSpec
from syncline.wire.tiling import FrameGrid, Tiling
from syncline_agent.engine import Applied
from syncline_agent.heartbeat import Heart, HeartSettings
from syncline_agent.status import ApplyPath, Identity, Status
from syncline_distributor import Bits, Publisher, PublishSettings
from syncline_distributor.keeper import Keeper
from syncline_distributor.settings import AnchorSettings
from syncline_distributor.vetoes import mark_bad

RUN = "golden"
CONTEXT = "context"
VETOED = 8
FOLDER = Path(__file__).resolve().parent / "golden"
TILING = Tiling(min_units=64, max_units=256, ways=4)
SPECS: Mapping[str, tuple[str, tuple[int, ...]]] = {f"dtype.{name}": (name, (4, 12)) for name in dtypes.DTYPES} | {
    "change.dense": ("BF16", (40, 16)),
    "change.flat": ("BF16", (8, 32)),
    "change.noisy": ("F32", (16, 16)),
    "change.scarce": ("BF16", (64, 32)),
    "shape.down_proj.weight": ("BF16", (24, 40)),  # split by columns
    "shape.empty": ("BF16", (0, 4)),
    "shape.long": ("U8", (2, 3, 300)),  # one row exceeds a frame
    "shape.odd": ("F6_E2M3", (4, 3)),  # rows of no whole bytes
    "shape.scalar": ("F32", ()),
    "shape.scalar64": ("I64", ()),
    "shape.tall.w2.weight": ("U8", (300, 4)),  # a column alone exceeds a frame
    "ünïcode": ("U8", (5,)),
    "z.embed": ("BF16", (32, 8)),
    "z.lm_head": ("BF16", (32, 8)),
}
Units = dict[str, NDArray[Any]]


@dataclass(slots=True)
class Golden:
    """Everything that is committed, and what it must read as."""

    objects: dict[str, bytes]
    weights: dict[str, dict[int, dict[str, bytes]]]
    """By run, version and tensor; a tie under its owner only."""


@dataclass(frozen=True, slots=True)
class Noting(TensorComparison):
    """Tells of every frame that differs."""

    note: Callable[[FrameChange], None]

    def compare(self, index: int) -> ComparedFrame | None:
        found = TensorComparison.compare(self, index)
        if found is not None:
            self.note(found.change)
        return found


class InTurn:
    """A choice of codecs that does not depend on what they cost: the first tensor that changes gets the first, and so on."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._turn = 0
        self._begun = True
        self._of_change: dict[int, str] = {}
        self._lock = Lock()

    @property
    def takes_context(self) -> bool:
        return CONTEXT in self._names

    def compare(self, spec: TensorSpec, grid: FrameGrid, old: NDArray[Any], new: NDArray[Any]) -> TensorComparison:
        """A tensor begins."""
        self._begun = False
        return Noting(spec, grid, old, new, self._note)

    def _note(self, change: FrameChange) -> None:
        with self._lock:
            self._turn += not self._begun
            self._begun = True
            self._of_change[id(change)] = self._now

    @property
    def _now(self) -> str:
        return self._names[self._turn % len(self._names)]

    def is_dense(self, changed: int, units: int) -> bool:
        """Whether it is the turn of `raw`."""
        del changed, units
        return self._now == "raw"

    def choose(self, pilot: Sequence[FrameChange], context: Codec | None = None, *, table_changes: int = 1) -> Codec:
        """The codec whose turn it was when the change was found; `sparse` where a dtype has no context."""
        del table_changes
        name = self._of_change[id(pilot[0])]
        if name != CONTEXT:
            return codec_named(name)
        return context or codec_named("sparse")


@contextmanager
def encoding_with(*names: str) -> Iterator[None]:
    """Every delta that is encoded in the body takes the named codecs in turn, one codec alone as a user would force it."""
    made = DeltaEncoder.__init__

    def with_choice(choice: Any) -> Any:
        def make(encoder: DeltaEncoder, *arguments: Any, **options: Any) -> None:
            made(encoder, *arguments, **options | {"choice": choice})

        return patch.object(DeltaEncoder, "__init__", make)

    if len(names) == 1:
        with with_choice(CodecChoice(forced=names[0])):
            yield
        return
    choice = InTurn(names)
    with with_choice(choice), patch("syncline.delta.encode.TensorComparison", choice.compare):
        yield


@dataclass(slots=True)
class Trainer:
    """Weights and the ways in which they move."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(20_260_101))
    shapes: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {name: shape for name, (_, shape) in SPECS.items()}
    )
    units: Units = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (dtype, shape) in SPECS.items():
            self.units[name] = self.some(dtype, shape)

    def some(self, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        width = dtypes.dtype(dtype).unit_bytes
        return self.random.integers(0, 256, dtypes.size_bytes(dtype, shape), dtype=np.uint8).view(f"<u{width}")

    def step(self) -> None:
        """A few bits of every tensor, and in three of them more: all units, long runs, noise that packs well."""
        for name, units in self.units.items():
            after = units.copy()
            for _ in range(min(4, units.size)):
                bit = int(self.random.integers(units.itemsize * 8))
                after[self.random.integers(units.size)] ^= units.dtype.type(1 << bit)
            self.units[name] = after
        self.units["change.dense"] = self.units["change.dense"] + np.uint16(1)
        self.units["change.flat"][: 8 * 20] ^= np.uint16(1)
        noise = self.random.random(16 * 16) < 0.6
        self.units["change.noisy"][noise] ^= self.random.integers(1, 4, int(noise.sum()), dtype=np.uint32)

    def weights(self) -> dict[str, Bits]:
        """As a trainer hands them over: tied names hold the same memory."""
        self.units["z.lm_head"] = self.units["z.embed"]
        return {name: Bits(SPECS[name][0], self.shapes[name], units) for name, units in self.units.items()}

    def grow(self) -> None:
        """`ünïcode` gets another shape."""
        self.shapes["ünïcode"] = (3, 5)
        self.units["ünïcode"] = self.some("U8", (3, 5))

    def bytes(self) -> dict[str, bytes]:
        return {name: units.tobytes() for name, units in sorted(self.units.items()) if name != "z.lm_head"}


def make() -> Golden:
    """Write both runs into memory."""
    with (
        TemporaryDirectory(prefix="syncline-golden-") as scratch,
        encoding_with("raw", "sparse", "xor-zstd", "xor-lz4"),
    ):
        golden = _Maker(Path(scratch)).run()
    clock = ManualClock(1_767_225_600.0)
    store = MemoryStore(clock)
    golden.weights[golden_context.RUN] = golden_context.write(store, clock)
    golden.objects |= objects(store)
    return golden


def objects(store: MemoryStore) -> dict[str, bytes]:
    """All of a store."""
    found = {info.key: store.get(info.key, max_bytes=1 << 20) for info in store.list_after("")}
    return {key: fetched.data for key, fetched in found.items() if fetched is not None}


class _Maker:
    def __init__(self, scratch: Path) -> None:
        self.clock = ManualClock(1_767_225_600.0)
        self.store = MemoryStore(self.clock)
        self.scratch = scratch
        self.trainer = Trainer()
        self.weights: dict[int, dict[str, bytes]] = {}
        self.publisher = self.writer(1)
        self.reader = ChainReader(self.store, RUN)

    def writer(self, seed: int) -> Publisher:
        settings = PublishSettings(tiling=TILING, max_shard_bytes=8_000)
        files = {"config.json": b'{"model_type":"golden"}'}
        return Publisher(self.store, RUN, settings=settings, clock=self.clock, random=random.Random(seed), files=files)

    def publish(self, **remarks: Any) -> None:
        self.clock.advance(60)
        published = self.publisher.publish(self.trainer.weights(), **remarks)
        self.weights[published.version] = self.trainer.bytes()

    def keep(self, name: str, settings: AnchorSettings) -> None:
        """One turn of a keeper of its own."""
        keeper = Keeper(
            self.store,
            self.reader,
            settings,
            self.scratch / name,
            self.clock,
            random.Random(name),
            Metrics(),
        )
        for _ in keeper.steps():
            pass

    def run(self) -> Golden:
        self.publish(step=0)
        self.trainer.step()
        self.publish(step=1)
        forked = dict(self.trainer.units)
        self.trainer.step()
        self.publish(step=2, labels={"reward": "0.25", "näme": 'quote " back \\ tab \t bell \x07'})
        self.trainer.units = forked
        self.trainer.step()
        self.publish(step=2, parent=2)
        self.keep("skip", AnchorSettings(anchor_every=0, anchor_ratio=0, skip_every=2))
        self.publisher = self.writer(2)
        self.publisher.open()
        self.weights[5] = self.weights[4]
        self.trainer.step()
        self.publish(step=3)
        self.keep("anchor", AnchorSettings(anchor_every=5, anchor_ratio=0, skip_every=0, max_shard_bytes=8_000))
        self.trainer.grow()
        self.publish(step=4)
        self.trainer.step()
        self.publish(step=5)
        mark_bad(self.reader, VETOED, "reward collapsed", clock=self.clock)
        self.trainer.step()
        self.publish(step=6)
        return self.observed()

    def observed(self) -> Golden:
        """What is in the store while one node serves version 6 and somebody holds a lease on 4."""
        lineage = self.reader.run_record().lineage
        applied = Applied(lineage, "main", 6, self.reader.manifest(6).digest, proven=True)
        status = Status(
            Identity("east", "rl", "rollout", "node-0"),
            run=RUN,
            lineage=lineage,
            head=9,
            target=9,
            applied=applied,
            in_service=True,
            lag_seconds=1.5,
            boot=5,
            apply_path=ApplyPath.DELTA,
            error="the store is slow",
        )
        heart = Heart(
            self.store, lambda: status, settings=HeartSettings(), clock=self.clock, random=random.Random("heart")
        )
        heart.beat(status)
        with heart.lease(self.reader.keys, lineage, owner="materialize", version=4):
            return Golden(objects(self.store), {RUN: self.weights})


def expected_text(golden: Golden) -> str:
    """`expected.json`."""
    hashes = {
        run: {
            str(version): {name: blake3(data).hexdigest() for name, data in tensors.items()}
            for version, tensors in versions.items()
        }
        for run, versions in golden.weights.items()
    }
    return json.dumps(hashes, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    golden = make()
    rmtree(FOLDER / "store", ignore_errors=True)
    for key, data in golden.objects.items():
        path = FOLDER / "store" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (FOLDER / "expected.json").write_text(expected_text(golden), encoding="utf-8")
    print(f"{len(golden.objects)} objects, {sum(map(len, golden.objects.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
