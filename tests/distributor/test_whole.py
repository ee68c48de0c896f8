"""Writing whole weights: the next shard is built while one leaves, no more than two are ever on disk, and a failure leaves
nothing behind."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import Buffer

from syncline.clock import ManualClock
from syncline.errors import DigestMismatch, StoreUnavailable
from syncline.store.keys import RunKeys
from syncline.store.memory import MemoryStore
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_distributor.whole import BodyWriter

SHARDS = 5
TABLE = TensorTable(tensors=[TensorSpec(name=f"t{n}", dtype="BF16", shape=[100], axis=0) for n in range(SHARDS)])
KEYS = RunKeys("run").view("main")
NONCE = "0" * 32


class Uplink(MemoryStore):
    """A store whose uploads wait until the writer has begun with the next shard, and see what lies in the spool."""

    def __init__(self, spool: Path, *, fails_at: int | None = None) -> None:
        super().__init__(ManualClock())
        self.begun = [Event() for _ in range(SHARDS)]
        self.on_disk: list[int] = []
        self._spool, self._fails_at = spool, fails_at

    def put_large(self, key: str, source: Path | Buffer) -> str:
        if not key.endswith(".safetensors"):
            return super().put_large(key, source)
        if len(self.on_disk) + 1 < SHARDS:
            assert self.begun[len(self.on_disk) + 1].wait(30), "the next shard is not built before this one has left"
        self.on_disk.append(len(list(self._spool.rglob("*.safetensors"))))
        if len(self.on_disk) == self._fails_at:
            raise StoreUnavailable(f"{key}: no")
        return super().put_large(key, source)


def write(store: Uplink, spool: Path, *, keep: Path | None = None, seen: Any = None) -> Any:
    def read(tensor: int) -> NDArray[Any]:
        store.begun[tensor].set()
        return np.full(100, tensor, np.uint16)

    writer = BodyWriter(store, KEYS, spool=spool, max_shard_bytes=200)
    return writer.write(1, NONCE, table=TABLE, read=read, files={}, seen=seen, keep=keep)


def test_the_next_shard_is_built_while_one_leaves(tmp_path: Path) -> None:
    store = Uplink(tmp_path)
    body = write(store, tmp_path)
    assert SHARDS == sum(f.name.endswith(".safetensors") for f in body.files)
    assert 2 >= max(store.on_disk)
    assert [] == list(tmp_path.iterdir())
    for file in body.files:
        assert file.size == store.head(KEYS.anchor_file(1, NONCE, file.name)).size


def test_shards_that_are_kept_stay_with_their_index(tmp_path: Path) -> None:
    spool, keep = tmp_path / "spool", tmp_path / "keep"
    spool.mkdir()
    body = write(Uplink(spool), spool, keep=keep)
    assert {f.name for f in body.files} == {p.name for p in keep.iterdir()}
    assert [] == list(spool.iterdir())


@pytest.mark.parametrize("fails_at", [1, 3, SHARDS])
def test_an_upload_that_fails_ends_the_body_and_leaves_no_file(tmp_path: Path, fails_at: int) -> None:
    store = Uplink(tmp_path, fails_at=fails_at)
    with pytest.raises(StoreUnavailable):
        write(store, tmp_path)
    assert fails_at == len(store.on_disk)
    assert [] == list(tmp_path.iterdir())


def test_a_tensor_that_is_refused_waits_for_the_shard_on_its_way(tmp_path: Path) -> None:
    def seen(tensor: int, _: NDArray[Any]) -> None:
        if tensor == 2:
            raise DigestMismatch("t2")

    store = Uplink(tmp_path)
    with pytest.raises(DigestMismatch):
        write(store, tmp_path, seen=seen)
    assert 2 == len(store.on_disk)
    assert [] == list(tmp_path.iterdir())
