"""What an arm does when it is called: the weights of its rank, the gate of its engine, or both, and what is left half-way
when the agent goes away.

It knows no socket. Calls come one at a time, except `sweep` and `state`. It never decides what to apply; alone with all
of an engine's weights it brings to its end what an agent began and did not live to end.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from structlog.typing import FilteringBoundLogger

from syncline.errors import EngineUnavailable, LayoutRefused, ProtocolViolation
from syncline_agent.arm.gate import Gate
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.messages import (
    Answer,
    BandPart,
    Call,
    Confirm,
    Confirmed,
    Discard,
    Done,
    Fail,
    Held,
    Hold,
    Open,
    Prove,
    Publish,
    Ready,
    Release,
    Resume,
    Resumed,
    Scatter,
    Stage,
    Staged,
    State,
    Sweep,
    Swept,
    Write,
)
from syncline_agent.arm.parts import applied_part, band_parts, from_stage_message, hexes
from syncline_agent.engine import Applied

UNPROVEN = "not proven yet; the agent proves it when all ranks are there"


class Answerer:
    """One arm's duties."""

    def __init__(
        self,
        live: LiveWeights | None,
        gate: Gate | None,
        *,
        ranks: int,
        node_dir: Path,
        refusal: str | None,
        log: FilteringBoundLogger,
    ) -> None:
        """`refusal`: why there is no `live` though the arm is a rank."""
        self._live, self._gate = live, gate
        self._node_dir = node_dir
        self._refusal = refusal
        self._log = log
        self._alone = gate is not None and live is not None and ranks == 1 and live.is_whole
        self._failed = None if gate is None or self._alone else UNPROVEN
        """Why the gate serves nothing."""
        self._unfailed = False
        """It could not be told so."""
        self._was_let_in = False
        """By an agent, once at least."""
        self._turned_away = False
        """An agent said so, and none let the arm in."""
        self._writing = False
        """The gate waits for a write to end."""
        self._was_written_under = False
        """Once at least."""
        self._withheld = False
        """The gate keeps inside what it computes."""
        self._unconfirmed: int | None = None
        """What was written and not read back."""

    def state(self) -> State:
        live = self._live
        if live is None:
            return State(applied=None, error=self._refusal, failed=self._failed)
        applied = live.applied
        return State(applied=None if applied is None else applied_part(applied), error=live.error, failed=self._failed)

    def holds(self) -> list[BandPart] | None:
        """What the rank holds, with the digests of what is applied: None for the view whole, and without a rank; nothing for
        a rank whose layout was refused."""
        if self._live is None:
            return None if self._refusal is None else []
        return band_parts(self._live.table, self._live.holds)

    def claim(self) -> tuple[list[BandPart] | None, State]:
        """`holds` and `state` of one moment, though a call may change both meanwhile."""
        state = self.state()
        while True:
            holds, now = self.holds(), self.state()
            if now == state:
                return holds, state
            state = now

    def do(self, call: Call) -> Answer:
        """The answer to a call; raises what it failed with."""
        match call:
            case Prove():
                return self._prove(call)
            case Hold() | Write() | Resume() | Publish() | Release() | Fail() | Open():
                return self._ask_gate(call, self._gate)
            case _:
                return self._ask_rank(call, self._live)

    def release(self) -> None:
        """The agent went away: a hold that it asked for ends now, whatever else is under way."""
        if self._gate is not None:
            self._gate.release()

    def let_in(self) -> None:
        """An agent took the arm: `recover` may do what it can."""
        self._was_let_in, self._turned_away = True, False

    def turn_away(self, reason: str) -> None:
        """An agent will not have this arm. One that none ever had serves nothing, also with all weights in it and proven:
        the agent's word on what is served is of another engine, or nobody's. In turn with the calls."""
        said = f"the agent has not let this engine in: {reason}"
        if self._gate is None or not self._alone or self._was_let_in or (said == self._failed and not self._unfailed):
            return
        self._turned_away = True
        self._fail(self._gate, said)

    def settle(self) -> None:
        """The agent went away: bring what it left half-way to an end that is safe without it. In turn with the calls."""
        trouble: str | None = None
        if self._writing and self._alone and self._live is not None and self._live.error is None:
            version = self._live.version
            assert version is not None  # nothing is written to weights of no version
            try:
                self._gate_of(self._gate).resume(version)
                self._writing, self._withheld = False, True
            except Exception as error:
                trouble = f"the engine did not go on after a write: {error}"
        if self._unconfirmed is not None and self._live is not None:
            try:
                self._confirm(self._live, self._unconfirmed)
            except Exception as error:
                self._log.error("what was written could not be confirmed", reason=str(error))
        if self._gate is not None:
            self._fail_again(self._gate)
        if not self._writing and not self._withheld:
            return
        applied = self._live.applied if self._live is not None else None
        if not self._writing and self._alone and applied is not None and applied.proven:
            try:
                self._gate_of(self._gate).publish()
                self._withheld = False
                return
            except Exception as error:
                trouble = f"what was computed could not be let out: {error}"
        why = self._live.error if self._live is not None else None
        self._fail(self._gate_of(self._gate), trouble or why or "the agent went away between a write and its proof")

    @property
    def half_way(self) -> bool:
        """A write of an agent has begun, and not come to its end."""
        return self._writing or self._withheld or self._unconfirmed is not None

    @property
    def recovers(self) -> bool:
        """Alone with all weights, which have proven themselves: a gate that failed need not wait for an agent to say so,
        unless one is changing them."""
        return (
            not self.half_way
            and not self._turned_away
            and self._alone
            and self._failed is not None
            and self._live is not None
            and self._live.in_service
        )

    def recover(self) -> None:
        """Be in service again, if that is so. In turn with the calls."""
        if self.recovers and self._live is not None and self._live.version is not None:
            self._gate_of(self._gate).prove(self._live.version)
            self._failed, self._unfailed, self._withheld = None, False, False

    # --- a rank ----------------------------------------------------------------------------------------------------

    def _ask_rank(self, call: Stage | Ready | Scatter | Confirm | Discard | Sweep, live: LiveWeights | None) -> Answer:
        if live is None:
            raise LayoutRefused(self._refusal) if self._refusal else ProtocolViolation("this arm is no rank")
        match call:
            case Stage():
                result = live.stage(from_stage_message(call, self._node_dir))
                return Staged(
                    id=call.id,
                    target=result.target,
                    changed=result.changed,
                    staged_bytes=result.staged_bytes,
                    seconds=result.seconds,
                    digests=hexes(result.digests),
                )
            case Ready():
                (live.ready_undo if call.undo else live.ready)(call.target)
            case Scatter():
                if self._gate is not None and not self._writing:
                    raise EngineUnavailable("the engine does not stand for a write; nothing was written")
                live.scatter(call.target)
                self._unconfirmed = call.target
            case Confirm():
                return Confirmed(id=call.id, applied=applied_part(self._confirm(live, call.target)))
            case Discard():
                live.discard()
            case Sweep():
                applied, holds = live.sweep(), live.holds
                changed = live.applied != applied or live.version != applied.version  # then these are another version's
                digests = None if holds is None or changed else hexes([digest for _, digest in holds])
                return Swept(id=call.id, applied=applied_part(applied), digests=digests)
            case _:
                assert_never(call)
        return Done(id=call.id)

    def _confirm(self, live: LiveWeights, target: int) -> Applied:
        if self._unconfirmed == target:
            self._unconfirmed = None
        return live.confirm(target)

    def _prove(self, call: Prove) -> Done:
        if self._gate is not None:
            self._fail_again(self._gate)
        if self._writing or self._unconfirmed is not None:
            raise EngineUnavailable("a write is under way; nothing is proven")
        if self._live is not None:
            self._live.proved(call.version, call.digest)
        if self._gate is not None:
            self._gate.prove(call.version)
            self._failed, self._withheld = None, False
        return Done(id=call.id)

    # --- a gate ----------------------------------------------------------------------------------------------------

    def _ask_gate(self, call: Hold | Write | Resume | Publish | Release | Fail | Open, gate: Gate | None) -> Answer:
        gate = self._gate_of(gate)
        match call:
            case Hold():
                self._fail_again(gate)
                if self._writing:
                    raise EngineUnavailable("a write is under way; end it first")
                spans, ended = gate.hold(call.policy), gate.ended()
                return Held(id=call.id, spans=dict(spans), ended=None if ended is None else list(ended))
            case Write():
                gate.write()
                self._writing = self._was_written_under = True
            case Resume():
                pause_seconds = gate.resume(call.version)
                self._writing, self._withheld = False, True
                return Resumed(id=call.id, pause_seconds=pause_seconds)
            case Publish():
                if self._unconfirmed is not None:
                    raise EngineUnavailable("what was written was not read back; nothing leaves")
                if self._live is not None and not self._live.in_service:
                    raise EngineUnavailable("what is held here is not proven; nothing leaves")
                gate.publish()
                self._withheld = False
            case Release():
                gate.release()
            case Fail():
                self._fail(gate, call.reason)
            case Open():
                if self._was_written_under:
                    raise LayoutRefused("this engine was written under: what it holds may not be what it loaded")
                gate.open()
                self._failed, self._unfailed = None, False
            case _:
                assert_never(call)
        return Done(id=call.id)

    def _fail(self, gate: Gate, reason: str) -> None:
        self._failed, self._unfailed = reason, True
        gate.fail(reason)
        self._unfailed = self._writing = self._withheld = False

    def _fail_again(self, gate: Gate) -> None:
        """Before anything else is asked of a gate that could not go out of service."""
        if self._unfailed:
            self._fail(gate, self._failed or "")

    def _gate_of(self, gate: Gate | None) -> Gate:
        if gate is None:
            raise ProtocolViolation("this arm is no gate")
        return gate
