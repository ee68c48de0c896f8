"""Where a trainer leaves its checkpoints: a local folder, or a prefix of a bucket.

`scan` lists; `fetch` gives a local folder to read. A place that cannot be listed is told from one that holds nothing
yet: the first is a mistake or an outage, the second a trainer that has not written. A bucket's checkpoint is downloaded
to the state directory first, in parallel ranges into files, so reading is one path for both and memory stays bounded.
Nothing here ever writes to the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol

from syncline.errors import NotFound, SourceNotReady, StoreMisused, SynclineError
from syncline.store.base import ObjectInfo, WeightStore
from syncline.wire.limits import STEP_MAX
from syncline_distributor.tracking import Found, FoundFile, is_temporary, step_of

INDEX = "model.safetensors.index.json"
SMALL_MAX_BYTES = 64 << 20
_PIECE = 64 << 20
Read = Callable[[str], bytes]
"""Reads a small file of one checkpoint by its name."""


class CheckpointSource(Protocol):
    """Finds checkpoints and brings one here."""

    @property
    def where(self) -> str:
        """The place that is listed, for messages."""
        ...

    @property
    def itself(self) -> bool:
        """Whether the place, as it was scanned last, is one checkpoint and holds no others."""
        ...

    def scan(self) -> list[Found]:
        """Every folder that may be a checkpoint, complete or not. SourceNotReady when the place cannot be listed."""
        ...

    def fetch(self, found: Found) -> Path:
        """A local folder with the checkpoint's files. SourceNotReady when it changed or vanished meanwhile."""
        ...

    def release(self, found: Found) -> None:
        """The folder is not needed any more."""
        ...


class FolderSource:
    """Folders below one folder on a file system that this process can read."""

    def __init__(self, root: Path, *, subfolder: str = "") -> None:
        self._root = root
        self._subfolder = subfolder
        self._known = Known()
        self.itself = False

    @property
    def where(self) -> str:
        return str(self._root)

    def scan(self) -> list[Found]:
        try:
            entries = sorted(self._root.iterdir())
            folders = [e for e in entries if not is_temporary(e.name) and e.is_dir() and not self._is_second_name(e)]
        except OSError as error:
            raise _unlistable(self.where, error.strerror or str(error)) from error
        found = [f for e in folders if (f := self._found(e.name, e / self._subfolder)) is not None]
        itself = self._found("", self._root) if any(e.name.endswith(".safetensors") for e in entries) else None
        self.itself = not found and (itself is not None or self._found("", self._root / self._subfolder) is not None)
        return found + ([itself] if itself is not None else [])

    def fetch(self, found: Found) -> Path:
        folder = self._folder(found)
        if not folder.is_dir():
            raise SourceNotReady(f"checkpoint {found.name} vanished; the next one is taken")
        return folder

    def release(self, found: Found) -> None:
        """The trainer's own folder stays as it is."""

    def _is_second_name(self, entry: Path) -> bool:
        """A link to a checkpoint that stands beside it (`latest`): one training step is one version."""
        return entry.is_symlink() and entry.resolve().parent == self._root.resolve()

    def _folder(self, found: Found) -> Path:
        return self._root / found.name / self._subfolder if found.name else self._root

    def _found(self, name: str, folder: Path) -> Found | None:
        try:
            stats = [(p.name, p.stat()) for p in sorted(folder.iterdir()) if p.is_file()]
        except PermissionError as error:
            # Other folders that are none of ours to read (lost+found) are no checkpoints.
            step = step_of(name)
            reason = f"it cannot be listed: {error.strerror}; give this process the permission"
            return None if step is None else Found(name, step, (), 0.0, reason)
        except OSError:
            return None
        files = tuple(FoundFile(n, s.st_size, str(s.st_mtime_ns)) for n, s in stats)
        modified = max((s.st_mtime for _, s in stats), default=0.0)
        return self._known.describe(name, files, modified, lambda n: (folder / n).read_bytes())


