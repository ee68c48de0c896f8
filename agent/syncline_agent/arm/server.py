"""The agent's end of the arm's socket: listens, checks who connects, and stands as one `Engine` for all its ranks.

It owns the socket file and its token. It never applies anything by itself, and nothing here waits without a deadline.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from structlog.typing import FilteringBoundLogger

from syncline.errors import DigestMismatch, EngineUnavailable, EngineUncertain, ProtocolViolation, SynclineError
from syncline.logs import logger
from syncline.versions import Policy
from syncline_agent.arm import messages
from syncline_agent.arm.channel import Channel
from syncline_agent.arm.client import HANDSHAKE_TIMEOUT_S, TOKEN_FILE
from syncline_agent.arm.committing import DEFAULT_TIMEOUTS, ArmTimeouts, Commit
from syncline_agent.arm.connected import Arm, ask_all
from syncline_agent.arm.island import Island, Members
from syncline_agent.arm.parts import applied, stage_message
from syncline_agent.arm.proving import Prover, check_staged, checked, error_of, held_by, prove, refusal_of
from syncline_agent.arm.tables import Tables, nowhere
from syncline_agent.arm.telling import Telling
from syncline_agent.engine import Applied, CommitResult, EngineDescription, StageRequest, StageResult, Witness, nobody

SOCKET_MODE = 0o660
TOKEN_MODE = 0o640
ACCEPT_AGAIN_S = 0.2
GREETED_AT_ONCE = 64
"""Connections of which the hello is awaited: a hello may be large, and each has a thread. Those that joined are bounded by
the engine's ranks."""


