"""The arm's end of the socket: connects to the agent from inside an engine, as a rank, as its gate or as both.

It owns three threads: one connects, listens and connects again; one answers calls, one at a time; one sweeps.
It never decides what to apply, and never lets an error end a thread: what fails is answered, what cannot be answered
ends the connection, and the next one begins with what the arm then holds.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock, SystemClock
from syncline.errors import EngineUnavailable, LayoutRefused, ProtocolViolation
from syncline.logs import logger
from syncline_agent.arm import messages
from syncline_agent.arm.answering import Answerer
from syncline_agent.arm.channel import Channel
from syncline_agent.arm.gate import Gate
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.messages import Call, Hold, Ready, Sweep

TOKEN_FILE = "arm.token"
HANDSHAKE_TIMEOUT_S = 5.0
SETTLE_S = 1.0
SETTLINGS = 60
"""How often that is waited for what was left half-way: as long as an agent waits for the same."""


@dataclass(frozen=True, slots=True)
class ArmIdentity:
    """Who an arm is."""

    engine: str
    pool: str
    pod: str
    rank: int | None = 0
    """None: a gate that holds no weights."""
    ranks: int = 1
    """Of the whole engine."""
    instance: str | None = None
    """Which start of that engine: every process of it says the same, and no other start does. None: it does not say."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between two tries to connect: doubled from the first to the longest, each shortened by up to half."""

    first_s: float = 0.05
    longest_s: float = 2.0

    def seconds(self, tries: int, draw: float) -> float:
        return min(self.longest_s, self.first_s * 2.0 ** min(tries, 32)) * (1.0 - draw / 2)


DEFAULT_BACKOFF = Backoff()


