"""Writing a version's whole weights as servable safetensors: the body of an anchor, and of a version that has no
delta.

Tensors go into shards in table order, and inside a shard by falling width, so that every one is aligned as the
safetensors library aligns them. A shard is built as a file, a tensor at a time, hashed, uploaded in parallel parts and
removed, while the next one is built: memory is bounded by the largest tensor, disk by the two largest shards. The
caller writes the manifest, last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from syncline.checkpoint.headers import header_bytes
from syncline.errors import AlreadyExists
from syncline.store.base import WeightStore
from syncline.store.keys import ViewKeys
from syncline.wire.records import AnchorBody, AnchorFile
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_distributor.weights import Files

INDEX = "model.safetensors.index.json"
_PIECE = 8 << 20
_STORABLE = re.compile(r"[A-Za-z0-9_=+@-][A-Za-z0-9._=+@-]{0,190}", re.ASCII)
_NOT_BESIDE = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".ckpt",
    ".npz",
    ".tmp",
    ".lock",
)
_NOT_BESIDE_NAMES = ("trainer_state.json",)
BESIDE_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file of a body."""

    name: str
    tensors: Sequence[int]
    """Table indices in the order of their bytes."""


Seen = Callable[[int, NDArray[Any]], None]
"""Shown a tensor's index and its flat units."""


class Reader(Protocol):
    """Gives a tensor's flat units; the view is good until the next call."""

    def __call__(self, tensor: int, /) -> NDArray[Any]: ...


def shards(table: TensorTable, max_bytes: int) -> list[Shard]:
    """Cut a table into files of at most `max_bytes`, or one tensor."""
    groups: list[list[int]] = [[]]
    filled = 0
    for index, spec in enumerate(table.tensors):
        if groups[-1] and filled + spec.size_bytes > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(index)
        filled += spec.size_bytes
    ordered = [sorted(g, key=lambda i: (-table.tensors[i].unit_bytes, i)) for g in groups]
    if len(ordered) == 1:
        return [Shard("model.safetensors", ordered[0])]
    return [Shard(f"model-{n:05d}-of-{len(ordered):05d}.safetensors", g) for n, g in enumerate(ordered, 1)]


def beside_weights(folder: Path) -> dict[str, bytes | Path]:
    """The files of a checkpoint folder that make it servable: configuration and tokenizer, neither weights nor
    optimizer state."""
    found: dict[str, bytes | Path] = {}
    for path in sorted(folder.iterdir()):
        if storable_beside(path.name) and path.is_file() and path.stat().st_size <= BESIDE_MAX_BYTES:
            found[path.name] = path
    return found


def storable_beside(name: str) -> bool:
    """Whether a file of this name belongs beside the weights and can be part of a key."""
    return not name.endswith(_NOT_BESIDE) and name not in _NOT_BESIDE_NAMES and _STORABLE.fullmatch(name) is not None


@contextmanager
def spool_folder(parent: Path | None) -> Iterator[Path]:
    """A folder for files on their way, removed afterwards."""
    with TemporaryDirectory(prefix="syncline-", dir=parent) as name:
        yield Path(name)


class BodyWriter:
    """Uploads one body under its own nonce."""

    def __init__(self, store: WeightStore, keys: ViewKeys, *, spool: Path | None, max_shard_bytes: int) -> None:
        self._store = store
        self._keys = keys
        self._spool = spool
        self._max_shard_bytes = max_shard_bytes

    def write(
        self,
        version: int,
        nonce: str,
        *,
        table: TensorTable,
        read: Reader,
        files: Files,
        seen: Seen | None = None,
        keep: Path | None = None,
    ) -> AnchorBody:
        """Every file is in the store on return; no manifest names them yet.

        `seen` is shown each tensor once; the weight files and their index stay in `keep`, when given, which is
        emptied first.
        """
        written: list[AnchorFile] = []
        plan = shards(table, self._max_shard_bytes)
        if keep is not None:
            rmtree(keep, ignore_errors=True)
            keep.mkdir(parents=True)

        def leave(path: Path, hashed: str) -> AnchorFile:
            file = self._upload(version, nonce, path.name, path, hashed)
            if keep is None:
                path.unlink()
            else:
                path.rename(keep / path.name)
            return file

        with spool_folder(self._spool) as folder, ThreadPoolExecutor(1, "syncline-shard") as uploader:
            leaving: Future[AnchorFile] | None = None
            for shard in plan:
                path = folder / shard.name
                hashed = _build(path, [table.tensors[i] for i in shard.tensors], shard.tensors, read, seen)
                if leaving is not None:
                    written.append(leaving.result())
                leaving = uploader.submit(leave, path, hashed)
            if leaving is not None:
                written.append(leaving.result())
        beside: dict[str, bytes | Path] = {n: f for n, f in files.items() if storable_beside(n)}
        if len(plan) > 1:
            beside[INDEX] = index_json(table, plan)
            if keep is not None:
                (keep / INDEX).write_bytes(index_json(table, plan))
        for name, content in beside.items():
            data = content if isinstance(content, bytes) else content.read_bytes()
            written.append(self._upload(version, nonce, name, data, blake3(data).hexdigest()))
        return AnchorBody(nonce=nonce, files=sorted(written, key=lambda f: f.name))

    def _upload(self, version: int, nonce: str, name: str, source: Path | bytes, hashed: str) -> AnchorFile:
        key = self._keys.anchor_file(version, nonce, name)
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        try:
            self._store.put_large(key, source)
        except AlreadyExists:
            pass  # the nonce is this attempt's own: an earlier try whose reply was lost; the size is checked below
        if self._store.head(key).size != size:
            self._store.delete(key)
            self._store.put_large(key, source)
        return AnchorFile(name=name, size=size, blake3=hashed)


def index_json(table: TensorTable, plan: Sequence[Shard]) -> bytes:
    """The index that Hugging Face loaders read beside several shards."""
    weight_map = {table.tensors[i].name: shard.name for shard in plan for i in shard.tensors}
    index: Mapping[str, Any] = {
        "metadata": {"total_size": table.size_bytes},
        "weight_map": dict(sorted(weight_map.items())),
    }
    return json.dumps(index, indent=2).encode("utf-8")


def _build(
    path: Path,
    specs: Sequence[TensorSpec],
    indices: Sequence[int],
    read: Reader,
    seen: Seen | None,
) -> str:
    hasher = blake3(max_threads=blake3.AUTO)
    with path.open("wb", buffering=0) as file:
        head = header_bytes(((s.name, s.dtype, s.shape) for s in specs), {"format": "pt"})
        hasher.update(head)
        file.write(head)
        for index in indices:
            flat = read(index)
            if seen is not None:
                seen(index, flat)
            view = flat.view(np.uint8).data
            for at in range(0, len(view), _PIECE):
                piece = view[at : at + _PIECE]
                hasher.update(piece)
                _write_all(file, piece)
    return hasher.hexdigest()


def _write_all(file: Any, piece: memoryview) -> None:
    while piece:
        piece = piece[file.write(piece) :]
