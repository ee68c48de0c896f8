"""How a node reads a chain where no chunk files are kept: as anybody does, until a chunk is not what its name says.

Then the fetcher takes over: it puts the wrong bytes aside, counts them, and asks every source once more.
"""

from __future__ import annotations

from syncline.chain import ChainReader
from syncline.errors import ChunkCorrupt
from syncline.store.base import WeightStore
from syncline.wire.records import ChunkRef, ObjectRef
from syncline_agent.fetch import Fetcher
from syncline_agent.nodefiles import NodeFiles


class NodeReader(ChainReader):
    """A `ChainReader` of one node."""

    def __init__(self, store: WeightStore, run: str, view: str, *, fetcher: Fetcher, files: NodeFiles) -> None:
        super().__init__(store, run, view)
        self._fetcher = fetcher
        self._files = files

    def chunk(self, ref: ChunkRef | ObjectRef) -> bytes:
        try:
            return super().chunk(ref)
        except ChunkCorrupt:
            self._fetcher.fetch(self.keys, [ref])
            return self._files.chunk(ref.blake3).read_bytes()