class ArmServer:
    """An `Engine` made of the arms that connect to `socket_path`."""

    def __init__(
        self,
        socket_path: Path,
        *,
        pool: str | None = None,
        token: str = "",
        token_file: Path | None = None,
        allowed_uids: Collection[int] | None = None,
        timeouts: ArmTimeouts = DEFAULT_TIMEOUTS,
        tables: Tables = nowhere,
        witness: Witness = nobody,
        log: FilteringBoundLogger | None = None,
    ) -> None:
        """An arm of another `pool` is refused (None: any). What an arm must present is `token`, or, where that is empty,
        what stands in `token_file`: by default `arm.token` beside the socket, made with a random token if it is not
        there. `allowed_uids` defaults to this process's own user and root. `tables` tells which
        tensors a version has, where it can: who cannot hold them is named when it comes, and not when something is staged.
        `witness` is told of every commit, and of an engine that goes and comes."""
        self._path = socket_path
        self._pool = pool
        self._token = token
        self._token_file = token_file or socket_path.parent / TOKEN_FILE
        self._uids = frozenset(allowed_uids if allowed_uids is not None else (os.geteuid(), 0))
        self._timeouts = timeouts
        self._telling = Telling(witness)
        self._log = log or logger("arm")
        self._island = Island()
        self._calling = threading.Lock()
        """Held by whoever calls the ranks, for as long as what they hold must not change under somebody else's call."""
        self._prover = Prover(
            self._island, self._calling, tables, self._telling, timeout_s=timeouts.ready_s, log=self._log
        )
        self._places = threading.BoundedSemaphore(GREETED_AT_ONCE)
        """For those who have not said hello yet."""
        self._listening: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    def start(self) -> Self:
        """Listen. What another agent left at the path is removed: one agent owns a node directory."""
        self._token = self._token or _token(self._token_file)
        self._path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(self._path))
            self._path.chmod(SOCKET_MODE)
            listening.listen(64)
        except OSError as error:
            listening.close()
            raise EngineUnavailable(
                f"{self._path}: {error.strerror or error}; a Unix socket needs a short, writable path"
            ) from error
        self._listening = listening
        self._spawn(self._accept, "arm-accept")
        self._spawn(lambda: self._prover.run(self._stopping), "arm-prover")
        return self

    def stop(self) -> None:
        """Close the socket and every connection."""
        self._stopping.set()
        if self._listening is not None:
            try:
                self._listening.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # some kernels refuse it for a listening socket; closing follows
            self._listening.close()
            self._path.unlink(missing_ok=True)
        for arm in self._island.present():
            arm.close("the agent stops")
        self._island.note()
        for thread in self._threads:
            thread.join(HANDSHAKE_TIMEOUT_S + 1)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait until every rank and the gate of an engine are connected and what they hold was looked at; whether it is
        so."""
        return self._island.wait_settled(timeout_s)

    # --- the contract of Engine ------------------------------------------------------------------------------------

    def describe(self) -> EngineDescription:
        members = self._island.settled()
        refusal = refusal_of(members)
        if refusal is not None:
            opening = members.gate.to_open
            why = f"{refusal}; its gate does not serve on yet" if opening else refusal
            return self._described(members, None, why, opening=opening)
        error = error_of(members)
        first = members.ranks[0].state.applied
        held = held_by(members) or (None if first is None else replace(applied(first), proven=False))
        if held is not None and (error is not None or members.gate.withholds):
            held = replace(held, proven=False)
        return self._described(members, held, error)

    def stage(self, request: StageRequest) -> StageResult:
        with self._calling:
            members = self._island.settled()
            answers = ask_all(
                members.ranks,
                lambda i: stage_message(i, request, self._path.parent),
                messages.Staged,
                self._timeouts.stage_s,
            )
            try:
                check_staged(members, request, answers)
            except SynclineError:
                self._discard(members)  # each rank by itself thinks that it may be committed
                self._island.note()  # so that a gate that waits for a proof that cannot come is told
                raise
        return StageResult(
            request.target,
            changed=max(a.changed for a in answers) if members.shares.is_whole else sum(a.changed for a in answers),
            staged_bytes=sum(a.staged_bytes for a in answers),
            seconds=max(a.seconds for a in answers),
        )

    def commit(self, target: int, policy: Policy) -> CommitResult:
        return self._switch(target, policy, undo=False)

    def undo(self, version: int, policy: Policy = Policy.KEEP) -> CommitResult:
        return self._switch(version, policy, undo=True)

    def discard(self) -> None:
        with self._calling:
            self._discard(self._island.settled())

    def sweep(self) -> Applied:
        members = self._island.settled()
        answers = ask_all(members.ranks, lambda i: messages.Sweep(id=i), messages.Swept, self._timeouts.sweep_s)
        held = {replace(applied(a.applied), proven=True) for a in answers}
        if len(held) != 1:
            raise EngineUncertain(f"ranks hold different versions: {sorted(h.version for h in held)}; stage one whole")
        with self._calling:
            for rank, answer in zip(members.ranks, answers, strict=True):
                if answer.digests is not None:
                    rank.digests = answer.applied.version, answer.digests
            try:
                members.error = None
                proven = checked(members)  # None: something was changed meanwhile, and is to be swept again
            except DigestMismatch as error:
                members.error = str(error)
                self._island.note()  # so that the gate is told
                raise
            if proven is not None:
                self._telling.found(members.gate, proven)
                return prove(members, proven, self._timeouts.ready_s)
        return replace(held.pop(), proven=False)

    def _described(
        self, members: Members, held: Applied | None, error: str | None, *, opening: bool = False
    ) -> EngineDescription:
        who, second = members.gate.hello, self._island.second_engine
        return EngineDescription(who.engine, who.pool, who.pod, who.ranks, held, error, opening=opening, second=second)

    def _switch(self, target: int, policy: Policy, *, undo: bool) -> CommitResult:
        with self._calling:
            members = self._island.settled()
            witness = partial(self._telling.commit, members.gate)
            commit = Commit(members, target, undo=undo, timeouts=self._timeouts, witness=witness, log=self._log)
            return commit.run(policy)

    def _discard(self, members: Members) -> None:
        ask_all(members.ranks, lambda i: messages.Discard(id=i), messages.Done, self._timeouts.other_s)

    # --- connections -----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listening is not None
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError as error:
                if self._stopping.wait(ACCEPT_AGAIN_S):
                    return
                self._log.warning("could not accept an arm", reason=str(error))  # no descriptor free, or it hung up
                continue
            channel = Channel(connected)
            if self._places.acquire(blocking=False):
                self._spawn(lambda c=channel: self._serve(c), "arm-rank")
            else:
                self._turn_away(channel, f"{GREETED_AT_ONCE} connections have not said hello yet; come again")

    def _turn_away(self, channel: Channel, reason: str) -> None:
        if not self._stopping.is_set() and self._island.refuse(reason):
            self._log.warning("arm turned away", reason=reason)
        try:
            channel.send(messages.Refused(message=reason))
        except SynclineError:
            pass  # it is gone already
        channel.close()

    def _serve(self, channel: Channel) -> None:
        try:
            arm = self._greet(channel)
        except (SynclineError, OSError) as error:
            self._turn_away(channel, str(error))
            return
        finally:
            self._places.release()
        who = {"engine": arm.hello.engine, "pod": arm.hello.pod, "rank": arm.hello.rank, "gate": arm.hello.gate}
        self._log.info("arm joined", **who)
        try:
            arm.listen(self._island.note)
        finally:
            self._island.leave(arm)
            self._log.info("arm left", **who)

    def _greet(self, channel: Channel) -> Arm:
        uid = channel.peer_uid()
        if uid not in self._uids:
            raise ProtocolViolation(f"user {uid} may not connect; run the engine as one of {sorted(self._uids)}")
        hello = channel.receive(timeout_s=HANDSHAKE_TIMEOUT_S)
        if not isinstance(hello, messages.Hello):
            raise ProtocolViolation(f"the first message was a {hello.type}, not a hello")
        if hello.protocol != messages.PROTOCOL:
            raise ProtocolViolation(
                f"the arm speaks protocol {hello.protocol}, this agent {messages.PROTOCOL}; run one release of both"
            )
        if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            raise ProtocolViolation(f"wrong token; give the engine the token file {self._token_file.name} of this node")
        if self._pool is not None and hello.pool != self._pool:
            raise ProtocolViolation(
                f"this agent serves pool {self._pool}, {hello.pod} is of pool {hello.pool}; give the agent --pool {hello.pool}, or the "
                f"engine pool {self._pool} (SYNCLINE_POOL; --pool of the reference engine)"
            )
        arm = Arm(channel, hello, process=channel.peer_process(), closing=self._telling.left)
        self._island.join(arm, lambda: channel.send(messages.Welcome(protocol=messages.PROTOCOL)))
        return arm

    def _spawn(self, work: Callable[[], None], name: str) -> None:
        self._threads = [t for t in self._threads if t.is_alive()]
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def _token(file: Path) -> str:
    try:
        told = file.read_text("ascii").strip()
        if told:
            return told
        file.unlink()  # an agent died while it made it: nobody may be let in by knowing nothing
    except UnicodeDecodeError as error:
        raise ProtocolViolation(f"{file} holds no token ({error.reason}); remove it, and one is made") from error
    except FileNotFoundError:
        pass  # the first agent of this node directory
    token = secrets.token_hex(32)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, TOKEN_MODE)
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(token + "\n")
    return token
