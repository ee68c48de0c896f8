"""What a checkpoint folder holds, in one small record, and where Syncline keeps its own files there.

<checkpoint>/…                      safetensors, config, tokenizer: what an engine loads
<checkpoint>/.syncline/marker.json  which version that is; without it the folder must not be served
<checkpoint>/.syncline/partial.json the same while the folder is being materialized: nobody may load it yet
<checkpoint>/.syncline/tables/      tensor tables by BLAKE3
<checkpoint>/.syncline/journal      changes on their way into the files (journal.py)
<checkpoint>/.syncline/download.json  files of an anchor that are complete and verified (download.py)
<checkpoint>/.syncline/lock         flock: shared while somebody loads, exclusive while somebody writes
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from syncline.errors import FormatInvalid
from syncline.versions import Link
from syncline.wire.limits import FORMAT, RECORD_MAX_BYTES
from syncline.wire.records import Epoch, Hex16, Name, ObjectRef, Record, TilingPart, Version, VersionManifest


class Marker(Record):
    """The version that a checkpoint folder holds."""

    format: Literal["syncline/1"] = FORMAT
    kind: Literal["checkpoint"] = "checkpoint"
    run: Name
    lineage: Hex16
    view: Name
    version: Version
    epoch: Epoch
    digest: Hex16
    table: ObjectRef
    tiling: TilingPart

    @classmethod
    def of(cls, manifest: VersionManifest, tiling: TilingPart) -> Marker:
        return cls(
            run=manifest.run,
            lineage=manifest.lineage,
            view=manifest.view,
            version=manifest.version,
            epoch=manifest.epoch,
            digest=manifest.digest,
            table=manifest.tensors,
            tiling=tiling,
        )

    @property
    def link(self) -> Link:
        """What the planner needs to know of it."""
        return Link(self.lineage, self.version, None, self.epoch)

    def holds(self, manifest: VersionManifest) -> bool:
        """Whether this is that very version."""
        mine = (self.run, self.lineage, self.view, self.version, self.digest)
        return mine == (manifest.run, manifest.lineage, manifest.view, manifest.version, manifest.digest)


class OwnFiles:
    """Paths of Syncline's files in a checkpoint folder."""

    def __init__(self, checkpoint: Path) -> None:
        self.folder = checkpoint / ".syncline"
        self.marker = self.folder / "marker.json"
        self.partial = self.folder / "partial.json"
        self.journal = self.folder / "journal"
        self.download = self.folder / "download.json"
        self.lock = self.folder / "lock"
        self.tables = self.folder / "tables"

    def table(self, ref: ObjectRef) -> Path:
        return self.tables / f"{ref.blake3}.json"


def read_marker(path: Path) -> Marker | None:
    """The marker, or None where there is none. FormatInvalid for a file that is no marker."""
    try:
        with path.open("rb") as file:
            data = file.read(RECORD_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return Marker.parse(data, what=str(path))
    except FormatInvalid as error:
        raise FormatInvalid(f"{error}; remove the checkpoint folder to have it materialized again") from error