class ArmClient:
    """Connects a rank's `live` weights, its engine's `gate`, or both to the agent that listens at `socket_path`."""

    def __init__(
        self,
        socket_path: Path,
        identity: ArmIdentity,
        live: LiveWeights | None,
        gate: Gate | None,
        *,
        randomness: random.Random,
        refusal: str | None = None,
        token_file: Path | None = None,
        backoff: Backoff = DEFAULT_BACKOFF,
        clock: Clock | None = None,
        log: FilteringBoundLogger | None = None,
    ) -> None:
        """`refusal`: why a rank has no `live` weights that the agent could change; it says so and refuses every call.
        `token_file` defaults to `arm.token` beside the socket; it is read anew for each connection."""
        if (identity.rank is None) != (live is None and refusal is None) or (identity.rank is None and gate is None):
            raise ValueError("a rank has weights, or why it has none; what is no rank is a gate")
        self._path = socket_path
        self._identity = identity
        self._is_gate = gate is not None
        self._random, self._backoff = randomness, backoff
        self._clock = clock or SystemClock()
        self._log = log or logger("arm", rank=identity.rank)
        self._answerer = Answerer(
            live, gate, ranks=identity.ranks, node_dir=socket_path.parent, refusal=refusal, log=self._log
        )
        self._token_file = token_file or socket_path.parent / TOKEN_FILE
        self._stopping = threading.Event()
        self._saying = threading.Lock()
        self._said: messages.State | None = None
        """On this connection."""
        self._channel: Channel | None = None
        self._connection = "connecting"
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="arm-calls")
        self._sweeps = ThreadPoolExecutor(1, thread_name_prefix="arm-sweep")
        self._listener = threading.Thread(target=self._listen, name="arm-listener", daemon=True)

    @property
    def connection(self) -> str:
        """connected, connecting, or refused; the last two with why, as far as it is known."""
        return self._connection

    @property
    def refused(self) -> bool:
        """The agent answered and will not have this arm."""
        return self._connection.startswith("refused")

    def start(self) -> None:
        for pool in (self._calls, self._sweeps):
            pool.submit(lambda: None)  # a pool starts its thread with its first work, when the host may have no memory
        self._listener.start()

    def stop(self) -> None:
        """Disconnect and end the threads; a call that runs is waited for."""
        self._stopping.set()
        channel = self._channel
        if channel is not None:
            channel.close()
        if self._listener.is_alive():
            self._listener.join()
        self._calls.shutdown()
        self._sweeps.shutdown()

    def notify(self) -> None:
        """Tell the agent, if one is connected, what is held now: after a sweep of the engine's own."""
        self._say_state_now()
        if self._answerer.recovers:
            self._queue(self._answerer.recover)

    def _queue(self, work: Callable[[], None]) -> None:
        try:
            self._calls.submit(self._in_turn, work)
        except RuntimeError:
            pass  # stopped meanwhile

    def _in_turn(self, work: Callable[[], None]) -> None:
        """Something that stands in line with the agent's calls."""
        try:
            work()
        except Exception:  # a gate that breaks: said, and the arm goes on
            self._log.exception("the engine's gate failed")
        self._say_state_now()

    def _say_state_now(self) -> None:
        channel = self._channel
        if channel is not None:
            try:
                self._say_state(channel)
            except (EngineUnavailable, ProtocolViolation):
                pass  # the listener sees the same and connects again; a hello carries the state

    def _say_state(self, channel: Channel) -> None:
        with self._saying:  # what is said last is what was seen last
            state = self._answerer.state()
            if state != self._said:
                channel.send(state)
                self._said = state

    def _listen(self) -> None:
        tries = short = 0
        while not self._stopping.is_set():
            try:
                channel = self._connect()
            except (
                Exception
            ) as error:  # a token file of other bytes, too: nothing may end the only thread that connects
                refused = isinstance(error, ProtocolViolation)
                why = (error.strerror if isinstance(error, OSError) else None) or str(error)
                said = f"refused: {why}" if refused else f"connecting: {self._path}: {why}"
                if said != self._connection:
                    if refused:
                        self._log.error("arm refused", reason=why)
                    else:
                        self._log.info("waiting for the agent", socket=str(self._path), reason=why)
                self._connection = said
                if refused:
                    self._queue(lambda why=why: self._answerer.turn_away(why))
                self._stopping.wait(self._backoff.seconds(64 if refused else tries, self._random.random()))
                tries += 1
                continue
            began = self._clock.monotonic()
            self._channel, self._connection = channel, "connected"
            if self._stopping.is_set():
                channel.close()  # `stop` may have looked before there was a channel to close
            self._log.info("arm connected", socket=str(self._path))
            self._answerer.let_in()
            self.notify()  # what changed since the hello was written
            try:
                while True:
                    self._dispatch(channel, channel.receive())
            except Exception as error:
                if not self._stopping.is_set():
                    self._log.warning("arm disconnected", reason=str(error))
            finally:
                self._channel, self._connection = None, "connecting"
                channel.close()
                self._answerer.release()
                settled = self._calls.submit(self._in_turn, self._answerer.settle)
                for _ in range(SETTLINGS):  # so that the next hello says how it ended, and not what was before
                    if wait([settled], SETTLE_S).done or not self._answerer.half_way:
                        break
            # Two that take each other's place, or an agent that hangs up, would otherwise be met without a pause.
            brief = self._clock.monotonic() - began < self._backoff.longest_s
            short = short + 1 if brief else 0
            tries = short
            self._stopping.wait(self._backoff.seconds(tries, self._random.random()))

    def _connect(self) -> Channel:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.settimeout(HANDSHAKE_TIMEOUT_S)
        try:
            connected.connect(str(self._path))
            channel = Channel(connected)
            hello = self._hello()
            answer = channel.greet(hello, timeout_s=HANDSHAKE_TIMEOUT_S)
            if isinstance(answer, messages.Refused):
                raise ProtocolViolation(answer.message)
            if not isinstance(answer, messages.Welcome):
                raise ProtocolViolation(f"the agent answered hello with {answer.type}; is {self._path} its socket?")
            if answer.protocol != messages.PROTOCOL:
                raise ProtocolViolation(
                    f"the agent speaks protocol {answer.protocol}, this side {messages.PROTOCOL}; run agent and engine of"
                    " one release"
                )
        except BaseException:
            connected.close()
            raise
        with self._saying:
            self._said = hello.state
        return channel

    def _hello(self) -> messages.Hello:
        token = self._token_file.read_text("ascii").strip() if self._token_file.exists() else ""
        who = self._identity
        holds, state = self._answerer.claim()
        return messages.Hello(
            protocol=messages.PROTOCOL,
            engine=who.engine,
            pool=who.pool,
            pod=who.pod,
            rank=who.rank,
            ranks=who.ranks,
            gate=self._is_gate,
            token=token,
            instance=who.instance,
            holds=holds,
            state=state,
        )

    def _dispatch(self, channel: Channel, message: messages.Message) -> None:
        if not isinstance(message, Call):
            raise ProtocolViolation(f"the agent sent a {message.type}, which is no call")
        (self._sweeps if isinstance(message, Sweep) else self._calls).submit(self._answer, channel, message)

    def _answer(self, channel: Channel, call: Call) -> None:
        if self._channel is not channel:
            return  # queued behind another when its agent went away: nobody waits for it, and a new one may be here
        try:
            answer = self._answerer.do(call)
        except Exception as error:
            # The agent asks for an undo first and brings a checkpoint if there is none: no fault of anything.
            usual = isinstance(call, Ready) and call.undo and isinstance(error, LayoutRefused)
            say = self._log.info if usual else self._log.warning
            say("arm call failed", call=call.type, error=type(error).__name__, reason=str(error))
            answer = messages.failure(call.id, error)
        if self._channel is not channel:
            # Its agent went away meanwhile. The hello of a later connection may have been written before this call had
            # ended; what it left half-way is settled in turn, a hold at once.
            if isinstance(call, Hold):
                self._answerer.release()
            self.notify()
        try:
            self._say_state(channel)
            self._send(channel, answer)
        except Exception as error:  # an answer that cannot be sent must not be waited for
            self._log.warning("arm answer not sent", call=call.type, reason=str(error))
            channel.close()  # the listener notices

    def _send(self, channel: Channel, answer: messages.Message) -> None:
        try:
            channel.send(answer)
        except ProtocolViolation as error:
            if not isinstance(answer, messages.Held):
                raise
            # Whoever names requests so that no message holds them must not keep an engine from following.
            self._log.warning("requests not told", reason=str(error))
            channel.send(messages.Held(id=answer.id, spans={}, ended=None))
