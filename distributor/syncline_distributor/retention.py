"""What must stay: pure rules from the links of a chain and the needs of its readers. The sweeper does the input and
output.

The walk goes down from head by `base` links (an anchor-only version, which has none, is preceded by the version
numbered one below). For every need it keeps the path from the newest anchor at or before the needed version up to
head, and all that this path's versions are made of. A need without a version is a joiner's: the newest anchor and what
follows. Where no anchor is left at or below a need, the whole walk stays: what cannot be proven useless is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChainMap:
    """Everything of one view that retention decides about, by version number."""

    bases: Mapping[int, int | None]
    """Committed versions and their bases; a version whose base is None carries an anchor of its own."""
    anchors: frozenset[int]
    """Versions whose whole weights are stored, anchor-only versions included."""
    skips: frozenset[tuple[int, int]] = frozenset()
    """Skip deltas as (to, from)."""
    vetoed: frozenset[int] = frozenset()
    """Marked bad. Their anchors do not count as ones to start from."""

    @property
    def head(self) -> int | None:
        return max(self.bases, default=None)


@dataclass(frozen=True, slots=True)
class Kept:
    """What stays."""

    versions: frozenset[int] = frozenset()
    anchors: frozenset[int] = frozenset()
    skips: frozenset[tuple[int, int]] = frozenset()


def walk_down(chain: ChainMap) -> list[int]:
    """Versions from head downwards by base links, as far as they exist."""
    steps: list[int] = []
    at = chain.head
    while at is not None and at in chain.bases:
        steps.append(at)
        base = chain.bases[at]
        at = base if base is not None else at - 1
    return steps


def keep(chain: ChainMap, needs: Iterable[int | None], *, keep_anchors: int = 1, keep_versions: int = 0) -> Kept:
    """The keep-set. `needs` holds each fresh reader's versions (applied, pinned, boot, target; leases) and None for a
    joiner.

    A joiner's path is kept always; beyond the needs so are the newest `keep_anchors` anchors and the newest
    `keep_versions` versions.
    """
    walk = walk_down(chain)
    if not walk:
        return Kept()
    usable = [v for v in walk if v in chain.anchors and v not in chain.vetoed]
    spare = usable[: max(1, keep_anchors)]
    wanted = {walk[0], *spare, *walk[: max(0, keep_versions)]} | {walk[0] if need is None else need for need in needs}
    starts = {need: next((v for v in usable if v <= need), None) for need in wanted}
    lowest = min(walk[-1] if start is None else start for start in starts.values())
    versions = frozenset(v for v in walk if v >= lowest)
    own = {v for v in versions if chain.bases[v] is None}
    anchors = frozenset(versions & (own | {*spare} | {v for v in starts.values() if v is not None}))
    return Kept(versions, anchors, _skips(chain, versions, anchors))


def _skips(chain: ChainMap, versions: frozenset[int], anchors: frozenset[int]) -> frozenset[tuple[int, int]]:
    # Two an anchor: a joiner that planned with the second newest still finds it when the newest appears.
    kept: set[tuple[int, int]] = set()
    for anchor in anchors:
        targets = sorted((to for to, start in chain.skips if start == anchor and to in versions), reverse=True)
        kept.update((to, anchor) for to in targets[:2])
    return frozenset(kept)


def needs_of(applied: int | None, pinned: int | None, boot: int | None, target: int | None = None) -> list[int | None]:
    """A heartbeat's needs. A node that holds nothing yet needs what a joiner needs, and any node the way to its target,
    which may lie below all of these: a pinned version that was marked bad."""
    named: list[int | None] = [v for v in (applied, pinned, boot) if v is not None]
    return (named or [None]) + ([target] if target is not None else [])
