"""Ways to a target: planned, brought onto the node, and remembered where they failed.

The follower decides when; this decides nothing but which steps a next plan must not use. A way that does not start
from what is applied ends in a checkpoint folder that holds the target whole, and is fetched under a lease.
"""

from __future__ import annotations

from collections.abc import Collection

from syncline.chain import AnchorStep, Plan, StepKey, plan
from syncline.errors import Corrupt, DigestMismatch, LayoutRefused, LinkMissing, SynclineError
from syncline.versions import Link
from syncline.wire.records import VersionManifest
from syncline_agent.engine import Applied
from syncline_agent.heartbeat import Heart
from syncline_agent.nodecheckpoint import Chain, NodeCheckpoint, chunks_of
from syncline_agent.nodefiles import NodeFiles
from syncline_agent.reporting import Reporter
from syncline_agent.status import ApplyPath, Phase
from syncline_agent.syncing import Sync


class Ways:
    """Plans and brings what a sync needs."""

    def __init__(self, files: NodeFiles, checkpoint: NodeCheckpoint, heart: Heart, report: Reporter) -> None:
        self._files = files
        self._checkpoint = checkpoint
        self._heart = heart
        self._report = report
        self._avoid: dict[StepKey, SynclineError] = {}
        self._disputed: Applied | None = None
        """What the engine claims and the manifest contradicts."""

    def plan(self, chain: Chain, sync: Sync, vetoed: Collection[int]) -> Plan | None:
        """The cheapest way from what is applied; None for an engine that reloads. Raises what `syncline.chain.plan`
        raises."""
        if sync.reloads:
            self._link(chain, sync.applied)
            return None
        try:
            return plan(
                self._link(chain, sync.applied),
                sync.target.version,
                chain.reader,
                on_disk=self._checkpoint.version(chain.lineage, chain.reader.keys.view),
                vetoed=vetoed,
                avoid=self._avoid,
            )
        except (LinkMissing, Corrupt):
            self._avoid.clear()  # no way is left without what failed before: it may work the next time
            raise

    def _link(self, chain: Chain, applied: Applied) -> Link:
        try:
            manifest = chain.reader.manifest(applied.version)
        except LinkMissing:
            # Collected: nothing is known of its epoch. The engine still checks the base, and the digest decides.
            return Link(applied.lineage, applied.version, None, 1)
        self.check_claim(applied, manifest)
        return Link(applied.lineage, applied.version, manifest.base, manifest.epoch)

    def check_claim(self, applied: Applied, manifest: VersionManifest) -> None:
        """DigestMismatch when the engine serves other bits under the version's number."""
        self._disputed = applied
        if applied.digest != manifest.digest:
            raise DigestMismatch(
                f"the engine says that version {applied.version} has digest {applied.digest}, its manifest says "
                f"{manifest.digest}; restart the engine from the node checkpoint"
            )
        self._disputed = None

    def undisputed(self, applied: Applied | None, *, trusted: bool = False) -> bool:
        """Whether what the engine claims is proven, as far as the engine and the manifests read so far can tell."""
        return applied is not None and (applied.proven or trusted) and applied != self._disputed

    def bring(self, chain: Chain, sync: Sync, vetoed: Collection[int]) -> None:
        """Everything that staging reads becomes verified files on this node."""
        if sync.way is None:
            self._bring_whole(chain, sync, vetoed, from_anchor=False)
        elif sync.way.start is None:
            sync.fetched_bytes += chain.fetcher.fetch(chain.reader.keys, chunks_of(sync.way))
        else:
            self._bring_whole(chain, sync, vetoed, from_anchor=isinstance(sync.way.start, AnchorStep))

    def _bring_whole(self, chain: Chain, sync: Sync, vetoed: Collection[int], *, from_anchor: bool) -> None:
        self._check_layout(chain, sync)
        sync.path = ApplyPath.RELOAD if sync.reloads else ApplyPath.CHECKPOINT
        keys, version = chain.reader.keys, sync.target.version
        if not from_anchor and self._checkpoint.advance(chain, version):
            sync.checkpoint = self._checkpoint.path
            return
        owner = self._report.status.identity.node
        with self._heart.lease(keys, chain.lineage, owner=owner, version=version) as keep:
            sync.checkpoint = self._checkpoint.second(chain, version, vetoed=vetoed, starts_from=keep)

    def _check_layout(self, chain: Chain, sync: Sync) -> None:
        """Other tensors cannot be scattered into a running engine; a restarted one loads them from the checkpoint."""
        try:
            held = chain.reader.manifest(sync.applied.version).tensors
        except LinkMissing:
            return  # the engine compares the tables itself
        if held != sync.target.tensors:
            self._checkpoint.advance(chain, sync.target.version)
            raise LayoutRefused(
                f"version {sync.target.version} has other tensors than version {sync.applied.version}; restart the "
                f"engine: {self._checkpoint.path} now holds version {sync.target.version}"
            )

    def learn(self, error: SynclineError, phase: Phase, sync: Sync) -> None:
        """What a failed sync teaches: steps that the next plan does not use, chunks that are fetched again."""
        if not isinstance(error, Corrupt | LinkMissing):
            return
        if phase is Phase.FETCH:
            self._report.refused(type(error).__name__)
            self._avoid.update(dict.fromkeys(sync.lacking(self._files), error))
        elif phase is Phase.STAGE:
            if sync.recheck(self._files):
                self._report.retried("quarantined")
                return
            if isinstance(error, DigestMismatch):
                self._report.mismatched(phase)
            # The bytes are the publisher's, and another way may lead there. An engine in doubt says so by itself.
            self._report.refused(type(error).__name__)
            self._avoid.update(dict.fromkeys(sync.step_keys, error))

    def arrived(self) -> None:
        """The target is served: nothing need be avoided any more."""
        self._avoid.clear()
