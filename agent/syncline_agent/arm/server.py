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
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

from structlog.typing import FilteringBoundLogger

from syncline import faults
from syncline.errors import EngineUnavailable, EngineUncertain, ProtocolViolation, SynclineError
from syncline.logs import logger
from syncline.versions import Policy
from syncline_agent.arm import messages
from syncline_agent.arm.channel import Channel
from syncline_agent.arm.client import HANDSHAKE_TIMEOUT_S, TOKEN_FILE
from syncline_agent.arm.island import Island, Rank
from syncline_agent.arm.messages import Answer, Call
from syncline_agent.arm.parts import applied, stage_message
from syncline_agent.engine import Applied, CommitResult, EngineDescription, StageRequest, StageResult

SOCKET_MODE = 0o660
TOKEN_MODE = 0o640
ACCEPT_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class ArmTimeouts:
    """How long each call may take before its rank counts as gone."""

    stage_s: float = 600.0
    ready_s: float = 30.0
    drain_s: float = 600.0
    """`ready` under Policy.DRAIN: requests in flight end first."""
    scatter_s: float = 60.0
    sweep_s: float = 600.0
    other_s: float = 10.0


DEFAULT_TIMEOUTS = ArmTimeouts()
_A = TypeVar("_A", bound=Answer)


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
        log: FilteringBoundLogger | None = None,
    ) -> None:
        """An arm of another `pool` is refused (None: any). What an arm must present is `token`, or, where that is empty,
        what stands in `token_file`: by default `arm.token` beside the socket, made with a random token if it is not
        there. `allowed_uids` defaults to this process's own user and root."""
        self._path = socket_path
        self._pool = pool
        self._token = token
        self._token_file = token_file or socket_path.parent / TOKEN_FILE
        self._uids = frozenset(allowed_uids if allowed_uids is not None else (os.geteuid(), 0))
        self._timeouts = timeouts
        self._log = log or logger("arm")
        self._island = Island()
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
        for rank in self._island.present():
            rank.close("the agent stops")
        for thread in self._threads:
            thread.join(HANDSHAKE_TIMEOUT_S + 1)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait until every rank of an engine is connected; whether it is so."""
        return self._island.wait_whole(timeout_s)

    # --- the contract of Engine ------------------------------------------------------------------------------------

    def describe(self) -> EngineDescription:
        ranks = self._island.whole()
        hello, states = ranks[0].hello, [rank.state for rank in ranks]
        held = [None if s.applied is None else applied(s.applied) for s in states]
        error = next((s.error for s in states if s.error is not None), None)
        first = held[0]
        if first is not None and any(h is None or replace(h, proven=True) != replace(first, proven=True) for h in held):
            versions = ", ".join("none" if h is None else str(h.version) for h in held)
            error = error or f"ranks hold different versions ({versions}); stage one from a checkpoint"
        if first is not None:
            first = replace(first, proven=error is None and all(h is not None and h.proven for h in held))
        return EngineDescription(hello.engine, hello.pool, hello.pod, hello.ranks, first, error)

    def stage(self, request: StageRequest) -> StageResult:
        answers = self._all(
            lambda i: stage_message(i, request, self._path.parent), messages.Staged, self._timeouts.stage_s
        )
        if len({(a.target, a.changed) for a in answers}) != 1 and request.checkpoint is None:
            raise EngineUnavailable(f"ranks staged different changes: {[a.changed for a in answers]}; stage it again")
        return StageResult(
            request.target,
            changed=max(a.changed for a in answers),
            staged_bytes=sum(a.staged_bytes for a in answers),
            seconds=max(a.seconds for a in answers),
        )

    def commit(self, target: int, policy: Policy) -> CommitResult:
        return self._switch(target, policy, undo=False)

    def undo(self, version: int) -> CommitResult:
        return self._switch(version, Policy.KEEP, undo=True)

    def discard(self) -> None:
        self._all(lambda i: messages.Discard(id=i), messages.Done, self._timeouts.other_s)

    def sweep(self) -> Applied:
        answers = self._all(lambda i: messages.Sweep(id=i), messages.Swept, self._timeouts.sweep_s)
        held = [applied(a.applied) for a in answers]
        if len(set(held)) != 1:
            raise EngineUncertain(f"ranks hold different versions: {[h.version for h in held]}; stage one whole")
        return held[0]

    def _switch(self, target: int, policy: Policy, *, undo: bool) -> CommitResult:
        patience_s = self._timeouts.drain_s if policy is Policy.DRAIN else self._timeouts.ready_s
        try:
            self._all(
                lambda i: messages.Ready(id=i, target=target, policy=policy, undo=undo), messages.Done, patience_s
            )
        except SynclineError:
            self._release()
            raise
        faults.reach("apply.ready")
        try:
            answers = self._all(
                lambda i: messages.Scatter(id=i, target=target), messages.Scattered, self._timeouts.scatter_s
            )
        except SynclineError as error:
            # A rank that never got the message wrote nothing, but another one may have: the island is uncertain.
            raise EngineUncertain(f"writing version {target}: {error}; undo, or stage a checkpoint") from error
        if len({a.digest for a in answers}) != 1:
            raise EngineUncertain(f"ranks hold different digests after version {target}; stage a checkpoint")
        return CommitResult(target, answers[0].digest, max(a.pause_seconds for a in answers), spans=answers[0].spans)

    def _release(self) -> None:
        for rank in self._island.present():
            try:
                rank.wait(rank.begin(lambda i: messages.Release(id=i)), self._timeouts.other_s)
            except SynclineError as error:
                self._log.warning("release failed", rank=rank.hello.rank, reason=str(error))

    def _all(self, make: Callable[[int], Call], kind: type[_A], timeout_s: float) -> list[_A]:
        """Send a call to every rank, then wait for every answer; raises the first error after all have answered."""
        begun: list[tuple[Rank, Future[Answer]]] = []
        failure: SynclineError | None = None
        for rank in self._island.whole():
            try:
                begun.append((rank, rank.begin(make)))
            except SynclineError as error:
                failure = failure or error
        answers: list[_A] = []
        for rank, future in begun:
            try:
                answer = rank.wait(future, timeout_s)
                if not isinstance(answer, kind):
                    rank.close(f"answered {answer.type}")
                    raise ProtocolViolation(f"rank {rank.hello.rank} answered {answer.type}, not {kind.__name__}")
                answers.append(answer)
            except SynclineError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return answers

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
            self._spawn(lambda c=connected: self._serve(Channel(c)), "arm-rank")

    def _serve(self, channel: Channel) -> None:
        try:
            rank = self._greet(channel)
        except (SynclineError, OSError) as error:
            if not self._stopping.is_set() and self._island.refuse(str(error)):
                self._log.warning("arm turned away", reason=str(error))
            try:
                channel.send(messages.Refused(message=str(error)))
            except SynclineError:
                pass  # it is gone already
            channel.close()
            return
        self._log.info("arm joined", engine=rank.hello.engine, pod=rank.hello.pod, rank=rank.hello.rank)
        try:
            rank.listen()
        finally:
            self._island.leave(rank)
            self._log.info("arm left", engine=rank.hello.engine, pod=rank.hello.pod, rank=rank.hello.rank)

    def _greet(self, channel: Channel) -> Rank:
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
                f"this agent serves pool {self._pool}, {hello.pod} is of pool {hello.pool}; start one of them with the other's --pool"
            )
        rank = Rank(channel, hello)
        self._island.join(rank, lambda: channel.send(messages.Welcome(protocol=messages.PROTOCOL)))
        return rank

    def _spawn(self, work: Callable[[], None], name: str) -> None:
        self._threads = [t for t in self._threads if t.is_alive()]
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def _token(file: Path) -> str:
    try:
        return file.read_text("ascii").strip()
    except UnicodeDecodeError as error:
        raise ProtocolViolation(f"{file} holds no token ({error.reason}); remove it, and one is made") from error
    except FileNotFoundError:
        pass  # the first agent of this node directory
    token = secrets.token_hex(32)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, TOKEN_MODE)
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(token + "\n")
    return token
