"""Chunks on their way: kept by the writer until the version is safe, put in parallel with encoding, receipts
checked."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from shutil import rmtree
from typing import Protocol

from typing_extensions import Buffer

from syncline.checkpoint import let_go
from syncline.errors import AlreadyExists, NotFound, StoreUnavailable
from syncline.store.base import WeightStore
from syncline.store.keys import ViewKeys
from syncline.wire.records import ChunkRef


class Spool(Protocol):
    """Where an attempt's chunks stay: for advancing the base, and for putting again what retention took from a
    writer that slept."""

    def add(self, ref: ChunkRef, data: bytes) -> None: ...

    def chunk(self, ref: ChunkRef) -> Buffer: ...

    def let_go(self) -> None:
        """Give back memory that chunks of it are mapped to; they stay readable."""
        ...

    def clear(self) -> None: ...


class MemorySpool:
    """In the trainer's own memory: O(delta)."""

    def __init__(self) -> None:
        self._chunks: dict[str, bytes] = {}

    def add(self, ref: ChunkRef, data: bytes) -> None:
        self._chunks[ref.blake3] = data

    def chunk(self, ref: ChunkRef) -> Buffer:
        return self._chunks[ref.blake3]

    def let_go(self) -> None:
        pass  # this memory is all there is

    def clear(self) -> None:
        self._chunks.clear()


class FolderSpool:
    """Files in a folder of the state directory, mapped when they are read. Not durable: a restart advances from
    the store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: list[mmap.mmap] = []
        self.clear()

    def add(self, ref: ChunkRef, data: bytes) -> None:
        (self._folder / ref.blake3).write_bytes(data)

    def chunk(self, ref: ChunkRef) -> Buffer:
        with (self._folder / ref.blake3).open("rb") as file:
            self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return self._maps[-1]

    def let_go(self) -> None:
        for mapped in self._maps:
            let_go(mapped)

    def clear(self) -> None:
        self._maps.clear()
        rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)


class Uploads:
    """One attempt's uploads. At most `in_flight` chunks wait in memory; without an executor each is put where it
    is made."""

    def __init__(
        self, store: WeightStore, keys: ViewKeys, spool: Spool, *, executor: Executor | None, in_flight: int
    ) -> None:
        self._store = store
        self._keys = keys
        self._spool = spool
        self._executor = executor
        self._in_flight = max(1, in_flight)
        self._running: list[Future[None]] = []

    def put(self, ref: ChunkRef, data: bytes) -> None:
        """Take a chunk from the encoder; blocks while too many are on their way. Raises what an earlier upload
        raised."""
        self._spool.add(ref, data)
        if self._executor is None:
            put_chunk(self._store, self._keys, ref, data)
            return
        while len(self._running) >= self._in_flight:
            self._running.pop(0).result()
        self._running.append(self._executor.submit(put_chunk, self._store, self._keys, ref, data))

    def wait(self) -> None:
        """Every chunk is in the store on return."""
        while self._running:
            self._running.pop(0).result()

    def abandon(self) -> None:
        """Let go of what is still running; nothing names those chunks, and retention takes them."""
        for future in self._running:
            future.cancel()
        self._running.clear()

    def restore(self, refs: Sequence[ChunkRef]) -> int:
        """Put again every chunk that is gone, after the manifest that names them exists. Returns how many."""
        missing = 0
        for ref in refs:
            try:
                self._store.head(self._keys.chunk(ref.blake3))
            except NotFound:
                put_chunk(self._store, self._keys, ref, self._spool.chunk(ref))
                missing += 1
        return missing


def put_chunk(store: WeightStore, keys: ViewKeys, ref: ChunkRef, data: Buffer) -> None:
    """Put one chunk and look at the receipt: the store must now hold an object of that size under that name."""
    key = keys.chunk(ref.blake3)
    try:
        store.put_if_absent(key, data)
    except AlreadyExists:
        pass  # an earlier try of this very chunk: its name is its content
    try:
        size = store.head(key).size
    except NotFound:
        raise StoreUnavailable(f"{key} was put and is not there; the store lost it, publish again") from None
    if size != ref.size:
        store.delete(key)
        raise StoreUnavailable(f"{key} holds {size} bytes after {ref.size} were put; removed it, publish again")
