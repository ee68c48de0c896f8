"""A servable checkpoint on disk that knows which version it is: what an engine starts from, and a publisher's base.

Whoever writes holds the folder's exclusive lock for all of it; whoever loads holds the shared one (`reading`).
Opening it first finishes or forgets what a killed writer left behind, so the files are always exactly the version
that the marker names, or there is no marker. Never holds more than one tensor's changes in memory, never fetches
anything.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from blake3 import blake3
from numpy.typing import NDArray

from syncline.checkpoint import advancing
from syncline.checkpoint.advancing import NODE_POINTS, AdvancePoints
from syncline.checkpoint.durable import write_durably
from syncline.checkpoint.locks import exclusive, exclusive_after_others, shared
from syncline.checkpoint.mapped import Places, mapped_units, places_of
from syncline.checkpoint.marker import Marker, OwnFiles, read_marker
from syncline.delta import Delta, digest_tensor
from syncline.errors import DigestMismatch, FormatInvalid, SourceNotReady
from syncline.wire.digest import Digest, total
from syncline.wire.limits import MANIFEST_MAX_BYTES
from syncline.wire.records import ObjectRef, TilingPart, VersionManifest
from syncline.wire.tensors import TensorTable, digests_for


class Checkpoint:
    """A checkpoint folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own = OwnFiles(path)
        self._marker: Marker | None = None
        self._known: tuple[ObjectRef, TensorTable, Places] | None = None
        self.damage: str | None = None
        """Why a folder that once held a version holds none now, if that was found at opening."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a folder, which need not exist yet, and recover it: waits for whoever writes to it now, and is
        CheckpointBusy when that takes too long.

        Afterwards `marker` says what it holds; None when it is not materialized, or not whole.
        """
        checkpoint = cls(path)
        checkpoint.refresh()
        return checkpoint

    @classmethod
    def adopt(
        cls,
        path: Path,
        manifest: VersionManifest,
        table: TensorTable,
        tiling: TilingPart,
        *,
        executor: Executor | None = None,
    ) -> Self:
        """Take a folder whose weights somebody else wrote for the version of `manifest`: prove its digest, then mark
        it."""
        checkpoint = cls(path)
        with exclusive(checkpoint._own.lock):
            advancing.forget(path)
            store_table(path, manifest, table)
            checkpoint._marker = Marker.of(manifest, tiling)
            checkpoint.verify(manifest, executor=executor)
            write_durably(checkpoint._own.marker, checkpoint._marker.encode())
        return checkpoint

    @property
    def marker(self) -> Marker | None:
        """What the folder held when this object last looked."""
        return self._marker

    @property
    def table(self) -> TensorTable:
        """The tensor table of the version that it holds."""
        return self._layout()[0]

    def refresh(self) -> None:
        """Recover if a writer died, and read the marker again."""
        if self._own.journal.exists():
            try:
                with exclusive_after_others(self._own.lock):
                    self.damage = advancing.recover(self.path)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                    raise
                self._marker = None  # mounted read-only: its owner recovers it, until then it holds nothing
                return
        self._read_marker()

    def units(self, name: str) -> NDArray[Any]:
        """A tensor's flat unit view, read-only, by its name or an alias. Its pages are let go with the last reference
        to the array, so drop one tensor before taking the next.
        """
        table, places = self._layout()
        owner = table.tensors[table.index[name]].name
        file, place = places[owner]
        return mapped_units(self.path / file, place)

    def tensor_digests(self, *, executor: Executor | None = None) -> list[Digest]:
        """Digests of what the files hold, in table order. Reads everything once."""
        table, places = self._layout()
        return file_digests(self.path, places, table, executor=executor)

    def digest(self, *, executor: Executor | None = None) -> Digest:
        """View digest of what the files hold."""
        return total(self.tensor_digests(executor=executor))

    def verify(self, manifest: VersionManifest, *, executor: Executor | None = None) -> None:
        """DigestMismatch, naming tensors, when the files do not hold the version of `manifest`."""
        table, places = self._layout()
        verify_files(self.path, places, table, manifest, executor=executor)

    @contextmanager
    def reading(self) -> Generator[Self]:
        """Hold the folder still while it is loaded. Waits for a writer, and is CheckpointBusy when that takes
        too long; SourceNotReady when it holds no version.

        The marker is read anew under the lock.
        """
        while True:
            try:
                with shared(self._own.lock):
                    if not self._own.journal.exists():
                        self._read_marker()
                        self._required()
                        yield self
                        return
            except FileNotFoundError as error:
                if error.filename != str(self._own.lock):
                    raise
                raise self._not_ready() from error
            self.refresh()  # a writer died between its journal and its marker
            self._required()

    def advance(
        self,
        manifests: Sequence[VersionManifest],
        deltas: Sequence[Delta],
        *,
        points: AdvancePoints = NODE_POINTS,
        executor: Executor | None = None,
        passed: Callable[[], None] = lambda: None,
    ) -> None:
        """Apply deltas that lead, in order, to the versions of `manifests`, in one journaled change to the last of
        them. `passed` is called between tensors: the caller's turn to let go of chunks that it has mapped.

        CheckpointBusy while somebody loads or writes the folder; DigestMismatch, FrameCorrupt, LayoutRefused,
        LineageChanged, EpochRegressed and DiskFull leave it as it was.
        """
        if len(manifests) != len(deltas):
            raise ValueError(f"{len(manifests)} manifests for {len(deltas)} deltas")
        if not manifests:
            return
        with exclusive(self._own.lock):
            self.damage = advancing.recover(self.path)
            self._read_marker()
            marker = self._required()
            table, places = self._layout()
            self._marker = advancing.advance_in_place(
                self.path,
                self._own.marker,
                places,
                table,
                manifests,
                deltas,
                marker=marker,
                points=points,
                executor=executor,
                passed=passed,
            )

    def _read_marker(self) -> None:
        try:
            self._marker = read_marker(self._own.marker)
        except FormatInvalid as error:
            self._marker, self.damage = None, str(error)

    def _required(self) -> Marker:
        if self._marker is None:
            raise self._not_ready()
        return self._marker

    def _not_ready(self) -> SourceNotReady:
        why = f" ({self.damage})" if self.damage else ""
        if not why and next(self.path.glob("*.safetensors"), None) is not None:
            return SourceNotReady(
                f"{self.path} holds weights but no .syncline/marker.json; wait until it is materialized, or pass "
                "<node-dir>/checkpoint, which the agent writes"
            )
        return SourceNotReady(f"{self.path} holds no whole version{why}; wait until it is materialized")

    def _layout(self) -> tuple[TensorTable, Places]:
        ref = self._required().table
        if self._known is None or self._known[0] != ref:
            table = stored_table(self.path, ref)
            self._known = ref, table, places_of(self.path, table)
        return self._known[1], self._known[2]


