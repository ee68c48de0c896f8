"""A trainer that changes a few bits a step, publishers and watches over one store, and a reader that trusts only what
it decodes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from syncline.chain import ChainReader
from syncline.checkpoint import header_bytes, materialize
from syncline.clock import ManualClock
from syncline.errors import NotFound
from syncline.metrics import Metrics
from syncline.store.base import WeightStore
from syncline.store.memory import MemoryStore
from syncline.wire import dtypes
from syncline.wire.records import VersionManifest
from syncline.wire.tensors import COLUMN_SPLIT
from syncline.wire.tiling import Tiling
from syncline_distributor import Bits, Publisher, PublishSettings
from syncline_distributor.bases import DiskBase
from syncline_distributor.settings import Completion, WatchSettings
from syncline_distributor.sources import FolderSource
from syncline_distributor.watch import Watch

TILING = Tiling(64, 256, 4)
SPECS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "a.mask": ("BOOL", (7,)),
    "b.codes": ("F4", (6, 10)),
    "c.count": ("I64", ()),
    "d.empty": ("BF16", (0, 4)),
    "e.embed": ("BF16", (64, 48)),
    "f.down_proj.weight": ("BF16", (40, 64)),
    "g.norm": ("F32", (129,)),
    "h.scale": ("F8_E8M0", (33,)),
    "i.expert": ("F8_E4M3", (16, 17)),
    "j.wide": ("I64", (11, 30)),
}
"""Every unit width, rows and columns, packed codes, a 0-d and an empty tensor."""


class Trainer:
    """Weights whose bits change at random."""

    def __init__(self, seed: int = 0, specs: Mapping[str, tuple[str, tuple[int, ...]]] = SPECS) -> None:
        self._random = np.random.default_rng(seed)
        self.weights = {name: self._some(dtype, shape) for name, (dtype, shape) in specs.items()}

    def _some(self, dtype: str, shape: tuple[int, ...]) -> Bits:
        width = dtypes.dtype(dtype).unit_bytes
        count = dtypes.units(dtype, shape)
        raw = self._random.integers(0, 256, count * width, dtype=np.uint8)
        return Bits(dtype, shape, raw.view(f"<u{width}"))

    def step(self, changes: int = 5) -> dict[str, Bits]:
        """Flip a bit in up to `changes` units of every tensor."""
        after: dict[str, Bits] = {}
        for name, bits in self.weights.items():
            units = bits.units.copy()
            if units.size:
                at = np.unique(self._random.integers(0, units.size, changes))
                units[at] ^= units.dtype.type(1)
            after[name] = Bits(bits.dtype, bits.shape, units)
        self.weights = after
        return after


def write_folder(
    folder: Path, weights: Mapping[str, Bits], *, shards: int = 1, files: Mapping[str, str] | None = None
) -> Path:
    """A Hugging Face style checkpoint folder, plainly written."""
    folder.mkdir(parents=True)
    names = sorted(weights, key=lambda n: -weights[n].units.itemsize)
    parts = [names[i::shards] for i in range(shards)]
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = "model.safetensors" if shards == 1 else f"model-{number:05d}-of-{shards:05d}.safetensors"
        head = header_bytes((n, weights[n].dtype, list(weights[n].shape)) for n in part)
        (folder / file).write_bytes(head + b"".join(weights[n].units.tobytes() for n in part))
        weight_map |= dict.fromkeys(part, file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for name, text in (files or {"config.json": "{}"}).items():
        (folder / name).write_text(text)
    return folder


class Reading:
    """Reads versions back the way any joiner does: from an anchor and deltas, every digest checked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def units(self, store: WeightStore, version: int, run: str = "run") -> dict[str, NDArray[Any]]:
        self._count += 1
        checkpoint = materialize(ChainReader(store, run), version, self._folder / f"read-{self._count}", vetoed=())
        return {spec.name: np.array(checkpoint.units(spec.name)) for spec in checkpoint.table.tensors}


def same(expected: Mapping[str, Bits], found: Mapping[str, NDArray[Any]]) -> bool:
    """Whether the very bits are there."""
    return expected.keys() == found.keys() and all(
        np.array_equal(bits.units, found[name]) for name, bits in expected.items()
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def trainer() -> type[Trainer]:
    return Trainer


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    return Reading(tmp_path / "readings")


@pytest.fixture
def same_bits() -> Callable[[Mapping[str, Bits], Mapping[str, NDArray[Any]]], bool]:
    return same


@pytest.fixture
def checkpoint_folder() -> Callable[..., Path]:
    return write_folder


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def publisher(store: MemoryStore, clock: ManualClock, tmp_path: Path) -> Callable[..., Publisher]:
    """Makes publishers; `disk` names a state directory for one with a base on disk."""
    seeds = iter(range(1, 1000))

    def make(
        *, on: WeightStore | None = None, disk: str | None = None, settings: PublishSettings | None = None, **more: Any
    ) -> Publisher:
        base = DiskBase(tmp_path / disk) if disk is not None else None
        return Publisher(
            on or store,
            more.pop("run", "run"),
            settings=settings or PublishSettings(tiling=TILING),
            base=base,
            clock=clock,
            random=random.Random(next(seeds)),
            **more,
        )

    return make


class Watching:
    """A watch over `folder`, its publisher, and the versions that came of it."""

    def __init__(
        self, publisher: Publisher, folder: Path, state: Path, settings: WatchSettings, source: Any, clock: ManualClock
    ) -> None:
        state.mkdir(exist_ok=True)
        self.publisher, self.metrics = publisher, Metrics()
        self._seen = ChainReader(publisher.reader.store, "run")
        self.watch = Watch(
            publisher, source or FolderSource(folder, subfolder=settings.subfolder), settings, state_dir=state,
            clock=clock, metrics=self.metrics, column_split=COLUMN_SPLIT, observed=self._observed,
        )  # fmt: skip

    def _observed(self) -> VersionManifest | None:
        try:
            return self._seen.head()
        except NotFound:
            return None

    def tick(self, times: int = 1) -> list[tuple[int | None, int | None]]:
        """(step, parent) of every version, epochs' empty ones left out."""
        for _ in range(times):
            self.watch.tick()
        if self.publisher.head is None:
            return []
        reader = ChainReader(self.publisher.reader.store, "run")
        manifests = [reader.manifest(v) for v in reader.versions()]
        return [(m.step, m.parent) for m in manifests if m.labels]


@pytest.fixture
def watching(publisher: Callable[..., Publisher], tmp_path: Path, clock: ManualClock) -> Callable[..., Watching]:
    """Makes watches over the folder `runs`, or over another source."""
    renamed = WatchSettings(completion=Completion.RENAME)

    def make(settings: WatchSettings = renamed, *, state: str = "state", source: Any = None, **more: Any) -> Watching:
        publishing = publisher(disk=state, **more)
        return Watching(publishing, tmp_path / "runs", tmp_path / state, settings, source, clock)

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a checkpoint into the folder `runs`."""

    def make(name: str, weights: Any, **more: Any) -> Path:
        return write_folder(tmp_path / "runs" / name, weights, **more)

    return make
