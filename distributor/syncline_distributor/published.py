"""What a publish gives back, and when a commit found in the store is that of this very call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from syncline.wire.records import Statistics, VersionManifest
from syncline_distributor.drafting import Draft
from syncline_distributor.remarks import Remarks


@dataclass(frozen=True, slots=True, repr=False)
class Published:
    """A committed version, as its writer saw it."""

    manifest: VersionManifest
    seconds: Mapping[str, float]
    """By phase: encode, upload, commit, head, base."""

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def statistics(self) -> Statistics:
        return self.manifest.statistics

    def __repr__(self) -> str:
        m, s = self.manifest, self.manifest.statistics
        what = "all weights" if m.base is None else f"{s.changed_units} of {s.units} units changed"
        size = s.full_bytes if m.base is None else s.payload_bytes
        return (
            f"Published(version={m.version}, step={m.step}, {what}, {size} bytes, {sum(self.seconds.values()):.3f} s)"
        )


def repeats(draft: Draft, earlier: VersionManifest, remarks: Remarks) -> bool:
    """Whether `draft`, taken against `earlier`, says that the weights and remarks of `earlier` are published again."""
    same_remarks = (remarks.step, remarks.labels) == (earlier.step, earlier.labels)
    same_parent = remarks.parent is None or remarks.parent == earlier.parent
    return same_remarks and same_parent and draft.base == earlier.version and draft.statistics.changed_units == 0
