"""Every choice of the trainer's side as frozen values. Settings are data: parsed once at the edge, handed down, never
looked up."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from syncline.delta import CodecChoice
from syncline.errors import FormatInvalid
from syncline.wire.limits import CODEC_NAMES
from syncline.wire.tensors import COLUMN_SPLIT
from syncline.wire.tiling import Tiling

LEASE_LEAST_S = 60.0
"""A publish that takes less than this never loses a chunk to a sweep; one that takes longer looks for itself."""


class NonFinite(StrEnum):
    """What a NaN or an Inf among the changed weights means."""

    PUBLISH = "Publish"
    """Ship the bits, count them."""
    REFUSE = "Refuse"
    """Raise NonFiniteWeights; nothing is committed."""


class Completion(StrEnum):
    """What makes a checkpoint in the watched folder complete. Headers, index and shards are checked in every mode."""

    STABLE = "stable"
    """Sizes and times have not moved for some polls."""
    RENAME = "rename"
    """The trainer writes elsewhere and renames: whatever bears a checkpoint's name is whole."""
    MARKER = "marker"
    """A named file appears last."""


AUTO = "auto"
"""In place of a codec's name: the cheapest for each tensor."""
LINK_MBIT = 200.0
"""The link that most replicas sit behind."""


def codec_choice(name: str, *, link_mbit: float = LINK_MBIT) -> CodecChoice:
    """The choice of codecs from `auto` or a codec's name, and the link that most replicas sit behind, in Mbit/s.

    FormatInvalid for a name that is no codec's.
    """
    if name != AUTO and name not in CODEC_NAMES.values():
        raise FormatInvalid(f"codec {name!r} is not {AUTO} or one of {', '.join(CODEC_NAMES.values())}")
    return CodecChoice(forced=None if name == AUTO else name, link_bytes_per_second=link_mbit * 1e6 / 8)


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """How versions are written."""

    nonfinite: NonFinite = NonFinite.PUBLISH
    verify_every: int = 0
    """Every so many versions the digest of all new weights is computed whole and compared with the running one; 0 is
    never."""
    max_shard_bytes: int = 4 << 30
    """Largest safetensors file of an anchor (one tensor may exceed it)."""
    column_split: tuple[str, ...] = COLUMN_SPLIT
    """Endings of tensor names whose split axis is the last one."""
    tiling: Tiling = field(default_factory=Tiling)
    """For a new run only; afterwards run.json decides."""
    choice: CodecChoice = field(default_factory=CodecChoice)
    """Which codec a tensor's changes get."""
    uploads: int = 4
    """Chunks on their way at once."""
    suspect_after_s: float = 30.0
    """A publish that took longer looks its chunks up again after the commit and restores those that retention took
    meanwhile. No service may collect after a lease period shorter than `LEASE_LEAST_S`."""


@dataclass(frozen=True, slots=True)
class AnchorSettings:
    """When the whole weights and the skip deltas are stored beside the chain."""

    anchor_every: int = 50
    """Versions between anchors; 0 is never."""
    anchor_ratio: float = 1.0
    """An anchor is also due once the deltas since the last one exceed this share of the full size; 0 is never."""
    skip_every: int = 8
    """Versions between skip deltas; 0 is never."""
    max_shard_bytes: int = 4 << 30
    choice: CodecChoice = field(default_factory=CodecChoice)
    """Which codec a tensor's changes get in a skip delta."""


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """What the sweeper may take."""

    enabled: bool = True
    lease_period_s: float = 300.0
    """Between mark and delete; nothing younger is ever deleted. Longer than any reader's listing plus its first
    fetch."""
    keep_anchors: int = 2
    """Newest anchors that stay though nobody needs them: the newest may turn out bad."""
    keep_versions: int = 0
    """Newest versions that stay whatever the consumers say (for `log`, `diff` and going back)."""
    nobody_writes: bool = False
    """No writer is at work or asleep: what no manifest names is deleted without waiting for the next version."""
    max_ttl_s: float = 3600.0
    """A heartbeat or lease counts as fresh for at most this long, whatever it claims."""
    forget_after_s: float = 86400.0
    """Heartbeats and leases this stale are removed."""
    sweep_every_s: float = 60.0


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """How a trainer's checkpoints are found."""

    completion: Completion = Completion.STABLE
    marker: str = ""
    """File name that completes a checkpoint; sets `completion` to MARKER at the command line."""
    stable_polls: int = 2
    """Polls in a row that must see the same sizes and times."""
    poll_s: float = 1.0
    subfolder: str = ""
    """Where inside a checkpoint the weights are, for trainers that keep several parts (`actor/huggingface`)."""
    latest_only: bool = False
    """Publish only the newest complete checkpoint; default is every one, in order."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """One service process: one view of one run."""

    store: str
    run: str
    state_dir: Path
    view: str = "main"
    source: str | None = None
    """Folder or store url with the trainer's checkpoints; None when the trainer publishes itself."""
    erases: str | None = None
    """The lineage whose objects are deleted, all of this view; None where nothing is, as everywhere but in `erase`."""
    host: str = "127.0.0.1"
    port: int = 0
    workers: int = 2
    """Threads that encode and decode."""
    log_format: str = "console"
    log_level: str = "info"
    publish: PublishSettings = field(default_factory=PublishSettings)
    anchors: AnchorSettings = field(default_factory=AnchorSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)
