"""The agent's word on an island: what its ranks hold is one version and whole. Said to all of them, whenever it became true.

A rank that holds the view whole knows by itself; one that holds a part knows only that its own bits are what they should
be, and a gate knows nothing. Nobody else may call the island while it is looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from structlog.typing import FilteringBoundLogger

from syncline.errors import DigestMismatch, EngineUnavailable, LayoutRefused, ProtocolViolation, SynclineError
from syncline.wire.tensors import TensorTable
from syncline_agent.arm import messages
from syncline_agent.arm.connected import Arm, ask_all, fail
from syncline_agent.arm.island import Island, Members
from syncline_agent.arm.parts import applied
from syncline_agent.arm.tables import Tables
from syncline_agent.arm.telling import Telling
from syncline_agent.engine import Applied, StageRequest

LOOK_S = 1.0


def held_by(members: Members) -> Applied | None:
    """What all ranks say that they hold, proven if all say so; None when one holds nothing or another version."""
    held = [None if rank.state.applied is None else applied(rank.state.applied) for rank in members.ranks]
    first = held[0]
    if first is None or any(h is None or replace(h, proven=True) != replace(first, proven=True) for h in held):
        return None
    return replace(first, proven=all(h is not None and h.proven for h in held))


def refusal_of(members: Members) -> str | None:
    """Why the island cannot be changed in place, whoever asks: one of its ranks cannot, or together they are not the view.
    None where it can, or nobody knows better."""
    for rank in members.ranks:
        if rank.state.applied is None and rank.state.error is not None:
            return rank.state.error if len(members.ranks) == 1 else f"{rank}: {rank.state.error}"
    return members.refusal


def error_of(members: Members) -> str | None:
    """Why the island is out of service, in words."""
    said = next((rank.state.error for rank in members.ranks if rank.state.error is not None), None)
    if said is not None or members.error is not None:
        return said or members.error
    if members.gate.to_fail is not None:
        return members.gate.to_fail
    versions = ["none" if r.state.applied is None else str(r.state.applied.version) for r in members.ranks]
    if held_by(members) is None and versions != ["none"] * len(versions):
        return f"ranks hold different versions ({', '.join(versions)}); stage one from a checkpoint"
    return members.gate.state.failed


def checked(members: Members) -> Applied | None:
    """What the island holds, if its digests say so; None where only a sweep can tell. DigestMismatch when
    its ranks' parts are not the view of the version that they name."""
    shares, held = members.shares, held_by(members)
    if held is None or any(rank.state.error is not None for rank in members.ranks):
        return None
    if shares.is_whole:
        return held if held.proven else None
    digests = [rank.digests for rank in members.ranks]
    if any(d is None or d[0] != held.version for d in digests):
        return None
    found = shares.total([d[1] for d in digests if d is not None]).hex
    if found != held.digest:
        raise DigestMismatch(
            f"what the ranks hold sums to digest {found}, version {held.version} has {held.digest}; stage it from a"
            " checkpoint"
        )
    return held


def check_staged(members: Members, request: StageRequest, answers: Sequence[messages.Staged]) -> None:
    """What all ranks staged is the target: DigestMismatch, naming who differs, LayoutRefused for what nobody holds. Ranks
    that hold it whole have seen to it themselves."""
    for rank, answer in zip(members.ranks, answers, strict=True):
        if answer.target != request.target:
            raise ProtocolViolation(f"{rank} staged version {answer.target}, not {request.target}")
    changed = [answer.changed for answer in answers]
    if members.shares.is_whole:
        if len(set(changed)) != 1 and request.checkpoint is None:
            raise EngineUnavailable(f"ranks staged different changes: {changed}; stage it again")
        return
    found = members.shares.total([answer.digests for answer in answers]).hex
    if found != request.target_digest:
        unlike = members.shares.unlike(TensorTable.parse(request.table.read_bytes(), what=str(request.table)))
        if unlike is not None:
            members.refusal = f"{unlike}; nothing was written, and this engine cannot be changed in place"
            members.gate.to_open = members.gate.state.failed is not None
            raise LayoutRefused(members.refusal)
        raise DigestMismatch(
            f"what the ranks staged leads to digest {found}, version {request.target} has {request.target_digest};"
            " nothing was written"
        )
    for rank, answer in zip(members.ranks, answers, strict=True):
        rank.staged = None if answer.digests is None else (request.target, answer.digests)


