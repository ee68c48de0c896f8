"""Whether a checkpoint folder can be opened, found out the way an engine opens it: lock, marker, tensor table, and the
headers, sizes and index of its weight files; and whether the files beside them, such as config.json, are all still
there. No weight is read, so this proves no bits; a digest does that.

`NodeCheckpoint` asks while no engine is there that could tell. A folder that has not changed is not opened again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from syncline.checkpoint import Checkpoint, Marker
from syncline.checkpoint.durable import write_durably
from syncline.checkpoint.marker import OwnFiles
from syncline.errors import Corrupt, LayoutRefused, SourceInvalid, SourceNotReady

UNUSABLE = (Corrupt, LayoutRefused, SourceInvalid, SourceNotReady)
"""What opening such a folder raises when it is not what its marker says."""


class Examination:
    """One folder, looked at again and again."""

    def __init__(self, folder: Path, names: Path) -> None:
        """`names` is where to keep the names of the folder's files."""
        self._folder = folder
        self._names = names
        self._good: tuple[Marker, object] | None = None
        """What was opened last, and how the folder looked then."""

    def rewriting(self) -> None:
        """The folder is made anew; until it is, no file of it is missed."""
        self._names.unlink(missing_ok=True)

    def written(self) -> None:
        """It is: its files are those that must be there from now on."""
        write_durably(self._names, json.dumps(sorted(_files(self._folder))).encode())

    def damage(self, marker: Marker) -> str | None:
        """Why the folder that should hold the version of `marker` cannot be used; None when it can.

        CheckpointBusy while somebody else writes it.
        """
        look = _look(self._folder)
        if self._good == (marker, look):
            return None
        try:
            opened = Checkpoint.open(self._folder)
            with opened.reading():
                _ = opened.table
                if opened.marker != marker:
                    return "its marker was changed"
            gone = sorted(self._promised() - _files(self._folder))
            if gone:
                return f"{gone[0]} is missing"
        except UNUSABLE as error:
            return str(error).rpartition("; ")[0] or str(error)  # what to do about it is done
        self._good = marker, look
        return None

    def _promised(self) -> set[str]:
        try:
            return set(map(str, json.loads(self._names.read_bytes())))
        except (FileNotFoundError, ValueError, TypeError):
            return set()  # of a checkpoint from before names were kept, or torn: nothing is known


def _files(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir() if entry.is_file() and entry.name[0] != "."}


def _look(folder: Path) -> object:
    """Changes whenever a file was written, added or removed."""
    own = OwnFiles(folder)
    return [
        (entry.name, found.st_ino, found.st_size, found.st_mtime_ns)
        for where in (folder, own.folder, own.tables)
        if where.is_dir()
        for entry in sorted(os.scandir(where), key=lambda e: e.name)
        if (found := entry.stat(follow_symlinks=False))
    ]
