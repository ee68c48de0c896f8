"""Verified chunk fetch: from the first source that has the right bytes into files of the node, in bounded memory.

Sources stand in order of nearness ([mirror, origin]). A chunk is read in pieces into one buffer a worker, hashed as
it is written, and becomes a chunk file only when it hashes to its name; what does not is quarantined and read again,
then from the next source. Nothing here decides what to fetch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from syncline.errors import ChunkCorrupt, LinkMissing, NotFound, Retryable, StoreMisused, SynclineError
from syncline.store.base import WeightStore
from syncline.store.keys import ViewKeys
from syncline.wire.records import ChunkRef, ObjectRef
from syncline_agent.nodefiles import NodeFiles, disk_full

PIECE_BYTES = 4 << 20
TRIES_A_SOURCE = 2
"""A flipped bit on the way is gone at the second read; one at rest is not, and costs one read more."""


@dataclass(frozen=True, slots=True)
class Source:
    """A store that holds the run, and what metrics call it."""

    name: str
    store: WeightStore


class Fetcher:
    """Brings chunks onto the node."""

    def __init__(
        self,
        sources: Sequence[Source],
        files: NodeFiles,
        *,
        executor: Executor | None = None,
        piece_bytes: int = PIECE_BYTES,
        fetched: Callable[[str, int], None] = lambda source, size: None,
        retried: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._sources = sources
        self._files = files
        self._executor = executor
        self._piece_bytes = piece_bytes
        self._fetched = fetched
        self._retried = retried
        self._buffers = threading.local()

    def fetch(self, keys: ViewKeys, refs: Sequence[ChunkRef | ObjectRef]) -> int:
        """Make every chunk of `refs` a verified file; returns the bytes that came over the wire.

        Raises what matters most among all failures: Retryable before ChunkCorrupt (every source holds wrong bytes)
        before LinkMissing (no source has it). Chunks that did arrive stay.
        """
        missing = [ref for ref in {r.blake3: r for r in refs}.values() if not self._files.has(ref)]
        if not missing:
            return 0
        size = sum(ref.size for ref in missing)
        self._files.require(size, f"a sync of {len(missing)} chunks")
        run = self._executor.map if self._executor is not None else map
        failures = [f for f in run(lambda ref: self._fetch_one(keys, ref), missing) if f is not None]
        for kind in (Retryable, ChunkCorrupt, SynclineError):
            for failure in failures:
                if isinstance(failure, kind):
                    raise failure
        return size

    def _fetch_one(self, keys: ViewKeys, ref: ChunkRef | ObjectRef) -> SynclineError | None:
        key = keys.chunk(ref.blake3)
        waiting: Retryable | None = None
        corrupt: ChunkCorrupt | None = None
        refused: SynclineError | None = None
        for source in self._sources:
            for _ in range(TRIES_A_SOURCE):
                try:
                    self._download(source, key, ref)
                    return None
                except ChunkCorrupt as error:
                    corrupt = error
                    self._retried("corrupt")
                except NotFound:
                    self._retried("missing")
                    break
                except Retryable as error:
                    waiting = error
                    self._retried("unavailable")
                    break
                except SynclineError as error:
                    refused = error  # a key pair that one source does not know is no reason to leave the others unasked
                    self._retried("refused")
                    break
        told = waiting or corrupt or refused
        if told is not None:
            return told
        return LinkMissing(f"{key} is in none of {', '.join(s.store.url for s in self._sources)}; planning again")

    def _download(self, source: Source, key: str, ref: ChunkRef | ObjectRef) -> None:
        part = self._files.part(ref.blake3)
        try:
            found = self._read(source, key, ref.size, part)
        except OSError as error:
            part.unlink(missing_ok=True)
            full = disk_full(error, part)
            if full is None:
                raise
            raise full from error
        except SynclineError:
            part.unlink(missing_ok=True)
            raise
        self._fetched(source.name, ref.size)
        if found != ref.blake3:
            self._files.quarantine(part)
            raise ChunkCorrupt(f"{key} from {source.store.url} hashes to {found}; quarantined, reading it again")
        self._files.accept(part, ref.blake3)

    def _read(self, source: Source, key: str, size: int, part: Path) -> str:
        hasher = blake3()
        buffer = self._buffer(size)
        with part.open("wb", buffering=0) as file:
            for offset in range(0, size, len(buffer)):
                piece = buffer[: min(len(buffer), size - offset)]
                try:
                    source.store.get_range_into(key, offset, piece)
                except StoreMisused as error:  # the object ends before the size that the manifest gives
                    raise ChunkCorrupt(
                        f"{key} from {source.store.url} is shorter than {size} bytes: {error}"
                    ) from error
                hasher.update(piece)
                written = 0
                while written < len(piece):  # a filling disk takes a part first, and refuses the rest
                    written += file.write(piece[written:]) or 0
        return hasher.hexdigest()

    def _buffer(self, size: int) -> memoryview:
        held: memoryview | None = getattr(self._buffers, "held", None)
        wanted = min(size, self._piece_bytes)
        if held is None or len(held) < wanted:
            held = memoryview(bytearray(wanted))
            self._buffers.held = held
        return held