def prove(members: Members, held: Applied, timeout_s: float) -> Applied:
    """Say to all that the island holds this. EngineUnavailable when a rank does not agree: the gate, which lets requests
    in, hears it last."""
    if members.gate.to_fail is not None:
        fail(members.gate, members.gate.to_fail, timeout_s)
    others = [rank for rank in members.ranks if rank is not members.gate]
    for arms in (others, [members.gate]):
        ask_all(
            arms,
            lambda i: messages.Prove(id=i, version=held.version, digest=held.digest),
            messages.Done,
            timeout_s,
        )
    members.gate.withholds = False
    return replace(held, proven=True)


def take_out(members: Members, timeout_s: float) -> None:
    """Have the gate serve nothing while what the ranks hold is no version or in doubt. A gate that is the only rank sees
    to that by itself."""
    gate, reason = members.gate, members.gate.to_fail
    if reason is None and refusal_of(members) is not None:
        let_open(gate, timeout_s)
        return
    if reason is None and gate.state.failed is None and list(members.ranks) != [gate]:
        reason = error_of(members)
    if reason is not None:
        fail(gate, reason, timeout_s)


def let_open(gate: Arm, timeout_s: float) -> None:
    """Have a gate that waits for a proof serve as without an agent: none will come."""
    gate.to_open = gate.state.failed is not None
    if not gate.to_open:
        return
    try:
        gate.ask(lambda i: messages.Open(id=i), messages.Done, timeout_s)
    except LayoutRefused:
        gate.to_open = False  # it knows better: it stays out of service
        raise
    gate.to_open = False


class Prover:
    """Looks at the island after each change."""

    def __init__(
        self,
        island: Island,
        calling: threading.Lock,
        tables: Tables,
        telling: Telling,
        *,
        timeout_s: float,
        log: FilteringBoundLogger,
    ) -> None:
        """`calling` is held by whoever calls the island; `tables` tells which tensors a version has, where it can;
        `telling` hears what is found to be served."""
        self._island = island
        self._calling = calling
        self._tables = tables
        self._telling = telling
        self._timeout_s = timeout_s
        self._log = log

    def run(self, stopping: threading.Event) -> None:
        """Until told to stop, which a change of the island should follow."""
        seen = 0
        while not stopping.is_set():
            now = self._island.wait_change(seen, LOOK_S)
            if now != seen or self._untold:
                seen = now
                self.look()

    @property
    def _untold(self) -> bool:
        try:
            gate = self._island.whole().gate
            return gate.to_fail is not None or gate.to_open
        except EngineUnavailable:
            return False

    def look(self) -> None:
        """Prove the island if it needs it and can be; either way it may be called then."""
        with self._calling:
            try:
                members = self._island.whole()
            except EngineUnavailable:
                return
            if members.gate.to_fail is None:
                self._look(members)
            try:
                take_out(members, self._timeout_s)
            except SynclineError as error:
                self._log.warning("gate did not follow yet", pod=members.gate.hello.pod, reason=str(error))
            held = held_by(members)
            if held is not None and held.proven:
                self._telling.found(members.gate, held)
            self._island.settle(members)

    def _look(self, members: Members) -> None:
        if refusal_of(members) is not None:
            return
        needed = members.gate.withholds or members.gate.state.failed is not None
        said = held_by(members)
        if members.checked and members.error is None and not needed and said is not None and said.proven:
            return  # a commit, whose sum was checked before it
        try:
            members.error = None
            held = checked(members)
            members.checked = True
            if held is not None and (needed or not held.proven):
                self._telling.found(members.gate, held)
                prove(members, held, self._timeout_s)
                self._log.info("island proven", pod=members.gate.hello.pod, version=held.version)
        except DigestMismatch as error:
            said = held_by(members)
            table = None if said is None else self._tables(said)
            unlike = None if table is None else members.shares.unlike(table)
            members.error = str(error)
            members.refusal = None if unlike is None else f"{unlike}; this engine cannot be changed in place"
            why = members.refusal or members.error
            self._log.error("island not proven", pod=members.gate.hello.pod, reason=why)
        except SynclineError as error:
            self._log.warning("island not proven yet", pod=members.gate.hello.pod, reason=str(error))
