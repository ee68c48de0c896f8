"""A small run in a local store, made by the real publisher and keeper, and the command line called as a shell would."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from numpy.typing import NDArray

from syncline.chain import ChainReader
from syncline.checkpoint import header_bytes
from syncline.clock import SystemClock
from syncline.metrics import Metrics
from syncline.store.local import LocalStore
from syncline_cli.__main__ import main
from syncline_distributor.keeper import Keeper
from syncline_distributor.publisher import Publisher
from syncline_distributor.settings import AnchorSettings
from syncline_distributor.steps import run_steps

Weights = dict[str, NDArray[np.uint16]]
SHAPES: Mapping[str, tuple[int, ...]] = {
    "embed.weight": (64, 48),
    "layers.0.o_proj.weight": (40, 64),
    "norm.weight": (33,),
}


class Trainer:
    """BF16 weights whose bits change at random, written as checkpoint folders."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self._folder = folder
        self._random = np.random.default_rng(seed)
        self._written = 0
        self.weights: Weights = {
            name: (self._random.normal(0, 0.1, shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            for name, shape in SHAPES.items()
        }

    def step(self, changes: int = 5) -> Path:
        """Flip the lowest bit of a few elements of every tensor; the new checkpoint's folder."""
        for name, bits in self.weights.items():
            flat = bits.copy().reshape(-1)
            flat[self._random.choice(flat.size, changes, replace=False)] ^= np.uint16(1)
            self.weights[name] = flat.reshape(bits.shape)
        return self.write()

    def write(self) -> Path:
        self._written += 1
        folder = self._folder / f"checkpoint-{self._written}"
        folder.mkdir(parents=True)
        head = header_bytes((name, "BF16", list(bits.shape)) for name, bits in self.weights.items())
        (folder / "model.safetensors").write_bytes(head + b"".join(b.tobytes() for b in self.weights.values()))
        (folder / "config.json").write_text("{}")
        return folder


@dataclass(frozen=True, slots=True)
class Run:
    """Run `demo` in a folder: version 1 whole, 2 and 3 deltas, an anchor at 3, 5 a fork from 2 with a skip delta."""

    folder: Path
    checkpoints: Mapping[int, Path]
    """The trainer's own folder of each version."""

    @property
    def options(self) -> list[str]:
        return ["--store", str(self.folder), "--run", "demo"]

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.folder)

    @property
    def reader(self) -> ChainReader:
        return ChainReader(self.store, "demo")

    def file(self, key: str) -> Path:
        return self.folder / key

    def chunk_of(self, version: int) -> Path:
        """The file of a version's first chunk."""
        reader = self.reader
        return self.file(reader.keys.chunk(reader.manifest(version).chunks[0].blake3))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("run")
    store, trainer = LocalStore(home / "store"), Trainer(home)
    publisher = Publisher(store, "demo")

    def keep(**settings: Any) -> None:
        policy, reader = AnchorSettings(anchor_ratio=0, **settings), ChainReader(store, "demo")
        keeper = Keeper(store, reader, policy, home / "keeper", SystemClock(), random.Random(1), Metrics())
        assert run_steps(keeper.steps()) is not None

    checkpoints: dict[int, Path] = {}
    for step, parent in ((10, None), (11, None), (12, None), (13, None), (12, 2)):
        folder = trainer.step()
        published = publisher.publish(folder, step=step, parent=parent, labels={"note": "[bold]plain[/bold]"})
        checkpoints[published.version] = folder
        if published.version == 3:
            keep(anchor_every=2)
    publisher.close()
    keep(anchor_every=0, skip_every=1)
    return Run(home / "store", checkpoints)


@pytest.fixture
def run(made: Run, tmp_path: Path) -> Run:
    """A copy to do anything to."""
    shutil.copytree(made.folder, tmp_path / "store")
    return Run(tmp_path / "store", made.checkpoints)


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path / "trainer")


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output, which must be exactly one JSON document on one line."""
        assert 1 == self.out.count("\n"), self.out
        return json.loads(self.out)


@pytest.fixture
def syncline(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ended]]:
    """Call `syncline` in this process."""
    for name in ("SYNCLINE_STORE", "SYNCLINE_RUN", "SYNCLINE_VIEW"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return Ended(int(ended.value.code or 0), out, err)

    yield call
    structlog.reset_defaults()
