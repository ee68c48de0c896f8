"""The follower: the one loop of the node. It reads head, plans, fetches, stages, commits, and proves what it cannot
trust.

A state machine without threads: `tick` does one phase and returns the seconds until the next, so a process drives it
from a thread and a simulation drives many from one seeded scheduler. Phases follow each other Idle -> (Join) -> Plan
-> Fetch -> Stage -> Commit -> Idle; every failure ends in Failed and starts again from Idle, that is from what the
engine says it holds, never from what this object remembers. A version is committed only when the engine has predicted
its digest, and no delta is applied to another base than its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from syncline import faults
from syncline.clock import Clock
from syncline.errors import EngineUncertain, LineageChanged, NotFound, Retryable, StoreUnavailable, SynclineError
from syncline.wire.records import VersionManifest
from syncline_agent.absence import Absence
from syncline_agent.choosing import Chooser
from syncline_agent.engine import Applied, Engine
from syncline_agent.healing import Healer
from syncline_agent.heartbeat import Heart
from syncline_agent.held import Held
from syncline_agent.lag import Lag
from syncline_agent.lane.epochs import Epochs
from syncline_agent.lane.pins import LOOK_AGAIN_S, Pins
from syncline_agent.nodecheckpoint import Chain, NodeCheckpoint, path_chunks
from syncline_agent.nodefiles import NodeFiles, node_trouble
from syncline_agent.policy import Target, TargetFile
from syncline_agent.reporting import Reporter, aimed
from syncline_agent.settings import FollowSettings
from syncline_agent.status import WORK, ApplyPath, Phase
from syncline_agent.switching import Switch
from syncline_agent.syncing import Sync
from syncline_agent.ways import Ways


class Follower:
    """One node following one target file."""

    def __init__(
        self,
        *,
        engine: Engine,
        chains: Callable[[str, str], Chain],
        files: NodeFiles,
        checkpoint: NodeCheckpoint,
        targets: TargetFile,
        heart: Heart,
        reporter: Reporter,
        pins: Pins,
        epochs: Epochs,
        settings: FollowSettings,
        clock: Clock,
        random: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        """`chains` makes what reads (run, view); it raises what the store raises."""
        self._chains = chains
        self._files = files
        self._checkpoint = checkpoint
        self._targets = targets
        self._heart = heart
        self._report = reporter
        self._pins = pins
        self._epochs = epochs
        self._settings = settings
        self._clock = clock
        self._random = random
        self._log = log
        self._held = Held(engine)
        self._switch = Switch(engine, files, reporter, clock=clock, log=log)
        self._ways = Ways(files, checkpoint, heart, reporter)
        self._healer = Healer(engine, files, checkpoint, log)
        self._chooser = Chooser(clock=clock, veto_seconds=settings.veto_seconds)
        self._lag = Lag(clock, heart.time)
        self._absence = Absence(checkpoint, clock, patience_s=settings.advance_seconds)
        self._phase = Phase.IDLE
        self._began = clock.monotonic()
        self._target: Target | None = None
        self._chain: Chain | None = None
        self._wanted: VersionManifest | None = None
        self._sync: Sync | None = None
        self._failures = 0
        self._error: str | None = None

    @property
    def chain(self) -> Chain | None:
        """What is followed now; the background reads it from its own thread."""
        return self._chain

    def tick(self) -> float:
        """Do one phase; returns the seconds to wait before the next call. Raises nothing of Syncline's."""
        self._began, phase = self._clock.monotonic(), self._phase
        try:
            delay = self._step()
        except SynclineError as error:
            delay = self._failed(error)
        except OSError as error:
            delay = self._failed(node_trouble(error, self._files.root))
        if phase in WORK:
            seconds = self._clock.monotonic() - self._began
            self._report.took(phase.value.lower(), seconds)
            if self._sync is not None:
                self._sync.spent(phase, seconds)
        self._publish()
        return delay

    def _step(self) -> float:
        target = self._targets.poll()
        if target is None:
            self._error = self._targets.error
            return self._poll_delay()
        if target != self._target:
            if self._sync is not None:
                self._drop_sync()
            if self._target is None or (target.run, target.view) != (self._target.run, self._target.view):
                self._chain = self._wanted = None
                self._chooser.forget()
                self._lag.forget()
            self._target, self._failures, self._error = target, 0, None
            self._phase = Phase.IDLE
        if self._phase is Phase.JOIN:
            return self._join(target)
        if self._phase is Phase.HEAL:
            return self._heal(target)
        if self._sync is None or self._chain is None:
            return self._idle(target)
        if self._phase is Phase.PLAN:
            return self._plan(self._chain, self._sync)
        if self._phase is Phase.FETCH:
            return self._fetch(self._chain, self._sync, target)
        if self._phase is Phase.STAGE:
            return self._stage(self._chain, self._sync)
        return self._commit(self._chain, self._sync, target)

    # --- Idle: what is served, what should be, and is there anything to do

    def _idle(self, target: Target) -> float:
        described = self._held.look()
        chain = self._followed(target)
        if chain is None:
            return self._poll_delay()
        applied = self._held.applied
        if applied is not None and not applied.proven and not self._held.unprovable:
            return self._enter(Phase.HEAL)
        if applied is None:
            self._checkpoint.examine()  # the engine that waits for it cannot tell that it is not coming
        if applied is None and self._checkpoint.version(chain.lineage, target.view) is None:
            return self._enter(Phase.JOIN)
        wanted = self._wanted = self._chooser.choose(chain, target)
        self._lag.head_read(self._chooser.head_at)
        self._error = self._chooser.remark or (None if self._settings.serve_unproven else self._held.not_served)
        if described is None:
            self._error = f"no engine to commit to ({self._held.silence}); waiting for one"
            if wanted is not None and not target.suspend and self._absence.asks_for(chain, wanted):
                return self._enter(Phase.JOIN)
            return self._enter(Phase.IDLE, self._poll_delay())
        self._absence.over()
        if applied is None:
            self._error = (
                described.error or "the engine holds no version yet; waiting until it has loaded the checkpoint"
            )
            return self._enter(Phase.FAILED if described.error else Phase.IDLE, self._poll_delay())
        self._held.check_run(chain, target, self._checkpoint.path)
        self._epochs.ask(applied, lambda: chain.reader.manifest(applied.version).epoch)
        if wanted is None or wanted.version == applied.version:
            return self._rest(wanted, applied, target)
        if self._chooser.lags(wanted, applied, target):
            self._error, self._wanted = self._chooser.remark, None
            return self._rest(None, applied, target)
        self._note_behind(chain, applied, wanted)
        if target.suspend:
            return self._enter(Phase.SUSPENDED, self._poll_delay())
        began, modified = self._clock.monotonic(), self._lag.modified
        self._sync = Sync(wanted, applied, began, reloads=described.reloads, modified=modified)
        return self._enter(Phase.PLAN)

    def _rest(self, wanted: VersionManifest | None, applied: Applied, target: Target) -> float:
        if wanted is not None:
            self._ways.check_claim(applied, wanted)
        self._failures = 0
        self._ways.arrived()
        self._lag.caught_up(sure=wanted is not None)
        return self._enter(Phase.SUSPENDED if target.suspend else Phase.IDLE, self._poll_delay())

    def _followed(self, target: Target) -> Chain | None:
        if self._chain is None:
            try:
                chain = self._chains(target.run, target.view)
            except NotFound as error:
                self._error = f"waiting for the first version: {error}"
                return None
            self._held.followed(chain, target)
            self._checkpoint.check_lineage(chain)
            self._chain = chain
        return self._chain

    def _note_behind(self, chain: Chain, applied: Applied, wanted: VersionManifest) -> None:
        oldest = applied.version + 1 if wanted.version > applied.version else wanted.version
        if self._lag.version != oldest:
            self._lag.behind(oldest, self._chooser.committed_at(chain, range(oldest, wanted.version + 1)))

    # --- Join: a checkpoint for an engine to start from

    def _join(self, target: Target) -> float:
        chain = self._followed(target)
        if chain is None:
            return self._enter(Phase.IDLE, self._poll_delay())
        # The lease comes before the listing: what is planned from the listing cannot be collected any more.
        with self._heart.lease(
            chain.reader.keys, chain.lineage, owner=self._report.status.identity.node, version=target.pinned
        ) as keep:
            wanted = self._wanted = self._chooser.choose(chain, target, afresh=True)
            if wanted is None:
                self._error = self._chooser.remark
                return self._enter(Phase.IDLE, self._poll_delay())
            self._checkpoint.join(chain, wanted.version, vetoed=self._chooser.vetoes, starts_from=keep)
            self._publish()
            self._heart.beat(self._report.status)  # from here on the heartbeat keeps what the lease kept
        self._failures, self._error = 0, None
        return self._enter(Phase.IDLE)

    # --- Plan, Fetch, Stage, Commit

    def _plan(self, chain: Chain, sync: Sync) -> float:
        back = sync.target.version < sync.applied.version and not sync.coalesced
        if back and sync.path is ApplyPath.DELTA and not sync.reloads:
            sync.path = ApplyPath.UNDO  # cheaper than anything that could be planned, if the engine still keeps it
            return self._enter(Phase.COMMIT)
        sync.way = self._ways.plan(chain, sync, self._chooser.vetoes)
        faults.reach("apply.planned")
        return self._enter(Phase.FETCH)

    def _fetch(self, chain: Chain, sync: Sync, target: Target) -> float:
        self._ways.bring(chain, sync, self._chooser.vetoes)
        faults.reach("apply.fetched")
        if sync.coalesced:
            return self._enter(Phase.STAGE)
        # Once more before staging: versions and vetoes that came while chunks did. They go into the same commit.
        sync.coalesced = True
        newest = self._chooser.choose(chain, target, afresh=True)
        if newest is None or newest.version == sync.target.version:
            self._lag.head_read(self._chooser.head_at)
            return self._enter(Phase.STAGE)
        if newest.version == sync.applied.version:
            self._drop_sync()
            return self._enter(Phase.IDLE)
        if sync.checkpoint is not None and sync.target.version not in self._chooser.vetoes:
            return self._enter(Phase.STAGE)  # a whole checkpoint was brought for this target; deltas lead on from it
        self._lag.head_read(self._chooser.head_at)
        self._wanted = sync.target = newest
        sync.checkpoint = None
        return self._enter(Phase.PLAN)

    def _stage(self, chain: Chain, sync: Sync) -> float:
        self._switch.stage(chain, sync)
        return self._enter(Phase.COMMIT)

    def _commit(self, chain: Chain, sync: Sync, target: Target) -> float:
        with self._pins.commit() as may:
            return self._commit_now(chain, sync, target) if may else self._enter(Phase.COMMIT, LOOK_AGAIN_S)

    def _commit_now(self, chain: Chain, sync: Sync, target: Target) -> float:
        reason = self._chooser.marked_bad(chain, sync.target.version)
        if reason is not None:
            self._log.info("left a staged version that was marked bad", version=sync.target.version, reason=reason)
            self._drop_sync()
            return self._enter(Phase.IDLE)
        # Before a gateway can hear of the commit.
        self._epochs.learn(chain.lineage, chain.reader.keys.view, sync.target.version, sync.target.epoch)
        result = self._switch.commit(sync, target.policy)
        if result is None:
            return self._enter(Phase.PLAN)
        sync.spent(Phase.COMMIT, self._clock.monotonic() - self._began)
        self._switch.committed(chain, sync, result, behind_seconds=self._lag.age(sync.modified))
        self._sync, self._held.came_from, self._failures, self._error = None, None, 0, None
        self._ways.arrived()
        self._lag.caught_up()
        self._held.look()
        self._checkpoint.drop_second()
        boot = self._checkpoint.version(chain.lineage, chain.reader.keys.view)
        self._files.prune(path_chunks(chain, boot, result.version, self._settings.keep_chunk_bytes))
        return self._enter(Phase.IDLE)

    # --- Heal: bits in doubt

    def _heal(self, target: Target) -> float:
        chain = self._chain
        if chain is None or self._held.look() is None:
            return self._enter(Phase.IDLE, self._backoff())
        fallback = self._wanted.version if self._wanted is not None else None
        self._healer.heal(chain, came_from=self._held.came_from, fallback=fallback, policy=target.policy)
        self._held.came_from, self._failures, self._error = None, 0, None
        self._held.look()
        return self._enter(Phase.IDLE)

    # --- failures

    def _failed(self, error: SynclineError) -> float:
        sync, phase = self._sync, self._phase
        self._failures += 1
        self._error = str(error)
        self._report.retried(type(error).__name__)
        if isinstance(error, StoreUnavailable):
            self._lag.store_failed()
        if sync is not None:
            if isinstance(error, EngineUncertain):
                self._held.came_from = sync.applied.version
            self._ways.learn(error, phase, sync)
            self._drop_sync()
        again = self._failures > 1 and not isinstance(error, Retryable | EngineUncertain)
        if (again or isinstance(error, LineageChanged)) and phase is not Phase.HEAL:
            # A reader remembers what it read: if that was damaged on its way, it must be read again. Not before healing,
            # which must not wait for a store.
            self._chain = None
        self._held.look()
        if isinstance(error, EngineUncertain) or phase is Phase.HEAL:
            self._report.mismatched(phase)
            delay = 0.0 if phase is not Phase.HEAL else self._backoff()
            return self._enter(Phase.HEAL if self._held.described is not None else Phase.IDLE, delay)
        return self._enter(Phase.FAILED, self._backoff())

    def _drop_sync(self) -> None:
        self._sync = None
        if self._phase in (Phase.STAGE, Phase.COMMIT):
            self._switch.discard()

    # --- pacing and status

    def _enter(self, phase: Phase, delay: float = 0.0) -> float:
        self._phase = phase
        return delay

    def _poll_delay(self) -> float:
        return self._settings.poll_seconds * (1.0 + self._random.uniform(0.0, self._settings.poll_jitter))

    def _backoff(self) -> float:
        return self._settings.backoff(self._failures) * self._random.uniform(0.5, 1.0)

    def _publish(self) -> None:
        target, chain, applied, wanted = self._target, self._chain, self._held.applied, self._wanted
        head, now, read = self._chooser.head, self._clock.monotonic(), self._chooser.head_at
        trusted = self._settings.serve_unproven and self._held.unprovable is not None
        foreign = self._held.of_another(target)
        self._report.say(
            **aimed(target, self._targets.error),
            phase=self._phase,
            lineage=chain.lineage if chain is not None else None,
            head=head.version if head is not None else None,
            target=wanted.version if wanted is not None else None,
            applied=applied,
            engine=self._held.described,
            foreign=foreign,
            in_service=self._ways.undisputed(applied, trusted=trusted)
            and not foreign
            and self._phase is not Phase.HEAL,
            lag_versions=abs(wanted.version - applied.version) if chain and applied and wanted and not foreign else 0,
            lag_seconds=self._lag.seconds(),
            lag_most=self._lag.most(),
            head_age=None if read is None else now - read,
            as_of=now,
            boot=self._checkpoint.version(chain.lineage, chain.reader.keys.view) if chain is not None else None,
            error=self._error,
            failures=self._failures,
        )
