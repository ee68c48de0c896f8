"""kill -9 of the agent's process at every kill point of apply that lies in it: what comes back converges, and is proven."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from syncline import faults
from syncline.checkpoint import Checkpoint
from syncline.clock import SystemClock
from syncline.delta import digest_tensor
from syncline.errors import CheckpointBusy, SourceNotReady
from syncline.store.keys import RunKeys
from syncline.store.local import LocalStore
from syncline.testing.killing import KillableMain, was_killed
from syncline.wire.digest import total
from syncline.wire.limits import RECORD_MAX_BYTES
from syncline.wire.records import ConsumerRecord
from syncline.wire.tiling import Tiling
from syncline_agent.arm.client import ArmClient, ArmIdentity
from syncline_agent.arm.gate import OpenGate
from syncline_agent.arm.host_memory import HostMemory
from syncline_agent.arm.layout import Block, Layout
from syncline_agent.arm.live import LiveWeights
from syncline_agent.policy import Target, encode_target
from syncline_agent.testing.bits import stores_of
from syncline_distributor.publisher import Publisher
from syncline_distributor.settings import PublishSettings

IN_THE_ENGINE = {"apply.scattering", "apply.scattered"}
"""Reached by the engine's process; tests of the arm kill that one."""
POINTS = sorted(faults.APPLY_POINTS.keys() - IN_THE_ENGINE)
AGAIN = [f"{point}#2" for point in POINTS if point.startswith("apply.checkpoint_")]
"""The first time is while joining, the second while the background advances the checkpoint of a running engine."""
DEADLINE_SECONDS = 40.0


class Engine:
    """An arm without a model, in this process: it loads the node's checkpoint once there is one, and outlives agents."""

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        self._stopping = threading.Event()
        self.live: LiveWeights | None = None
        self._client: ArmClient | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self.live is None and not self._stopping.wait(0.02):
            self._load()
        if self.live is not None and not self._stopping.is_set():
            identity = ArmIdentity("bare", "default", "pod-0")
            self._client = ArmClient(
                self._node_dir / "arm.sock",
                identity,
                self.live,
                OpenGate(SystemClock()),
                randomness=random.Random(1),
                log=structlog.get_logger(),
            )
            self._client.start()

    def _load(self) -> None:
        if not (self._node_dir / "checkpoint" / ".syncline").is_dir():
            return
        checkpoint = Checkpoint.open(self._node_dir / "checkpoint")
        try:
            with checkpoint.reading():
                marker = checkpoint.marker
                assert marker is not None
                tensors = {s.name: np.array(checkpoint.units(s.name)) for s in checkpoint.table.tensors}
                live = LiveWeights(checkpoint.table, marker.tiling.tiling, tensors)
        except (SourceNotReady, CheckpointBusy):
            return
        live.prove(marker.lineage, marker.view, marker.version, marker.digest)
        self.live = live

    @property
    def serves(self) -> tuple[int, str] | None:
        """Version and digest of the bits in memory, when they are claimed to be proven."""
        live = self.live
        if live is None or not live.in_service or live.applied is None:
            return None
        found = total(digest_tensor(s, stores_of(live)[i]) for i, s in enumerate(live.table.tensors))
        return live.applied.version, found.hex

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self._client is not None:
            self._client.stop()


