"""The agent's end of one connected rank, and the set of ranks that commit as one.

`Rank` turns calls into answers with a deadline each; `Island` knows which ranks of which pod are there. Neither decides
anything about versions.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from syncline.errors import EngineUnavailable, ProtocolViolation
from syncline_agent.arm import messages
from syncline_agent.arm.channel import Channel
from syncline_agent.arm.messages import Answer, Call, Hello, State


class Rank:
    """One arm that said hello."""

    def __init__(self, channel: Channel, hello: Hello) -> None:
        self.hello = hello
        self.state: State = hello.state
        self._channel = channel
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Answer]] = {}
        self._gone: str | None = None

    @property
    def gone(self) -> bool:
        """Disconnected, though its thread may not have left the island yet."""
        return self._gone is not None

    def begin(self, make: Callable[[int], Call]) -> Future[Answer]:
        """Send a call made with a fresh id; its answer comes through the future."""
        answer: Future[Answer] = Future()
        with self._lock:
            call_id = next(self._ids)
            if self._gone is not None:
                raise EngineUnavailable(f"rank {self.hello.rank} of {self.hello.pod} is gone: {self._gone}")
            self._waiting[call_id] = answer
        self._channel.send(make(call_id))
        return answer

    def wait(self, answer: Future[Answer], timeout_s: float) -> Answer:
        """The answer; raises the error that it carries. A rank that does not answer in time is disconnected, because
        what it will do next is unknown: EngineUnavailable."""
        try:
            result = answer.result(timeout_s)
        except FutureTimeout:
            self.close(f"no answer within {timeout_s:g} s")
            raise EngineUnavailable(
                f"rank {self.hello.rank} of {self.hello.pod} gave no answer within {timeout_s:g} s; it was disconnected"
            ) from None
        if isinstance(result, messages.Failed):
            raise messages.raised(result)
        return result

    def listen(self) -> None:
        """Take answers and states until the connection ends."""
        try:
            while True:
                message = self._channel.receive()
                if isinstance(message, State):
                    self.state = message
                elif isinstance(message, Answer):
                    with self._lock:
                        answer = self._waiting.pop(message.id, None)
                    if answer is None:
                        raise ProtocolViolation(
                            f"rank {self.hello.rank} answered call {message.id}, which was not made"
                        )
                    answer.set_result(message)
                else:
                    raise ProtocolViolation(f"rank {self.hello.rank} sent a {message.type} after its hello")
        except Exception as error:  # whatever it is, nobody listens any more: no call may wait for an answer
            self.close(str(error))

    def close(self, reason: str) -> None:
        """Disconnect; every call that waits fails with EngineUnavailable."""
        with self._lock:
            self._gone = self._gone or reason
            waiting, self._waiting = self._waiting, {}
        self._channel.close()
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(
                    EngineUnavailable(f"rank {self.hello.rank} of {self.hello.pod} went away: {reason}")
                )


class Island:
    """Ranks of one pod's engine."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ranks: dict[int, Rank] = {}
        self._refusal = ""
        """Why the last arm was turned away; empty since one joined."""

    def refuse(self, reason: str) -> bool:
        """An arm was turned away; whether that is news: it comes again every second or two."""
        with self._changed:
            news, self._refusal = reason != self._refusal, reason
        return news

    def join(self, rank: Rank, welcome: Callable[[], None]) -> None:
        """Take a rank in after `welcome` was said; its earlier connection is closed. ProtocolViolation, before any
        welcome, for a rank of another pod while one is served, or for numbers that cannot be."""
        hello = rank.hello
        if not 0 <= hello.rank < hello.ranks:
            raise ProtocolViolation(f"rank {hello.rank} of {hello.ranks} cannot be")
        if hello.holds != "whole":
            raise ProtocolViolation(
                f"rank {hello.rank} holds {hello.holds!r} of the view; this agent serves ranks that hold it whole"
            )
        with self._changed:
            for other in self._there.values():
                theirs = other.hello
                if (theirs.engine, theirs.pool, theirs.pod, theirs.ranks) != (
                    hello.engine,
                    hello.pool,
                    hello.pod,
                    hello.ranks,
                ):
                    raise ProtocolViolation(
                        f"this agent serves {theirs.engine} pod {theirs.pod} of pool {theirs.pool} with {theirs.ranks}"
                        f" ranks; {hello.engine} pod {hello.pod} of pool {hello.pool} with {hello.ranks} needs its own"
                    )
            welcome()  # before the rank can be found: no call may overtake it
            earlier = self._ranks.get(hello.rank)
            self._ranks[hello.rank] = rank
            self._refusal = ""
            self._changed.notify_all()
        if earlier is not None:
            earlier.close("the same rank connected again")

    def leave(self, rank: Rank) -> None:
        with self._changed:
            if self._ranks.get(rank.hello.rank) is rank:
                del self._ranks[rank.hello.rank]
            self._changed.notify_all()

    def wait_whole(self, timeout_s: float) -> bool:
        """Wait until every rank is there; whether it is so."""
        with self._changed:
            return self._changed.wait_for(self._is_whole, timeout_s)

    def whole(self) -> list[Rank]:
        """All ranks in order; EngineUnavailable naming those that are missing."""
        with self._changed:
            there = self._there
            if not there:
                turned_away = f"; the last arm was turned away: {self._refusal}" if self._refusal else ""
                raise EngineUnavailable(f"no engine is connected; start one with this node's socket{turned_away}")
            hello = next(iter(there.values())).hello
            missing = [n for n in range(hello.ranks) if n not in there]
            if missing:
                raise EngineUnavailable(f"ranks {missing} of {hello.ranks} of pod {hello.pod} are not connected")
            return [there[n] for n in range(hello.ranks)]

    def present(self) -> list[Rank]:
        with self._changed:
            return list(self._there.values())

    @property
    def _there(self) -> dict[int, Rank]:
        return {number: rank for number, rank in self._ranks.items() if not rank.gone}

    def _is_whole(self) -> bool:
        there = self._there
        return bool(there) and len(there) == next(iter(there.values())).hello.ranks
