"""Which version a node should serve now: head, pin and vetoes brought together. Reads the store; decides nothing
about the way there."""

from __future__ import annotations

from collections.abc import Mapping

from syncline.chain import newest_allowed, undoing
from syncline.clock import Clock
from syncline.errors import LinkMissing, NotFound, Retryable, VersionVetoed
from syncline.wire.records import VersionManifest, VetoRecord
from syncline_agent.engine import Applied
from syncline_agent.nodecheckpoint import Chain
from syncline_agent.policy import Target


class Chooser:
    """Remembers what it saw last, so that an idle poll costs one store request."""

    def __init__(self, *, clock: Clock, veto_seconds: float) -> None:
        self._clock = clock
        self._veto_seconds = veto_seconds
        self._lineage: str | None = None
        self._vetoes_at: float | None = None
        self.head: VersionManifest | None = None
        self.head_at: float | None = None
        """When head was last read (monotonic)."""
        self.vetoes: Mapping[int, VetoRecord] = {}
        self.remark: str | None = None
        """Why the choice is not what the target file names; None when it is."""

    def forget(self) -> None:
        """Another run or view is followed from here on."""
        self._lineage = self._vetoes_at = self.head = self.head_at = self.remark = None
        self.vetoes = {}

    def choose(self, chain: Chain, target: Target, *, afresh: bool = False) -> VersionManifest | None:
        """The version to serve; None when there is none to serve yet.

        `afresh` reads head and vetoes both, as must be before a commit; otherwise one of them, in turn. VersionVetoed
        when nothing at or below the wanted version may be served.
        """
        if chain.lineage != self._lineage:
            self._lineage, self._vetoes_at, self.head, self.vetoes = chain.lineage, None, None, {}
        now = self._clock.monotonic()
        due = self._vetoes_at is None or now - self._vetoes_at >= self._veto_seconds
        if due or afresh:
            self.vetoes = chain.reader.vetoes()
            self._vetoes_at = now
        if self.head is None or not due or afresh:
            self.head = chain.reader.head()
            self.head_at = now
        return self._chosen(chain, target, self.head)

    def marked_bad(self, chain: Chain, version: int) -> str | None:
        """Why `version` must not be served, by the vetoes as they are now; None when it may be.

        A store that does not answer is not waited for: the vetoes are then those that were read when it was chosen.
        """
        try:
            self.vetoes = chain.reader.vetoes()
            self._vetoes_at = self._clock.monotonic()
        except Retryable:
            pass
        veto = self.vetoes.get(version)
        return veto.reason if veto is not None else None

    def _chosen(self, chain: Chain, target: Target, head: VersionManifest | None) -> VersionManifest | None:
        self.remark = None
        if head is None:
            self.remark = f"run {target.run} has no version of view {target.view} yet"
            return None
        wanted = head.version if target.pinned is None else target.pinned
        if wanted > head.version:
            self.remark = f"version {wanted} is pinned and not committed yet; waiting for it"
            return None
        allowed = newest_allowed(wanted, self.vetoes)
        if allowed is None:
            raise VersionVetoed(
                f"every version up to {wanted} was marked bad, {wanted} itself because: {self.vetoes[wanted].reason}; "
                f"publish a good one, or take a mark back: {undoing(wanted, self.vetoes)}"
            )
        if allowed != wanted and target.pinned is not None:
            self.remark = (
                f"version {wanted} is pinned and was marked bad ({self.vetoes[wanted].reason}); taking {allowed}"
            )
        return head if allowed == head.version else chain.reader.manifest(allowed)

    def lags(self, wanted: VersionManifest, applied: Applied, target: Target) -> bool:
        """Whether the store shows less than what is applied: a mirror that is behind, or a listing from before.

        Versions are never taken back; who must go back is told so by a pin or a veto.
        """
        if wanted.version >= applied.version or target.pinned is not None or applied.version in self.vetoes:
            return False
        self.remark = f"the store's head is version {wanted.version}, behind {applied.version}; waiting until it is not"
        return True

    def committed_at(self, chain: Chain, versions: range) -> float | None:
        """When the first of `versions` that still exists was committed, by the store's clock."""
        for version in versions:
            try:
                return chain.reader.store.head(chain.reader.keys.version(version)).modified
            except (NotFound, LinkMissing):
                continue
        return None
