"""Which tensors a version has, as far as this node's disk tells: so that an engine that cannot hold it is named when it comes.

Only reads, takes no lock and asks no store; what it does not find is asked again when something is staged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from syncline.checkpoint.checkpoint import stored_table
from syncline.checkpoint.marker import OwnFiles, read_marker
from syncline.errors import SynclineError
from syncline.wire.tensors import TensorTable
from syncline_agent.engine import Applied

Tables: TypeAlias = Callable[[Applied], TensorTable | None]


def nowhere(held: Applied) -> TensorTable | None:
    """Where there is no checkpoint to look into."""
    del held
    return None


def in_checkpoint(folder: Path) -> Tables:
    """The table of the very version that the node's checkpoint holds: an engine has loaded that, a little while ago."""

    def look(held: Applied) -> TensorTable | None:
        try:
            marker = read_marker(OwnFiles(folder).marker)
            if marker is None or (marker.lineage, marker.view, marker.version) != (
                held.lineage,
                held.view,
                held.version,
            ):
                return None
            return stored_table(folder, marker.table)
        except (SynclineError, OSError):
            return None  # it is being written or is damaged; who follows finds that out

    return look