class Island(Engine):
    """The same, whose weights two ranks share by rows, with a gate of its own."""

    RANKS = 2

    def __init__(self, node_dir: Path) -> None:
        self.ranks: list[LiveWeights] = []
        self._clients: list[ArmClient] = []
        super().__init__(node_dir)

    def _run(self) -> None:
        while not self.ranks and not self._stopping.wait(0.02):
            self._load()
        if self._stopping.is_set():
            return
        for rank in (None, *range(self.RANKS)):
            live, gate = (None, OpenGate(SystemClock())) if rank is None else (self.ranks[rank], None)
            client = ArmClient(
                self._node_dir / "arm.sock",
                ArmIdentity("bare", "default", "pod-0", rank, self.RANKS),
                live,
                gate,
                randomness=random.Random(1),
                log=structlog.get_logger(),
            )
            client.start()
            self._clients.append(client)

    def _load(self) -> None:
        if not (self._node_dir / "checkpoint" / ".syncline").is_dir():
            return
        checkpoint = Checkpoint.open(self._node_dir / "checkpoint")
        try:
            with checkpoint.reading():
                marker = checkpoint.marker
                assert marker is not None
                ranks = [self._load_rank(checkpoint, rank, marker.tiling.tiling) for rank in range(self.RANKS)]
        except (SourceNotReady, CheckpointBusy):
            return
        for live in ranks:
            live.prove(marker.lineage, marker.view, marker.version, marker.digest)
        self.ranks = ranks

    def _load_rank(self, checkpoint: Checkpoint, rank: int, tiling: Tiling) -> LiveWeights:
        table, blocks, stores = checkpoint.table, [], []
        for tensor, spec in enumerate(table.tensors):
            rows, columns = spec.shape
            low, high = (rows * n // self.RANKS for n in (rank, rank + 1))
            blocks.append(Block(tensor, (low, 0), (high - low, columns), tensor, 0, (columns, 1)))
            stores.append(np.array(checkpoint.units(spec.name)[low * columns : high * columns]))
        memory = HostMemory(Layout.of(table, blocks), tiling, stores, loaded=checkpoint.units)
        return LiveWeights(table, tiling, memory)

    @property
    def serves(self) -> tuple[int, str] | None:
        held = {live.applied.version for live in self.ranks if live.in_service and live.applied is not None}
        if len(held) != 1 or not all(live.in_service for live in self.ranks):
            return None
        found = total(
            digest_tensor(spec, np.concatenate([stores_of(live)[tensor] for live in self.ranks]))
            for tensor, spec in enumerate(self.ranks[0].table.tensors)
        )
        return held.pop(), found.hex

    def stop(self) -> None:
        super().stop()
        for client in self._clients:
            client.stop()


class Trainer:
    def __init__(self, folder: Path) -> None:
        self.bits = np.random.default_rng(7)
        self.weights = {f"layers.{i}.weight": self.bits.integers(0, 2**16, (64, 32), dtype=np.uint16) for i in range(4)}
        store = LocalStore(folder, rng=random.Random(2))
        self.publisher = Publisher(store, "run", settings=PublishSettings(tiling=Tiling(64, 1024, 4)))

    def publish(self) -> tuple[int, str]:
        for weights in self.weights.values():
            flat = weights.reshape(-1)
            flat[self.bits.choice(flat.size, 20, replace=False)] ^= 1
        manifest = self.publisher.publish(self.weights).manifest
        return manifest.version, manifest.digest


@pytest.fixture
def main(tmp_path: Path) -> Iterator[KillableMain]:
    program = KillableMain("syncline_agent.__main__", tmp_path / "agent.log")
    yield program
    program.end_all()


def wait_for(engine: Engine, wanted: tuple[int, str]) -> None:
    waiting = threading.Event()
    for _ in range(int(DEADLINE_SECONDS / 0.02)):
        if engine.serves == wanted:
            return
        waiting.wait(0.02)
    pytest.fail(f"the engine serves {engine.serves}, not {wanted}")


@pytest.mark.parametrize("point", [*POINTS, *AGAIN])
def test_an_agent_killed_anywhere_converges_when_it_is_started_again(
    tmp_path: Path, main: KillableMain, point: str
) -> None:
    kill_and_start_again(tmp_path, main, point, Engine)


@pytest.mark.parametrize("point", ["apply.writing", "apply.resumed"])
def test_an_agent_killed_in_a_commit_of_two_ranks_and_a_gate_converges(
    tmp_path: Path, main: KillableMain, point: str
) -> None:
    kill_and_start_again(tmp_path, main, point, Island)


def kill_and_start_again(tmp_path: Path, main: KillableMain, point: str, kind: type[Engine]) -> None:
    trainer = Trainer(tmp_path / "store")
    trainer.publish()
    trainer.publish()
    target = tmp_path / "target.json"
    target.write_text(encode_target(Target("run")))
    node_dir = tmp_path / "n"
    arguments = ["--store", str(tmp_path / "store"), "--target", str(target), "--node-dir", str(node_dir)]
    arguments += ["--poll-seconds", "0.05", "--log-format", "json", "--advance-every", "1"]
    engine = kind(node_dir)
    try:
        first = main.start(arguments, kill_at=point)
        newest: tuple[int, str] | None = None
        for _ in range(int(DEADLINE_SECONDS / 0.1)):
            first.join(0.1)
            if first.exitcode is not None:
                break
            if engine.serves is not None and newest is None:
                newest = trainer.publish()
        assert was_killed(first, within_seconds=1), (tmp_path / "agent.log").read_text()[-2000:]
        main.start(arguments)
        wait_for(engine, trainer.publish())
        newest = trainer.publish()
        wait_for(engine, newest)
    finally:
        engine.stop()


def test_the_points_of_apply_are_all_killed_somewhere() -> None:
    assert IN_THE_ENGINE < faults.APPLY_POINTS.keys()
    assert len(POINTS) == len(faults.APPLY_POINTS) - len(IN_THE_ENGINE)


def test_an_agent_that_is_asked_to_end_says_goodbye(tmp_path: Path, main: KillableMain) -> None:
    trainer = Trainer(tmp_path / "store")
    trainer.publish()
    target = tmp_path / "target.json"
    target.write_text(encode_target(Target("run")))
    arguments: list[Any] = ["--store", str(tmp_path / "store"), "--target", str(target)]
    child = main.start([*arguments, "--node-dir", str(tmp_path / "n"), "--poll-seconds", "0.05"])
    engine = Engine(tmp_path / "n")
    try:
        while engine.live is None:
            child.join(0.05)
        wait_for(engine, trainer.publish())
        child.terminate()
        child.join(DEADLINE_SECONDS)
        assert 0 == child.exitcode, (tmp_path / "agent.log").read_text()[-2000:]
    finally:
        engine.stop()
    store = LocalStore(tmp_path / "store", rng=random.Random(1))
    key = RunKeys("run").view().consumer("local", "default", "default", "node-0")
    fetched = store.get(key, max_bytes=RECORD_MAX_BYTES)
    assert fetched is not None
    record = ConsumerRecord.parse(fetched.data, what=key)
    assert (True, 2, True) == (record.leaving, record.applied, record.proven)
