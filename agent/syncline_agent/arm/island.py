"""Which arms of which pod are there, and whether together they are an engine: every rank once, and one gate.

It decides nothing about versions and makes no call. Arms become an engine to call in two steps: they are all there, and
somebody has settled whether what they hold is proven; between the two nobody else is let at them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from syncline.clock import Clock, SystemClock
from syncline.errors import EngineUnavailable, ProtocolViolation
from syncline_agent.arm.connected import Arm
from syncline_agent.arm.proof import Shares

LEAVING_S = 1.0
"""How long a gate or another start of the engine waits for the one before it, whose connection may have ended a moment ago."""
SECOND_S = 6.0
"""For how long a second engine that was turned away is told of: an arm comes again after 2 s at the latest."""


class Members:
    """The arms of an engine that is there whole."""

    def __init__(self, ranks: Sequence[Arm], gate: Arm) -> None:
        """LayoutRefused when what the ranks hold is no view."""
        self.ranks = ranks
        """In order."""
        self.gate = gate
        self.shares = Shares([rank.bands for rank in ranks])
        self.error: str | None = None
        """What is wrong with what they hold together, in words."""
        self.refusal: str | None = None
        """Why they cannot be changed in place, in words. It stays so until another arm comes."""
        self.checked = False
        """Whether that was looked at since they came together."""

    @property
    def arms(self) -> list[Arm]:
        """Every arm once."""
        return [*self.ranks, *([] if self.gate in self.ranks else [self.gate])]


class Island:
    """The arms of one pod's engine."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._arms: dict[int | None, Arm] = {}
        """By rank; a gate that is no rank under None."""
        self._members: Members | None = None
        """All of them, since the last came."""
        self._settled: Members | None = None
        self._changes = 0
        self._refusal = ""
        """Why the last arm was turned away; empty since one joined."""
        self._second: tuple[str, float] | None = None
        """Why an arm of another engine of the same pod was turned away last, and until when that is told."""

    @property
    def second_engine(self) -> str | None:
        """That this pod has two engines, in words, while the one that came later keeps coming."""
        with self._changed:
            second = self._second
        return None if second is None or second[1] < self._clock.monotonic() else second[0]

    def refuse(self, reason: str) -> bool:
        """An arm was turned away; whether that is news: it comes again every second or two."""
        with self._changed:
            news, self._refusal = reason != self._refusal, reason
        return news

    def join(self, arm: Arm, welcome: Callable[[], None]) -> None:
        """Take an arm in after `welcome` was said; the same rank's earlier connection is closed. Before any welcome:
        ProtocolViolation for an arm of another pod or of another start of its engine while one is served, for a second
        gate and for numbers that cannot be, LayoutRefused when what it holds does not go with what the others hold."""
        hello = arm.hello
        _check_possible(arm)
        with self._changed:
            self._check_pod(arm)
            self._changed.wait_for(lambda: not self._in_the_way(arm), LEAVING_S)
            self._check_pod(arm)
            self._check_start(arm)
            members = _assembled([other for other in self._there if other.hello.rank != hello.rank] + [arm])
            welcome()  # before the arm can be found: no call may overtake it
            earlier = self._arms.get(hello.rank)
            self._arms[hello.rank] = arm
            self._members, self._refusal = members, ""
            self._note()
        if earlier is not None:
            earlier.close("the same rank connected again")

    def leave(self, arm: Arm) -> None:
        with self._changed:
            if self._arms.get(arm.hello.rank) is arm:
                del self._arms[arm.hello.rank]
            self._note()

    def note(self) -> None:
        """An arm says that it holds something else than before."""
        with self._changed:
            self._note()

    def wait_change(self, seen: int, timeout_s: float) -> int:
        """The number of changes so far, as soon as it is another than `seen`, or after the time."""
        with self._changed:
            self._changed.wait_for(lambda: self._changes != seen, timeout_s)
            return self._changes

    def whole(self) -> Members:
        """All arms of the engine, settled or not; EngineUnavailable naming those that are missing."""
        with self._changed:
            return self._whole()

    def settle(self, members: Members) -> None:
        """These arms, if they are still those that are there, may be called by everybody."""
        with self._changed:
            self._settled = members
            self._changed.notify_all()

    def settled(self) -> Members:
        """The engine to call; EngineUnavailable while an arm is missing, or nobody has looked at what they hold."""
        with self._changed:
            members = self._whole()
            if members is not self._settled:
                raise EngineUnavailable(f"pod {members.gate.hello.pod} has just come; what it holds is being looked at")
            return members

    def wait_settled(self, timeout_s: float) -> bool:
        """Wait until there is an engine to call; whether it is so."""
        with self._changed:
            return self._changed.wait_for(self._is_settled, timeout_s)

    def present(self) -> list[Arm]:
        with self._changed:
            return self._there

    @property
    def _there(self) -> list[Arm]:
        return [arm for arm in self._arms.values() if not arm.gone]

    def _note(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    def _check_pod(self, arm: Arm) -> None:
        hello = arm.hello
        for other in self._there:
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

    def _check_start(self, arm: Arm) -> None:
        if self._others_start(arm) is not None:
            reason = _two_engines(next((a for a in self._there if a.hello.gate), self._there[0]))
            self._second = reason, self._clock.monotonic() + SECOND_S
            raise ProtocolViolation(reason)
        gate = self._other_gate(arm)
        if gate is not None:
            raise ProtocolViolation(f"{gate} is the engine's gate; {arm} would be a second one")

    def _in_the_way(self, arm: Arm) -> bool:
        return self._others_start(arm) is not None or self._other_gate(arm) is not None

    def _others_start(self, arm: Arm) -> Arm | None:
        """An arm of another start of the engine than this one's: what it says, or the same rank of another process."""
        hello = arm.hello
        return next(
            (
                other
                for other in self._there
                if other.hello.instance != hello.instance
                or (
                    other.hello.rank == hello.rank
                    and 0 not in (other.process, arm.process)
                    and other.process != arm.process
                )
            ),
            None,
        )

    def _other_gate(self, arm: Arm) -> Arm | None:
        """A gate beside this one. A rank that connects again is its own successor; who a gate without a rank is, cannot be
        told."""
        rank = arm.hello.rank
        if not arm.hello.gate:
            return None
        return next((a for a in self._there if a.hello.gate and (rank is None or a.hello.rank != rank)), None)

    def _whole(self) -> Members:
        there = self._there
        members = self._members
        if members is not None and all(arm in there for arm in members.arms):
            return members
        turned_away = f"; the last arm was turned away: {self._refusal}" if self._refusal else ""
        if not there:
            raise EngineUnavailable(f"no engine is connected; start one with this node's socket{turned_away}")
        hello = there[0].hello
        missing = sorted(set(range(hello.ranks)) - {arm.hello.rank for arm in there})
        if missing:
            raise EngineUnavailable(
                f"ranks {missing} of {hello.ranks} of pod {hello.pod} are not connected{turned_away}"
            )
        raise EngineUnavailable(f"the gate of pod {hello.pod} is not connected{turned_away}")

    def _is_settled(self) -> bool:
        try:
            return self._whole() is self._settled
        except EngineUnavailable:
            return False


def _two_engines(older: Arm) -> str:
    process = (
        f"process {older.process} and its children" if older.process else "it runs where this agent sees no processes"
    )
    survivor = ": vLLM's core outlives kill -9 of its server" if older.hello.engine == "vllm" else ""
    return f"pod {older.hello.pod} has two engines on this socket; end the older one ({process}{survivor})"


def _check_possible(arm: Arm) -> None:
    hello = arm.hello
    if hello.rank is None and (not hello.gate or hello.holds is not None):
        raise ProtocolViolation(f"an arm of {hello.pod} without a rank must be a gate and hold nothing")
    if hello.rank is not None and hello.rank >= hello.ranks:
        raise ProtocolViolation(f"rank {hello.rank} of {hello.ranks} cannot be")


def _assembled(arms: Iterable[Arm]) -> Members | None:
    """None while one is missing. Its callers have seen to it that there is one gate."""
    ranks: dict[int, Arm] = {}
    gate: Arm | None = None
    for arm in arms:
        if arm.hello.rank is not None:
            ranks[arm.hello.rank] = arm
        gate = arm if arm.hello.gate else gate
    if gate is None or len(ranks) < gate.hello.ranks:
        return None
    return Members([ranks[n] for n in range(gate.hello.ranks)], gate)
