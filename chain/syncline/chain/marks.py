"""The vetoes of a view: which versions were marked bad, and why. Reads them; marks nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

from syncline.errors import FormatInvalid, LineageChanged, NotFound, StoreMisused
from syncline.store.base import ObjectInfo, WeightStore
from syncline.store.first_of import first_good
from syncline.store.keys import ViewKeys
from syncline.wire.limits import RECORD_MAX_BYTES
from syncline.wire.records import VetoRecord


class Marks:
    """Remembers each veto by its etag, so that a look costs one listing and one request for each that is new."""

    def __init__(self, store: WeightStore, keys: ViewKeys) -> None:
        self._store = store
        self._keys = keys
        self._known: dict[int, tuple[str, VetoRecord]] = {}

    def read(self, lineage: Callable[[], str]) -> dict[int, VetoRecord]:
        """The vetoes of a lineage, which is asked for only when there are any.

        A veto that cannot be read from any source still counts: whoever wrote it wanted the version gone.
        """
        pattern = re.compile(re.escape(self._keys.vetoes) + r"(\d{12})\.json")
        current: dict[int, tuple[str, VetoRecord]] = {}
        for info in self._store.list_after(self._keys.vetoes):
            match = pattern.fullmatch(info.key)
            if match is None or int(match[1]) == 0:
                continue
            version = int(match[1])
            known = self._known.get(version)
            if known is None or known[0] != info.etag:
                record = self._read(version, info, lineage())
                # Not remembered where it is a stranger's or gone: another source may come to hold ours.
                if record is None:
                    continue
                known = (info.etag, record)
            current[version] = known
        self._known = current
        return {v: record for v, (_, record) in current.items()}

    def _read(self, version: int, info: ObjectInfo, lineage: str) -> VetoRecord | None:
        """The veto from the nearest source that has one of this lineage; None when none has."""

        def read(source: WeightStore) -> VetoRecord:
            try:
                fetched = source.get(info.key, max_bytes=RECORD_MAX_BYTES)
            except StoreMisused as error:
                raise FormatInvalid(f"{info.key} is larger than any veto may be: {error}") from error
            assert fetched is not None
            record = VetoRecord.parse(fetched.data, what=info.key)
            if record.version != version:
                raise FormatInvalid(f"{info.key} names version {record.version}")
            if record.lineage != lineage:
                raise LineageChanged(f"{info.key} belongs to lineage {record.lineage}, the run to {lineage}")
            return record

        try:
            return first_good(self._store, read)
        except (NotFound, LineageChanged):
            return None
        except FormatInvalid as error:
            return VetoRecord(
                lineage=lineage,
                version=version,
                reason=f"the veto cannot be read, so it counts: {error}"[:4096],
                created_ms=max(0, int(info.modified * 1000)),
            )
