"""One writer's right to commit: epochs, the slot of the next version, and the head pointer (DESIGN section 4).

Creating `versions/<n>.json` is the commit, and the creation is the only thing that decides between writers. A writer
whose creation finds the slot taken reads it back: its own nonce means that only the reply was lost; a higher epoch, or
its own epoch under another writer's name, stops it for good; anything else is a version that somebody wrote first, and
it must start again from there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from syncline.errors import AlreadyExists, Fenced, FormatInvalid, HeadMoved, LineageChanged, NotFound, Retryable
from syncline.store.base import WeightStore
from syncline.store.keys import RunKeys, ViewKeys
from syncline.wire.limits import RECORD_MAX_BYTES
from syncline.wire.records import HeadRecord, RunRecord, TilingPart, VersionManifest
from syncline.wire.tiling import Tiling

TAKE_OVER = (
    "Only one trainer may publish to a run: leave it to the other one, or end that one and start this one again, "
    "which takes the next epoch"
)


def new_nonce(random_: random.Random) -> str:
    """16 random bytes in hex: a lineage, a writer or an attempt."""
    return f"{random_.getrandbits(128):032x}"


def create_or_read_run(store: WeightStore, run: str, *, tiling: Tiling, lineage: str, created_ms: int) -> RunRecord:
    """run.json as it stands: created now, or by whoever came first. The lineage is random, so a lost reply needs no
    care."""
    key = RunKeys(run).run_json
    record = RunRecord(
        run=run,
        lineage=lineage,
        created_ms=created_ms,
        tiling=TilingPart(min_units=tiling.min_units, max_units=tiling.max_units, ways=tiling.ways),  # pyright: ignore[reportArgumentType]
    )
    try:
        store.put_if_absent(key, record.encode())
    except AlreadyExists:
        pass  # the usual case: the run goes on
    found = store.get(key, max_bytes=RECORD_MAX_BYTES)
    assert found is not None
    return RunRecord.parse(found.data, what=key)


@dataclass(slots=True)
class Writer:
    """The right to commit to one view, while it lasts."""

    store: WeightStore
    keys: ViewKeys
    lineage: str
    id: str
    epoch: int | None = None
    """None until an epoch is taken or the first version is created."""
    fenced: str | None = None
    """Why this writer stopped for good."""
    on_fenced: Callable[[], None] = lambda: None
    """Called once, when it stops."""
    _head_etag: str | None = field(default=None, init=False)

    def check(self) -> None:
        """Raise Fenced when this writer has stopped, LineageChanged when the run is not the one it opened."""
        if self.fenced is not None:
            raise Fenced(self.fenced)
        key = RunKeys(self.keys.run).run_json
        try:
            found = self.store.get(key, max_bytes=RECORD_MAX_BYTES)
        except NotFound:
            raise LineageChanged(
                f"{key} is gone: the run was deleted under its writer; open a new publisher to start it anew"
            ) from None
        assert found is not None
        now = RunRecord.parse(found.data, what=key).lineage
        if now != self.lineage:
            raise LineageChanged(
                f"{key} now says lineage {now}, this writer opened {self.lineage}: "
                "the run name was reused; choose another"
            )

    def commit(self, manifest: VersionManifest) -> VersionManifest | None:
        """Create the version. None when it is committed; else the version that holds the slot. Raises Fenced."""
        key = self.keys.version(manifest.version)
        try:
            self.store.put_if_absent(key, manifest.encode())
            return None
        except AlreadyExists:
            pass
        found = self.store.get(key, max_bytes=VersionManifest.max_bytes)
        assert found is not None
        other = VersionManifest.parse(found.data, what=key)
        if other.nonce == manifest.nonce and other.writer == self.id:
            return None
        if other.lineage != self.lineage:
            raise LineageChanged(
                f"{key} belongs to lineage {other.lineage}, not {self.lineage}: the run name was reused; choose another"
            )
        # Creating the first version is taking the first epoch; who loses that race has none and must open again.
        held = manifest.epoch if manifest.version == 1 else self.epoch
        if held is not None and (other.epoch > held or (other.epoch == held and other.writer != self.id)):
            where = f"{self.keys.run}/{self.keys.view}"
            self._stop(f"version {other.version} of {where} was written by {other.writer} in epoch {other.epoch}", held)
        return other

    def move_head(self, manifest: VersionManifest) -> None:
        """Point head at a committed version unless it is further on. Never raises Retryable: head is a hint, and the
        next move repairs it.

        Raises Fenced when head shows a higher epoch: this writer slept while another one went on and retention cleared
        its slot.
        """
        data = HeadRecord(lineage=self.lineage, version=manifest.version, epoch=manifest.epoch).encode()
        for _ in range(3):
            try:
                self._head_etag = self.store.compare_and_put(self.keys.head, data, etag=self._head_etag)
                return
            except HeadMoved:
                if self._further_on(manifest):
                    return
            except Retryable:
                self._head_etag = None
                return

    def _further_on(self, manifest: VersionManifest) -> bool:
        try:
            found = self.store.get(self.keys.head, max_bytes=RECORD_MAX_BYTES)
        except NotFound:
            self._head_etag = None
            return False
        except Retryable:
            return True
        assert found is not None
        self._head_etag = found.etag
        try:
            head = HeadRecord.parse(found.data, what=self.keys.head)
        except FormatInvalid:
            return False  # garbage is replaced
        if head.lineage != self.lineage or head.version < manifest.version:
            return False
        self._yield_to(head, held=manifest.epoch)
        return head.version >= manifest.version

    def heed(self, head: VersionManifest) -> None:
        """Somebody saw `head` in the store. Raises Fenced when its epoch is above the one held here."""
        if self.epoch is not None and head.lineage == self.lineage:
            self._yield_to(head, held=self.epoch)

    def _yield_to(self, head: HeadRecord | VersionManifest, *, held: int) -> None:
        if head.epoch > held:
            where = f"{self.keys.run}/{self.keys.view}"
            self._stop(f"head of {where} stands at version {head.version} in epoch {head.epoch}", held)

    def _stop(self, seen: str, held: int) -> NoReturn:
        self.fenced = f"{seen}; this writer ({self.id}) held epoch {held} and stops. {TAKE_OVER}"
        self.on_fenced()
        raise Fenced(self.fenced)
