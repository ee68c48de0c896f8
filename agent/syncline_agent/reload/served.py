"""What a reloaded engine was last told to serve, kept on the node: `<node-dir>/reload.json`.

An engine only knows the stamp that it was given. This record says which version that is, whether it was proven, and, in
`pending`, that a reload began and nobody saw its end: then the engine's bits are in doubt, whoever reads this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from syncline.checkpoint.durable import write_durably
from syncline_agent.engine import Applied

RECORD_MAX_BYTES = 64 << 10


class Served(BaseModel):
    """One engine's last reload."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lineage: str
    view: str
    version: int
    digest: str
    stamp: str
    proven: bool
    unproven: str | None
    """Why it is not."""
    checks: str | None
    """Fingerprint of the engine's checksums after the load; None where it gives none."""
    pending: bool

    @property
    def applied(self) -> Applied:
        return Applied(self.lineage, self.view, self.version, self.digest, self.proven and not self.pending)


def stamp_of(view: str, version: int, digest: str) -> str:
    """The weight version that an engine is given, and shows in its responses: `main@7.90ab12cd`."""
    return f"{view}@{version}.{digest[:8]}"


def fingerprint(checks: Mapping[str, str]) -> str:
    """One value for all checksums of an engine."""
    told = hashlib.sha256()
    for name in sorted(checks):
        told.update(f"{name}\0{checks[name]}\0".encode())
    return told.hexdigest()


class ServedFile:
    """The record on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Served | None:
        """None when there is none, or none that can be read: then nothing is known of the engine."""
        try:
            with self._path.open("rb") as file:
                return Served.model_validate_json(file.read(RECORD_MAX_BYTES))
        except (OSError, ValidationError):
            return None

    def write(self, served: Served) -> None:
        """Whole or not at all, and before this returns: what follows may leave the engine in doubt."""
        write_durably(self._path, served.model_dump_json().encode())