class StoreSource:
    """Folders below a prefix of a bucket (or any store)."""

    def __init__(self, store: WeightStore, landing: Path, *, prefix: str = "", subfolder: str = "") -> None:
        self._store = store
        self._prefix = prefix
        self._subfolder = f"{subfolder}/" if subfolder else ""
        self._landing = landing
        self._known = Known()
        self.itself = False
        rmtree(landing, ignore_errors=True)

    @property
    def where(self) -> str:
        return f"{self._store.url}/{self._prefix}".rstrip("/")

    def scan(self) -> list[Found]:
        folders: dict[str, list[ObjectInfo]] = {}
        weights_here = False
        for info in self._listed():
            inside = info.key.removeprefix(self._prefix)
            weights_here |= inside.endswith(".safetensors") and "/" not in inside.removeprefix(self._subfolder)
            name, slash, rest = inside.partition("/")
            if (
                slash
                and not is_temporary(name)
                and rest.startswith(self._subfolder)
                and "/" not in rest.removeprefix(self._subfolder)
            ):
                folders.setdefault(name, []).append(info)
        found = [f for name, infos in sorted(folders.items()) if (f := self._found(name, infos)) is not None]
        self.itself = weights_here and not found
        return found

    def _listed(self) -> list[ObjectInfo]:
        try:
            return list(self._store.list_after(self._prefix))
        except SynclineError as error:
            raise _unlistable(self.where, str(error)) from error

    def fetch(self, found: Found) -> Path:
        folder = self._landing / found.name
        rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in found.files:
            self._download(self._key(found.name, file.name), file, folder / file.name)
        return folder

    def release(self, found: Found) -> None:
        rmtree(self._landing / found.name, ignore_errors=True)

    def _key(self, name: str, file: str) -> str:
        return f"{self._prefix}{name}/{self._subfolder}{file}"

    def _found(self, name: str, infos: list[ObjectInfo]) -> Found | None:
        base = self._key(name, "")
        files = tuple(FoundFile(i.key.removeprefix(base), i.size, i.etag) for i in infos)
        modified = max(i.modified for i in infos)
        return self._known.describe(name, files, modified, lambda n: self._read(self._key(name, n)))

    def _read(self, key: str) -> bytes:
        found = self._store.get(key, max_bytes=SMALL_MAX_BYTES)
        assert found is not None
        return found.data

    def _download(self, key: str, file: FoundFile, path: Path) -> None:
        try:
            with path.open("wb") as out:
                for at in range(0, file.size, _PIECE):
                    buffer = bytearray(min(_PIECE, file.size - at))
                    self._store.get_range_into(key, at, buffer)
                    out.write(buffer)
            if self._store.head(key).etag != file.stamp:
                raise SourceNotReady(f"{key} was written again while it was read; it is taken when it rests")
        except (NotFound, StoreMisused) as error:
            raise SourceNotReady(f"{key} vanished or shrank while it was read: {error}") from error


def _unlistable(where: str, why: str) -> SourceNotReady:
    return SourceNotReady(f"{where} cannot be listed: {why}; waiting for it: check --source")


class Known:
    """Folders as they were described last: one whose listing is the same is not read again at every poll."""

    def __init__(self) -> None:
        self._last: dict[str, Found] = {}

    def describe(self, name: str, files: tuple[FoundFile, ...], modified: float, read: Read) -> Found | None:
        """What a listing says of a folder; None when nothing in it looks like a checkpoint."""
        last = self._last.get(name)
        if last is not None and last.files == files and last.missing is None:
            return last
        found = describe(name, files, modified, read)
        if found is not None:
            self._last[name] = found
        return found


def describe(name: str, files: tuple[FoundFile, ...], modified: float, read: Read) -> Found | None:
    """What a listing says of a folder; None when nothing in it looks like a checkpoint."""
    names = {f.name for f in files}
    if not any(n.endswith(".safetensors") or n == INDEX for n in names):
        return None
    step = step_of(name)
    if step is None:
        step = _trainer_step(read) if "trainer_state.json" in names else None
    return Found(name, step, files, modified, _missing(names, read))


def _missing(names: set[str], read: Read) -> str | None:
    if INDEX not in names:
        return (
            None
            if "model.safetensors" in names or sum(n.endswith(".safetensors") for n in names) == 1
            else f"{INDEX} is not there yet"
        )
    try:
        weight_map: Any = json.loads(read(INDEX))["weight_map"]
        wanted = {str(v) for v in weight_map.values()}
    except (OSError, NotFound, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{INDEX} cannot be read yet: {error}"
    absent = sorted(wanted - names)
    return f"{len(absent)} of {len(wanted)} shards are not there yet: {', '.join(absent[:3])}" if absent else None


def _trainer_step(read: Read) -> int | None:
    try:
        step: Any = json.loads(read("trainer_state.json"))["global_step"]
    except (OSError, NotFound, ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= STEP_MAX else None