def file_digests(path: Path, places: Places, table: TensorTable, *, executor: Executor | None) -> list[Digest]:
    """Digests of the tensors in a folder's files, in table order."""
    digests: list[Digest] = []
    for spec in table.tensors:
        file, place = places[spec.name]
        digests.append(digest_tensor(spec, mapped_units(path / file, place), executor=executor))
    return digests


def verify_files(
    path: Path, places: Places, table: TensorTable, manifest: VersionManifest, *, executor: Executor | None
) -> None:
    """DigestMismatch, naming tensors, when a folder's files do not hold the version of `manifest`."""
    found, wanted = file_digests(path, places, table, executor=executor), digests_for(table, manifest)
    names = [spec.name for spec, mine, its in zip(table.tensors, found, wanted, strict=True) if mine != its]
    if names or total(found).hex != manifest.digest:
        odd = f"{names[0]} and {len(names) - 1} more tensors differ" if names else "its manifest contradicts itself"
        raise DigestMismatch(f"{path} is not version {manifest.version}: {odd}; materialize it again")


def store_table(path: Path, manifest: VersionManifest, table: TensorTable) -> None:
    """Keep the version's tensor table in the folder."""
    own = OwnFiles(path)
    data = table.encode()
    if blake3(data).hexdigest() != manifest.tensors.blake3:
        raise FormatInvalid(f"the tensor table given is not that of version {manifest.version}")
    own.tables.mkdir(parents=True, exist_ok=True)
    write_durably(own.table(manifest.tensors), data)


def stored_table(path: Path, ref: ObjectRef) -> TensorTable:
    """Read it back. SourceNotReady when it is not there, FormatInvalid when it was damaged."""
    file = OwnFiles(path).table(ref)
    try:
        with file.open("rb") as opened:
            data = opened.read(MANIFEST_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise SourceNotReady(f"{file} is missing; materialize the checkpoint again") from error
    if blake3(data).hexdigest() != ref.blake3:
        raise FormatInvalid(f"{file} does not hash to its name; materialize the checkpoint again")
    return TensorTable.parse(data, what=str(file))
