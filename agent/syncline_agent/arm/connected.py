"""The agent's end of one connected arm: calls become answers with a deadline each, and what it holds is remembered.

It decides nothing about versions, and knows no other arm.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

from syncline.errors import EngineUnavailable, ProtocolViolation, SynclineError
from syncline_agent.arm import messages
from syncline_agent.arm.channel import Channel
from syncline_agent.arm.messages import Answer, Call, Hello, State
from syncline_agent.arm.parts import named_bands

_A = TypeVar("_A", bound=Answer)


class Arm:
    """One arm that said hello: a rank, a gate, or both."""

    def __init__(
        self, channel: Channel, hello: Hello, *, process: int = 0, closing: Callable[[Arm], None] = lambda _: None
    ) -> None:
        """`process`: its id, 0 where nobody knows. `closing` is called when nothing more will be heard of it, before the
        other end can know that it is left alone."""
        self.hello = hello
        self.process = process
        self._closing = closing
        self.bands = named_bands(hello.holds)
        """What it holds; None is the view whole."""
        self.state: State = hello.state
        self.digests: tuple[int, Sequence[str]] | None = None
        """What the bands' digests are and of which version; None while nobody knows."""
        if hello.holds is not None and hello.state.applied is not None:
            self.digests = hello.state.applied.version, [band.digest for band in hello.holds]
        self.staged: tuple[int, Sequence[str]] | None = None
        """The same of what is staged."""
        self.withholds = False
        """This gate keeps inside what it computes, until `prove`."""
        self.to_fail: str | None = None
        """Why this gate is to serve nothing; None when it has said that it does not."""
        self.to_open = False
        """This gate is to serve what was loaded, and has not said that it does."""
        self._channel = channel
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Answer]] = {}
        self._gone: str | None = None

    def __str__(self) -> str:
        who = "the gate" if self.hello.rank is None else f"rank {self.hello.rank}"
        return f"{who} of {self.hello.pod}"

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
                raise EngineUnavailable(f"{self} is gone: {self._gone}")
            self._waiting[call_id] = answer
        self._channel.send(make(call_id))
        return answer

    def wait(self, answer: Future[Answer], kind: type[_A], timeout_s: float) -> _A:
        """The answer; raises the error that it carries. An arm that does not answer in time, or otherwise than by `kind`,
        is disconnected, because what it will do next is unknown: EngineUnavailable, ProtocolViolation."""
        try:
            result = answer.result(timeout_s)
        except FutureTimeout:
            self.close(f"no answer within {timeout_s:g} s")
            raise EngineUnavailable(f"{self} gave no answer within {timeout_s:g} s; it was disconnected") from None
        if isinstance(result, messages.Failed):
            raise messages.raised(result)
        if not isinstance(result, kind):
            self.close(f"answered {result.type}")
            raise ProtocolViolation(f"{self} answered {result.type}, not {kind.__name__}")
        return result

    def ask(self, make: Callable[[int], Call], kind: type[_A], timeout_s: float) -> _A:
        """A call and its answer."""
        return self.wait(self.begin(make), kind, timeout_s)

    def listen(self, changed: Callable[[], None]) -> None:
        """Take answers and states until the connection ends; `changed` is called when a state is another than before."""
        try:
            while True:
                message = self._channel.receive()
                if isinstance(message, State):
                    before, self.state = self.state, message
                    if before != message:
                        changed()
                elif isinstance(message, Answer):
                    with self._lock:
                        answer = self._waiting.pop(message.id, None)
                    if answer is None:
                        raise ProtocolViolation(f"{self} answered call {message.id}, which was not made")
                    answer.set_result(message)
                else:
                    raise ProtocolViolation(f"{self} sent a {message.type} after its hello")
        except Exception as error:  # whatever it is, nobody listens any more: no call may wait for an answer
            self.close(str(error))

    def close(self, reason: str) -> None:
        """Disconnect; every call that waits fails with EngineUnavailable."""
        with self._lock:
            self._gone = self._gone or reason
            waiting, self._waiting = self._waiting, {}
        self._closing(self)
        self._channel.close()
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(EngineUnavailable(f"{self} went away: {reason}"))


def fail(gate: Arm, reason: str, timeout_s: float) -> None:
    """Take a gate out of service; what it could not do is to be asked again."""
    gate.to_fail = reason
    gate.ask(lambda i: messages.Fail(id=i, reason=reason), messages.Done, timeout_s)
    gate.to_fail = None


def ask_all(arms: Sequence[Arm], make: Callable[[int], Call], kind: type[_A], timeout_s: float) -> list[_A]:
    """Send a call to every arm, then wait for every answer; raises the first error after all have answered."""
    begun: list[tuple[Arm, Future[Answer]]] = []
    failure: SynclineError | None = None
    for arm in arms:
        try:
            begun.append((arm, arm.begin(make)))
        except SynclineError as error:
            failure = failure or error
    answers: list[_A] = []
    for arm, future in begun:
        try:
            answers.append(arm.wait(future, kind, timeout_s))
        except SynclineError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return answers
