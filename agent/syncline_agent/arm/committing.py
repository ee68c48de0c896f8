"""One change of version on all ranks of an island as one: the order of the calls, and what is said when one fails.

Before the gate agrees to the write nothing was written, and every failure ends in a release. After it every failure
takes the engine out of service, whatever it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from structlog.typing import FilteringBoundLogger

from syncline import faults
from syncline.errors import EngineUncertain, SynclineError
from syncline.versions import Policy
from syncline_agent.arm.connected import Arm, ask_all, fail
from syncline_agent.arm.island import Members
from syncline_agent.arm.messages import (
    Answer,
    Call,
    Confirm,
    Confirmed,
    Done,
    Held,
    Hold,
    Publish,
    Ready,
    Release,
    Resume,
    Resumed,
    Scatter,
    Write,
)
from syncline_agent.arm.parts import applied
from syncline_agent.arm.turns import short_turns, uncollected
from syncline_agent.engine import Applied, CommitResult, Crossing, Witness


@dataclass(frozen=True, slots=True)
class ArmTimeouts:
    """How long each call may take before its arm counts as gone."""

    stage_s: float = 600.0
    ready_s: float = 30.0
    """`ready`, `hold` and `prove`, which may stand behind what an earlier agent asked for."""
    drain_s: float = 600.0
    """`hold` under Policy.DRAIN: requests in flight end first."""
    scatter_s: float = 60.0
    """`scatter` and `confirm`."""
    sweep_s: float = 600.0
    other_s: float = 10.0


DEFAULT_TIMEOUTS = ArmTimeouts()


class Commit:
    """From what is staged, or kept to go back to, to what is served."""

    def __init__(
        self,
        members: Members,
        target: int,
        *,
        undo: bool,
        timeouts: ArmTimeouts,
        witness: Witness,
        log: FilteringBoundLogger,
    ) -> None:
        self._members = members
        self._ranks, self._gate = members.ranks, members.gate
        self._target, self._undo = target, undo
        self._timeouts = timeouts
        self._witness = witness
        self._log = log
        self._confirming = False

    def run(self, policy: Policy) -> CommitResult:
        """As `Engine.commit` and `Engine.undo`. The engine stands while the calls go to and fro: no thread of the agent's own,
        nor its collector, may hold up the one that makes them."""
        with short_turns(), uncollected():
            return self._run(policy)

    def _run(self, policy: Policy) -> CommitResult:
        before = self._ranks[0].state.applied
        held = self._hold(policy)
        told = partial(Crossing, None if before is None else applied(before))
        try:
            pause_seconds = self._write()
            after = self._confirm()
            self._witness(told(after, held.spans, held.ended))
            self._let_out(after)
        except SynclineError as error:
            # A rank that never got the message wrote nothing, but another one may have: the island is uncertain.
            uncertain = f"writing version {self._target}: {error}; undo, or stage a checkpoint"
            self._give_up(uncertain)
            self._witness(told(None, None, None))
            raise EngineUncertain(uncertain) from error
        return CommitResult(self._target, after.digest, pause_seconds, spans=held.spans)

    def _hold(self, policy: Policy) -> Held:
        """All ranks are ready, and the engine stands and waits for the write."""
        target, undo, times = self._target, self._undo, self._timeouts
        ask_all(self._ranks, lambda i: Ready(id=i, target=target, undo=undo), Done, times.ready_s)
        patience_s = times.drain_s if policy is Policy.DRAIN else times.ready_s
        try:
            held = self._gate.ask(lambda i: Hold(id=i, policy=policy), Held, patience_s)
            faults.reach("apply.ready")
            self._gate.ask(lambda i: Write(id=i), Done, times.other_s)
        except SynclineError:
            self._tell([self._gate], lambda i: Release(id=i), Done)
            raise
        faults.reach("apply.writing")
        return held

    def _write(self) -> float:
        """New bits on every rank, and steps go on with them. Returns how long none could run."""
        target, times = self._target, self._timeouts
        for rank in self._ranks:
            rank.digests = None
        ask_all(self._ranks, lambda i: Scatter(id=i, target=target), Done, times.scatter_s)
        resumed = self._gate.ask(lambda i: Resume(id=i, version=target), Resumed, times.other_s)
        faults.reach("apply.resumed")
        return resumed.pause_seconds

    def _confirm(self) -> Applied:
        """Every written place was read back. Returns what all ranks hold."""
        target, times = self._target, self._timeouts
        self._confirming = True
        confirmed = ask_all(self._ranks, lambda i: Confirm(id=i, target=target), Confirmed, times.scatter_s)
        held = {(c.applied.version, c.applied.digest) for c in confirmed}
        if len(held) != 1:
            raise EngineUncertain(f"ranks hold different versions: {sorted(held)}")
        if confirmed[0].applied.version != target:
            raise EngineUncertain(f"the ranks hold version {confirmed[0].applied.version}, not {target}")
        for rank in self._ranks:
            staged, rank.staged = rank.staged, None
            if staged is not None and staged[0] == target and not self._undo:
                rank.digests = staged
        return replace(applied(confirmed[0].applied), proven=all(c.applied.proven for c in confirmed))

    def _let_out(self, after: Applied) -> None:
        """What was computed since the write may leave the engine."""
        if after.proven:
            self._gate.ask(lambda i: Publish(id=i), Done, self._timeouts.other_s)
        else:
            self._gate.withholds = True  # until a sweep, and then `prove`

    def _give_up(self, reason: str) -> None:
        """Out of service; and a rank that has written says so, where it would else name the version before."""
        target, times = self._target, self._timeouts
        try:
            fail(self._gate, reason, times.other_s)
        except SynclineError as error:
            self._log.warning("the gate did not go out of service; it is asked again", reason=str(error))
        if not self._confirming:
            self._tell(self._ranks, lambda i: Confirm(id=i, target=target), Confirmed, times.scatter_s)

    def _tell(
        self, arms: Sequence[Arm], make: Callable[[int], Call], kind: type[Answer], timeout_s: float | None = None
    ) -> None:
        try:
            ask_all(arms, make, kind, timeout_s or self._timeouts.other_s)
        except SynclineError as error:
            self._log.info("call failed while giving up", reason=str(error))
