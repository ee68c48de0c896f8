"""Choosing the way to a target: the cheapest bytes, then the least work. Pure: it asks a `PlanSource` and touches
nothing else.

The search runs backwards from the target along base links and skip deltas until it meets what is applied, the node's
own checkpoint or an anchor, always looking next at the version with the lowest bound on the whole way's bytes.
Anchors cost at least the whole weights, so a way that may need one is looked at late, and what a longer look cannot
improve is never asked for: catching up by one version asks for one manifest. Bases lie below their versions, so there
are no cycles. Training parents play no part: a fork is a delta like any other.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeAlias

from syncline.chain.steps import PUT_BACK, Anchor, AnchorStep, DeltaStep, DiskStep, Plan, SkipStep, Step, StepKey
from syncline.chain.vetoed import Vetoed, marked_bad, undoing
from syncline.errors import (
    ChainBroken,
    Corrupt,
    EpochRegressed,
    LineageChanged,
    LinkMissing,
    SynclineError,
    VersionVetoed,
)
from syncline.versions import Link
from syncline.wire.records import SkipManifest, VersionManifest

Avoided: TypeAlias = Mapping[StepKey, SynclineError]
"""Steps that failed before, and how."""
NOTHING_AVOIDED: Avoided = MappingProxyType({})

MAX_STEPS = 4096
"""Deltas in a row; a longer chain counts as a hole, so a run that never gets an anchor cannot make a planner walk for
ever."""


class PlanSource(Protocol):
    """What a plan is made from; `ChainReader` is one. Each raises LinkMissing or Corrupt for what cannot be used."""

    def manifest(self, version: int) -> VersionManifest: ...

    def anchors(self) -> Sequence[int]: ...

    def anchor(self, version: int) -> Anchor: ...

    def skip_bases(self) -> Mapping[int, Sequence[int]]:
        """Bases of the skip deltas that lead to each version."""
        ...

    def skip(self, version: int, base: int) -> SkipManifest: ...


def plan(
    applied: Link | None,
    target: int,
    source: PlanSource,
    *,
    on_disk: int | None = None,
    vetoed: Vetoed = (),
    avoid: Avoided = NOTHING_AVOIDED,
    max_steps: int = MAX_STEPS,
) -> Plan:
    """The cheapest way from `applied` (None: nothing is held) to `target`.

    `on_disk` is the version of the node's own checkpoint, if it has one of the same lineage. `vetoed` versions are no
    targets and their anchors no starts; deltas may lead through them. Steps in `avoid` are not used.

    Raises VersionVetoed, LineageChanged, EpochRegressed; where no way is left, Corrupt if damaged bytes stand in it,
    else LinkMissing, which name what is damaged and the holes.
    """
    if target in vetoed:
        raise VersionVetoed(
            f"{marked_bad(target, vetoed)}; choose another target, or take the mark back: {undoing(target, vetoed)}"
        )
    manifest = source.manifest(target)
    if applied is not None and applied.lineage != manifest.lineage:
        raise LineageChanged(
            f"version {target} belongs to lineage {manifest.lineage}, what is applied to {applied.lineage}: "
            "the run name was reused; start the replica afresh to follow the new run"
        )
    if applied is not None and applied.version == target:
        return Plan(target, manifest, ())
    _check_predecessor(applied, manifest, source)
    search = _Search(applied, manifest, source, on_disk, vetoed, avoid, max_steps)
    return Plan(None if applied is None else applied.version, manifest, search.run())


def _check_predecessor(applied: Link | None, manifest: VersionManifest, source: PlanSource) -> None:
    """A version that carries a lower epoch than the one before it was written by a fenced writer."""
    before = manifest.version - 1
    if before == 0:
        return
    if applied is not None and applied.version == before:
        epoch = applied.epoch
    else:
        try:
            epoch = source.manifest(before).epoch
        except (ChainBroken, Corrupt):
            return  # collected or unreadable: the steps that the plan takes are still checked one by one
    if manifest.epoch < epoch:
        raise _regressed(manifest.version, manifest.epoch, before, epoch)


def _regressed(version: int, epoch: int, base: int, base_epoch: int) -> EpochRegressed:
    return EpochRegressed(
        f"version {version} carries epoch {epoch}, version {base} before it {base_epoch}: "
        "a fenced writer wrote it; wait for a later version or mark it bad"
    )


_NODE, _APPLIED, _DISK, _ANCHOR = range(4)
"""Order of equal bytes: look on before deciding; then what is live, what is on disk, what must be fetched."""


@dataclass(order=True, slots=True)
class _Item:
    bound: int
    """At least so many bytes in all."""
    rank: int
    hops: int
    serial: int
    version: int = field(compare=False)
    spent: int = field(compare=False)
    """Bytes from here to the target."""
    onward: tuple[Step, int] | None = field(compare=False, default=None)
    """The step that leads on from here, and to which version; None at the target."""
    start: Step | None = field(compare=False, default=None)
    skip_to: int | None = field(compare=False, default=None)
    """Set while the skip delta from here to that version has not been read yet."""


class _Search:
    """One run of the search."""

    def __init__(
        self,
        applied: Link | None,
        target: VersionManifest,
        source: PlanSource,
        on_disk: int | None,
        vetoed: Vetoed,
        avoid: Avoided,
        max_steps: int,
    ) -> None:
        self._applied = applied
        self._target = target
        self._source = source
        self._on_disk = on_disk
        self._vetoed = vetoed
        self._avoid = avoid
        self._max_steps = max_steps
        self._whole = target.statistics.full_bytes
        self._heap: list[_Item] = []
        self._settled: dict[int, _Item] = {}
        self._manifests: dict[int, VersionManifest] = {target.version: target}
        self._missing: set[int] = set()
        self._anchors: frozenset[int] | None = None
        self._skips: Mapping[int, Sequence[int]] | None = None
        self._holes: dict[str, SynclineError] = {}
        """What is in the way, in words."""
        self._serial = 0

    def run(self) -> list[Step]:
        self._push(self._target.version, 0, hops=0)
        while True:
            if self._anchors is None and (not self._heap or self._heap[0].bound >= self._whole):
                self._look_for_anchors()
            if not self._heap:
                raise self._no_way()
            item = heapq.heappop(self._heap)
            if item.rank != _NODE:
                return self._way(item)
            if item.skip_to is not None:
                self._read_skip(item)
            elif item.version not in self._settled and self._epoch_holds(item):
                self._settle(item)

    def _push(
        self,
        version: int,
        spent: int,
        *,
        hops: int,
        onward: tuple[Step, int] | None = None,
        skip_to: int | None = None,
    ) -> None:
        live = self._applied is not None and self._applied.version <= version
        disk = self._on_disk is not None and self._on_disk <= version
        bound = spent if live or disk else spent + self._whole
        self._serial += 1
        heapq.heappush(
            self._heap, _Item(bound, _NODE, hops, self._serial, version, spent, onward=onward, skip_to=skip_to)
        )

    def _enter(self, item: _Item, rank: int, start: Step | None) -> None:
        """Offer to begin the plan at the version of `item`."""
        if start is not None and self._avoided(start.key):
            return
        spent = item.spent + (start.fetch_bytes if start is not None else 0)
        self._serial += 1
        heapq.heappush(
            self._heap,
            _Item(spent, rank, item.hops, self._serial, item.version, spent, onward=item.onward, start=start),
        )

    def _settle(self, item: _Item) -> None:
        """The cheapest way onward from this version is known: note it, offer starts, go further down."""
        version = item.version
        self._settled[version] = item
        if self._applied is not None and version == self._applied.version:
            self._enter(item, _APPLIED, None)
            return  # whatever lies below cannot be cheaper
        if version == self._on_disk:
            self._enter(item, _DISK, DiskStep(version))
        if self._anchors is not None:
            self._enter_at_anchor(item)
        manifest = self._manifest(version)
        if manifest is None:
            return
        if item.hops >= self._max_steps:
            self._note(
                LinkMissing(
                    f"the chain below version {version} is longer than {self._max_steps} deltas; write an anchor"
                )
            )
            return
        step = DeltaStep(manifest)
        if manifest.base is not None and not self._avoided(step.key):
            self._push(manifest.base, item.spent + step.fetch_bytes, hops=item.hops + 1, onward=(step, version))
        for base in self._skip_bases(item, manifest):
            if not self._avoided(StepKey("skip", base, version)):
                self._push(base, item.spent, hops=item.hops + 1, skip_to=version)

    def _skip_bases(self, item: _Item, manifest: VersionManifest) -> Sequence[int]:
        if self._skips is None:
            one_delta_away = self._applied is not None and manifest.base == self._applied.version and item.hops == 0
            if one_delta_away and DeltaStep(manifest).key not in self._avoid:
                return ()  # the usual case: the delta itself is at hand, and no listing is worth its request
            self._skips = self._source.skip_bases()
        return [b for b in self._skips.get(item.version, ()) if b < item.version]

    def _read_skip(self, item: _Item) -> None:
        """A skip delta has come to the top by the bytes beyond it; now its own are asked for."""
        assert item.skip_to is not None
        try:
            skip = self._source.skip(item.skip_to, item.version)
        except (ChainBroken, Corrupt) as error:
            self._note(error)
            return
        step = SkipStep(skip, self._manifests[item.skip_to])
        self._push(item.version, item.spent + step.fetch_bytes, hops=item.hops, onward=(step, item.skip_to))

    def _epoch_holds(self, item: _Item) -> bool:
        """A step never leads to a lower epoch than that of its base."""
        if item.onward is None:
            return True
        if self._applied is not None and item.version == self._applied.version:
            epoch = self._applied.epoch
        else:
            manifest = self._manifest(item.version)
            if manifest is None:
                return True  # it can only be a start that is held already, whose epoch was checked when it was taken
            epoch = manifest.epoch
        after = self._manifests[item.onward[1]]
        if after.epoch < epoch:
            self._note(_regressed(after.version, after.epoch, item.version, epoch))
            return False
        return True

    def _manifest(self, version: int) -> VersionManifest | None:
        """The manifest, or None with the hole noted."""
        if version in self._missing:
            return None
        if version not in self._manifests:
            try:
                manifest = self._source.manifest(version)
                if manifest.lineage != self._target.lineage:
                    raise LineageChanged(
                        f"version {version} belongs to lineage {manifest.lineage}, not {self._target.lineage}"
                    )
                self._manifests[version] = manifest
            except (ChainBroken, Corrupt) as error:
                self._missing.add(version)
                self._note(error)
                return None
        return self._manifests[version]

    def _look_for_anchors(self) -> None:
        self._anchors = frozenset(v for v in self._source.anchors() if v <= self._target.version)
        for item in self._settled.values():
            self._enter_at_anchor(item)

    def _enter_at_anchor(self, item: _Item) -> None:
        assert self._anchors is not None
        if item.version not in self._anchors:
            return
        if item.version in self._vetoed:
            reason = marked_bad(item.version, self._vetoed)
            self._note(VersionVetoed(f"the anchor of version {item.version} is not used: {reason}"))
            return
        if self._avoided(StepKey("anchor", None, item.version)):
            return
        try:
            anchor = self._source.anchor(item.version)
        except (ChainBroken, Corrupt) as error:
            self._note(error)
            return
        self._enter(item, _ANCHOR, AnchorStep(item.version, anchor.body))

    def _way(self, item: _Item) -> list[Step]:
        steps: list[Step] = [] if item.start is None else [item.start]
        onward = item.onward
        while onward is not None:
            steps.append(onward[0])
            onward = self._settled[onward[1]].onward
        return steps

    def _note(self, hole: SynclineError, what: str = "") -> None:
        self._holes[f"{what}{hole}"] = hole

    def _avoided(self, key: StepKey) -> bool:
        """Whether a step failed before; if so, that is a hole."""
        failure = self._avoid.get(key)
        if failure is not None:
            self._note(failure, f"{key.words} cannot be used: ")
        return failure is not None

    def _no_way(self) -> SynclineError:
        held = "nothing applied" if self._applied is None else f"version {self._applied.version}"
        end = f"version {min(self._settled)} has no base, and its whole weights are not in the store"
        message = f"no way from {held} to version {self._target.version}: {'; '.join(self._holes) or end}"
        holes = [hole for hole in self._holes.values() if not isinstance(hole, VersionVetoed)]
        repairable = any(not isinstance(hole, EpochRegressed) for hole in holes) or not self._holes
        if self._applied is None and repairable:
            message = f"{message}; {PUT_BACK}"
        corrupt = next((hole for hole in holes if isinstance(hole, Corrupt)), None)
        if corrupt is not None:
            return type(corrupt)(message)
        if holes and all(isinstance(hole, EpochRegressed) for hole in holes):
            return EpochRegressed(message)
        return LinkMissing(message)
