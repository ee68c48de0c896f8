"""Whether a checkpoint folder can be opened, found out the way an engine opens it: lock, marker, tensor table, and the
headers, sizes and index of its weight files. No weight is read, so this proves no bits; a digest does that.

`NodeCheckpoint` asks while no engine is there that could tell. A folder that has not changed is not opened again.
"""

from __future__ import annotations

import os
from pathlib import Path

from syncline.checkpoint import Checkpoint, Marker
from syncline.checkpoint.marker import OwnFiles
from syncline.errors import Corrupt, LayoutRefused, SourceInvalid, SourceNotReady

UNUSABLE = (Corrupt, LayoutRefused, SourceInvalid, SourceNotReady)
"""What opening such a folder raises when it is not what its marker says."""


class Examination:
    """One folder, looked at again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._good: tuple[Marker, object] | None = None
        """What was opened last, and how the folder looked then."""

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
        except UNUSABLE as error:
            return str(error).rpartition("; ")[0] or str(error)  # what to do about it is done
        self._good = marker, look
        return None


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
