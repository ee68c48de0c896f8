"""A safetensors folder that somebody else writes, read tensor by tensor: one file, or shards with an index.

Nothing is mapped: a trainer may shorten a file at any time, and a mapping would end the process where a read returns
short. Files stay open from `open` to `close`, so a folder that is removed meanwhile stays readable, and
`check_unchanged` tells one that was written to. Never writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from syncline.checkpoint.headers import Header, StoredTensor, read_safetensors_header
from syncline.checkpoint.ties import Tie, declared_ties
from syncline.errors import SourceInvalid, SourceNotReady, TiedWeightsDiffer
from syncline.wire.tensors import TensorSpec, TensorTable, split_axis, table_of

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
INDEX_MAX_BYTES = 256 << 20
COMPARE_BYTES = 8 << 20
COMPANION_MAX_BYTES = 64 << 20
COMPANIONS = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
NOT_COMPANIONS = frozenset({INDEX, "trainer_state.json", "optimizer.json", "scheduler.json"})

AxisRule = Callable[[str, list[int]], int]


@dataclass(frozen=True, slots=True)
class _Stat:
    inode: int
    size: int
    modified_ns: int


class WeightFolder:
    """An open checkpoint folder."""

    def __init__(self, path: Path, files: Mapping[str, FileIO], headers: Mapping[str, Header]) -> None:
        self.path = path
        self.headers = headers
        """By file name."""
        self._files = files
        self._stats = {name: _stat(file) for name, file in files.items()}
        self.tensors: Mapping[str, tuple[str, StoredTensor]] = {
            tensor: (name, place) for name, header in headers.items() for tensor, place in header.tensors.items()
        }
        """File and place of each tensor by name."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open all weight files of a folder. SourceNotReady while it is incomplete, SourceInvalid when it can never
        be read."""
        names, weight_map = _weight_files(path)
        files: dict[str, FileIO] = {}
        try:
            headers: dict[str, Header] = {}
            for name in names:
                files[name] = _open(path / name)
                headers[name] = read_safetensors_header(cast(Any, files[name]), what=str(path / name))
            _check_index(path, headers, weight_map)
            return cls(path, files, headers)
        except BaseException:
            for file in files.values():
                file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def read(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """A tensor's units, copied: into `out` when given (its units, flat), else into a new array."""
        file_name, place = self.tensors[name]
        if out is None:
            out = np.empty(place.units, dtype=f"<u{place.unit_bytes}")
        self._read_into(file_name, place.offset, byte_view(out))
        return out

    def check_unchanged(self) -> None:
        """SourceNotReady when a file was written to or replaced since `open`: what was read may be a mix. SourceInvalid
        when one was removed.
        """
        for name, before in self._stats.items():
            file = self.path / name
            try:
                linked = file.stat()
            except FileNotFoundError as error:
                raise SourceInvalid(f"{file} was removed while it was read; take the next checkpoint") from error
            if before != _Stat(linked.st_ino, linked.st_size, linked.st_mtime_ns):
                raise SourceNotReady(f"{file} changed while it was read; read it again once it is complete")

    def table(self, axis: AxisRule = split_axis) -> TensorTable:
        """The tensor table of this folder. Names that config.json ties and the folder stores twice become one tensor.

        TiedWeightsDiffer when their bits differ, LayoutRefused when there are too many to publish.
        """
        aliases: dict[str, list[str]] = {}
        for tie in declared_ties(self.path, {n: (p.dtype, p.shape) for n, (_, p) in self.tensors.items()}):
            self._check_equal(tie)
            aliases.setdefault(tie.owner, []).append(tie.alias)
        tied = {alias for names in aliases.values() for alias in names}
        specs: list[TensorSpec] = []
        for name, (file, place) in sorted(self.tensors.items()):
            if name not in tied:
                try:
                    specs.append(_spec(name, place, axis, sorted(aliases.get(name, []))))
                except ValueError as error:
                    raise SourceInvalid(f"{self.path / file}, tensor {name}: {error}") from error
        return table_of(specs)

    def companions(self) -> list[Path]:
        """Small files that make the folder servable: config, tokenizer, chat template."""
        found: list[Path] = []
        for file in sorted(self.path.iterdir()):
            servable = file.suffix in COMPANIONS and file.name not in NOT_COMPANIONS and not file.name.startswith(".")
            if servable and file.is_file() and file.stat().st_size <= COMPANION_MAX_BYTES:
                found.append(file)
        return found

    def _check_equal(self, tie: Tie) -> None:
        (owner_file, owner), (alias_file, alias) = self.tensors[tie.owner], self.tensors[tie.alias]
        for at in range(0, owner.size, COMPARE_BYTES):
            step = min(COMPARE_BYTES, owner.size - at)
            left, right = bytearray(step), bytearray(step)
            self._read_into(owner_file, owner.offset + at, memoryview(left))
            self._read_into(alias_file, alias.offset + at, memoryview(right))
            if left != right:
                raise TiedWeightsDiffer(
                    f"{self.path}: config.json ties {tie.owner} and {tie.alias}, but their stored bits differ; "
                    "untie them in the config or store one of them"
                )

    def _read_into(self, name: str, offset: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            count = os.preadv(self._files[name].fileno(), [view[done:]], offset + done)
            if count == 0:
                raise SourceNotReady(
                    f"{self.path / name} became shorter while it was read; read it again once complete"
                )
            done += count


def byte_view(units: NDArray[Any]) -> memoryview:
    """The bytes of a flat array, writable where it is."""
    return units.view(np.uint8).data  # memoryview.cast refuses empty arrays


def table_of_folder(path: Path, axis: AxisRule = split_axis) -> TensorTable:
    """The tensor table of a safetensors folder."""
    with WeightFolder.open(path) as folder:
        return folder.table(axis)


def _spec(name: str, place: StoredTensor, axis: AxisRule, aliases: list[str]) -> TensorSpec:
    shape = list(place.shape)
    return TensorSpec(name=name, dtype=place.dtype, shape=shape, axis=axis(name, shape), aliases=aliases)


def _weight_files(path: Path) -> tuple[list[str], dict[str, str] | None]:
    """Names of the weight files and, when there is an index, its map from tensors to them."""
    try:
        present = {p.name for p in path.iterdir()}
    except FileNotFoundError as error:
        raise SourceInvalid(f"{path} vanished, or never was; take the next checkpoint") from error
    except NotADirectoryError as error:
        raise SourceInvalid(f"{path} is not a folder") from error
    if INDEX in present:
        if SINGLE in present:
            raise SourceInvalid(f"{path} has both {SINGLE} and {INDEX}; remove the one that is not meant")
        weight_map = _read_index(path / INDEX)
        return sorted(set(weight_map.values())), weight_map
    if SINGLE in present:
        return [SINGLE], None
    found = sorted(n for n in present if n.endswith(".safetensors") and not n.startswith("."))
    if not found:
        raise SourceNotReady(f"{path} holds no .safetensors file yet")
    if len(found) > 1:
        raise SourceNotReady(f"{path} holds {len(found)} shards and no {INDEX} yet")
    return found, None


def _read_index(file: Path) -> dict[str, str]:
    try:
        with file.open("rb") as opened:
            text = opened.read(INDEX_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise SourceInvalid(f"{file} vanished; take the next checkpoint") from error
    if len(text) > INDEX_MAX_BYTES:
        raise SourceInvalid(f"{file} is larger than {INDEX_MAX_BYTES} bytes")
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceNotReady(f"{file} is not whole JSON ({error}); wait until it is written") from error
    weight_map = cast(dict[str, Any], value).get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceInvalid(f"{file} has no weight_map; write the checkpoint again")
    names = cast(dict[str, Any], weight_map)
    for name in names.values():
        plain = isinstance(name, str) and Path(name).name == name and not name.startswith(".")
        if not plain or not name.endswith(".safetensors"):
            raise SourceInvalid(f"{file} names {name!r}, which is no .safetensors file beside it")
    return names


def _open(file: Path) -> FileIO:
    try:
        return file.open("rb", buffering=0)
    except FileNotFoundError as error:
        if not file.parent.exists():
            raise SourceInvalid(f"{file.parent} vanished while it was opened; take the next checkpoint") from error
        raise SourceInvalid(
            f"{file} is missing: the index of its folder names it; write the checkpoint again"
        ) from error


def _check_index(path: Path, headers: Mapping[str, Header], weight_map: Mapping[str, str] | None) -> None:
    """Every tensor lies in exactly one file, the one that the index says."""
    where: dict[str, str] = {}
    for file, header in headers.items():
        for tensor in header.tensors:
            if tensor in where:
                raise SourceInvalid(f"{path}: tensor {tensor} is stored in {where[tensor]} and again in {file}")
            where[tensor] = file
    if not where:
        raise SourceInvalid(f"{path} holds no tensors")
    if weight_map is None:
        return
    for tensor, file in weight_map.items():
        if where.get(tensor) != file:
            stored = where.get(tensor)
            found = "in no shard" if stored is None else f"in {stored}"
            raise SourceInvalid(f"{path}: the index says that tensor {tensor} is in {file}; it is {found}")
    unknown = sorted(where.keys() - weight_map.keys())
    if unknown:
        raise SourceInvalid(f"{path}: {where[unknown[0]]} holds tensor {unknown[0]}, which the index does not name")


def _stat(file: FileIO) -> _Stat:
    found = os.fstat(file.fileno())
    return _Stat(found.st_ino, found.st_size, found.st_mtime_ns)
