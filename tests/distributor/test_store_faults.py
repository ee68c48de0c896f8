"""A store that is down, slow, full, forbidden, forgetful or lying: a publish leaves no version or a whole one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from syncline.chain import PUT_BACK, ChainReader
from syncline.clock import ManualClock
from syncline.errors import Retryable, StoreDenied, StoreUnavailable, SynclineError
from syncline.store.faulty import Fault, FaultKind, FaultyStore, RandomFaults, ScriptedFaults
from syncline.store.memory import MemoryStore
from syncline.store.retrying import RetryingStore
from syncline_distributor import Publisher

Make = Callable[..., Publisher]


def faulty(
    store: MemoryStore, clock: ManualClock, *script: tuple[str, str, FaultKind]
) -> tuple[FaultyStore, ScriptedFaults]:
    """The store with these faults, each once."""
    plan = ScriptedFaults([(operation, part, Fault(kind)) for operation, part, kind in script])
    return FaultyStore(store, plan, clock=clock, rng=random.Random(0)), plan


@pytest.mark.parametrize("disk", [None, "state"])
def test_a_commit_whose_reply_was_lost_is_found_by_its_repetition(
    publisher: Make,
    trainer: Any,
    store: MemoryStore,
    clock: ManualClock,
    reading: Any,
    same_bits: Any,
    disk: str | None,
) -> None:
    broken, plan = faulty(store, clock, ("put_if_absent", "versions/000000000002", FaultKind.LOST_REPLY))
    publish, source = publisher(on=broken, disk=disk), trainer()
    publish.publish(source.weights, step=1)
    source.step()
    with pytest.raises(StoreUnavailable):
        publish.publish(source.weights, step=2)
    assert 0 == plan.left
    repeated = publish.publish(source.weights, step=2)
    assert 2 == repeated.version
    assert [1, 2] == ChainReader(store, "run").versions()
    after = publish.publish(source.step(), step=3)
    assert (3, 2) == (after.version, after.manifest.base)
    assert same_bits(source.weights, reading.units(store, 3))


def test_other_weights_after_a_lost_reply_are_the_version_after_it(
    publisher: Make, trainer: Any, store: MemoryStore, clock: ManualClock, reading: Any, same_bits: Any
) -> None:
    broken, _ = faulty(store, clock, ("put_if_absent", "versions/000000000002", FaultKind.LOST_REPLY))
    publish, source = publisher(on=broken), trainer()
    publish.publish(source.weights, step=1)
    lost = source.step()
    with pytest.raises(StoreUnavailable):
        publish.publish(lost, step=2)
    after = publish.publish(source.step(), step=3)
    assert (3, 2) == (after.version, after.manifest.base)
    assert same_bits(lost, reading.units(store, 2))
    assert same_bits(source.weights, reading.units(store, 3))


def test_the_first_version_survives_a_lost_reply_too(
    publisher: Make, trainer: Any, store: MemoryStore, clock: ManualClock
) -> None:
    broken, _ = faulty(
        store,
        clock,
        ("put_if_absent", "run.json", FaultKind.LOST_REPLY),
        ("put_if_absent", "versions/000000000001", FaultKind.LOST_REPLY),
    )
    publish, source = publisher(on=broken), trainer()
    with pytest.raises(StoreUnavailable):
        publish.open()
    with pytest.raises(StoreUnavailable):
        publish.publish(source.weights, step=1)
    assert 1 == publish.publish(source.weights, step=1).version
    assert [1] == ChainReader(store, "run").versions()
    assert 2 == publish.publish(source.step(), step=2).version


@pytest.mark.parametrize("kind", [FaultKind.UNAVAILABLE, FaultKind.FULL, FaultKind.DENIED, FaultKind.LOST_REPLY])
@pytest.mark.parametrize(
    ("operation", "part"), [("put_if_absent", "chunks/"), ("put_if_absent", "versions/"), ("head", "chunks/")]
)
def test_a_publish_that_failed_can_be_repeated(
    publisher: Make, trainer: Any, store: MemoryStore, clock: ManualClock, reading: Any, same_bits: Any,
    operation: str, part: str, kind: FaultKind,
) -> None:  # fmt: skip
    source = trainer()
    plan = ScriptedFaults([])
    broken = FaultyStore(store, plan, clock=clock, rng=random.Random(0))
    publish = publisher(on=broken)
    publish.publish(source.weights)
    source.step()
    plan._script.append((operation, part, Fault(kind)))
    with pytest.raises((Retryable, StoreDenied)):
        publish.publish(source.weights)
    assert 2 == publish.publish(source.weights).version
    assert same_bits(source.weights, reading.units(store, 2))


def test_a_head_that_cannot_be_moved_costs_nothing_but_the_hint(
    publisher: Make, trainer: Any, store: MemoryStore, clock: ManualClock
) -> None:
    broken, plan = faulty(
        store,
        clock,
        ("compare_and_put", "head", FaultKind.UNAVAILABLE),
        ("compare_and_put", "head", FaultKind.LOST_REPLY),
    )
    publish, source = publisher(on=broken), trainer()
    for version in (1, 2, 3):
        assert version == publish.publish(source.step()).version
        head = ChainReader(store, "run").head()
        assert head is not None and version == head.version
    assert 0 == plan.left


def test_garbage_in_head_is_replaced(publisher: Make, trainer: Any, store: MemoryStore) -> None:
    publish, source = publisher(), trainer()
    publish.publish(source.weights)
    store.put("run/main/head", b"no record")
    publish.publish(source.step())
    found = store.get("run/main/head", max_bytes=1000)
    assert found is not None and b'"version":2' in found.data


def test_a_chunk_that_the_store_lost_is_noticed_before_the_commit(
    publisher: Make, trainer: Any, store: MemoryStore
) -> None:
    class Forgetful(MemoryStore):
        """Says that it stored a chunk, and did not."""

        def put_if_absent(self, key: str, data: Any) -> str:
            return "stored" if "/chunks/" in key and forget else super().put_if_absent(key, data)

    forget = False
    clock = ManualClock()
    lying = Forgetful(clock)
    publish, source = publisher(on=lying), trainer()
    publish.publish(source.weights)
    forget = True
    with pytest.raises(StoreUnavailable, match="was put and is not there"):
        publish.publish(source.step())
    forget = False
    assert 2 == publish.publish(source.weights).version


def test_a_writer_that_slept_through_a_sweep_puts_its_chunks_again(
    publisher: Make, trainer: Any, store: MemoryStore, clock: ManualClock, reading: Any, same_bits: Any
) -> None:
    publish, source = publisher(), trainer()
    publish.publish(source.weights)
    steps = publish.publish_steps(source.step())
    while "publish.chunks_put" != next(steps):
        pass
    known = {c.blake3 for c in ChainReader(store, "run").manifest(1).chunks}
    table = ChainReader(store, "run").manifest(1).tensors.blake3
    for info in list(store.list_after("run/main/chunks/")):
        if info.key.rpartition("/")[2] not in known | {table}:
            store.delete(info.key)
    clock.advance(3600)
    for _ in steps:
        pass
    assert same_bits(source.weights, reading.units(store, 2))


@pytest.mark.parametrize("disk", [None, "state"])
def test_a_writer_that_slept_through_a_sweep_puts_a_whole_versions_files_again(
    publisher: Make,
    trainer: Any,
    store: MemoryStore,
    clock: ManualClock,
    reading: Any,
    same_bits: Any,
    disk: str | None,
) -> None:
    publish, source = publisher(disk=disk), trainer()
    steps = publish.publish_steps(source.weights)
    while "publish.anchor_files_put" != next(steps):
        pass
    for prefix in ("run/main/anchors/", "run/main/chunks/"):
        for info in list(store.list_after(prefix)):
            store.delete(info.key)
    clock.advance(3600)
    for _ in steps:
        pass
    assert same_bits(source.weights, reading.units(store, 1))
    assert 2 == publish.publish(source.step()).version
    assert same_bits(source.weights, reading.units(store, 2))


def test_a_chain_that_lost_a_link_is_healed_by_a_whole_version(
    publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    first, source = publisher(), trainer()
    for _ in range(3):
        first.publish(source.step())
    chunk = ChainReader(store, "run").manifest(2).chunks[0]
    store.delete(f"run/main/chunks/{chunk.blake3}")
    second = publisher()
    with capture_logs() as said:
        second.open()
        manifest = second.publish(source.step()).manifest
    assert (5, None, 2) == (manifest.version, manifest.base, manifest.epoch)
    (told,) = (line for line in said if line["event"] == "no way to head; the next version carries all weights")
    assert "warning" == told["log_level"]
    assert PUT_BACK not in told["reason"]  # this very publish is what would be advised
    assert same_bits(source.weights, reading.units(store, 5))


@pytest.mark.parametrize("seed", range(8))
def test_random_faults_never_lose_a_version_nor_a_bit(
    trainer: Any, reading: Any, same_bits: Any, tmp_path: Path, publisher: Make, seed: int
) -> None:
    clock, rng = ManualClock(), random.Random(seed)
    store = MemoryStore(clock)
    chances = {FaultKind.UNAVAILABLE: 0.03, FaultKind.LOST_REPLY: 0.05, FaultKind.FULL: 0.02, FaultKind.FLIPPED: 0.01}
    broken = FaultyStore(store, RandomFaults(rng, chances), clock=clock, rng=rng)
    hardy = RetryingStore(broken, clock=clock, rng=rng)
    on = [broken, hardy][seed % 2]
    publish, source = publisher(on=on, disk="state" if seed % 4 < 2 else None), trainer(seed)
    held: dict[int, Any] = {}
    for step in range(6):
        weights = source.step()
        for _ in range(30):
            try:
                held[publish.publish(weights, step=step).version] = weights
                break
            except SynclineError:
                continue
        else:
            raise AssertionError("30 tries were not enough")
    versions = ChainReader(store, "run").versions()
    assert list(range(1, len(versions) + 1)) == versions
    for version, weights in held.items():
        assert same_bits(weights, reading.units(store, version))
