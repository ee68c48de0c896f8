"""The other ranks of a reference engine as processes that the first one starts, drives and ends.

Each hangs on a pipe: an order goes down, answers and doubts come up, and either side notices when the other is gone. A rank
that ends by itself ends the engine: what remains holds no view, and its next sum would wait for nobody.
"""

from __future__ import annotations

import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from syncline.errors import EngineUnavailable, Rejected, SourceNotReady
from syncline_agent.reference.collective import Collective, Meeting, meet
from syncline_agent.reference.engine import EngineSettings
from syncline_agent.reference.orders import (
    Doubt,
    EndOrder,
    Loading,
    LoadOrder,
    Order,
    ProcessSettings,
    RankSettings,
    ServeOrder,
    StepOrder,
)

GOODBYE_S = 10.0
"""What a rank gets to end in before it is killed."""


class _Process:
    """One other rank."""

    def __init__(self, settings: RankSettings) -> None:
        self.rank = settings.rank
        self.pipe, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "syncline_agent.reference.following", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
            )
        self.pipe.send(settings)
        self.answers: queue.SimpleQueue[Loading] = queue.SimpleQueue()
        self.doubt: str | None = None


class RankProcesses(Collective):
    """All ranks but the first, for the first (`ranks.Others`)."""

    def __init__(
        self,
        ways: int,
        engine: EngineSettings,
        process: ProcessSettings,
        *,
        lost: Callable[[str], None],
        log: FilteringBoundLogger,
    ) -> None:
        """Starts them. `lost` is called, from any thread, when the engine cannot go on: a rank ended by itself, or a step
        failed half-way. Rejected for a device that is not one for each rank."""
        if engine.device not in ("cpu", "cuda"):
            raise Rejected(f"device {engine.device} is not one for each of {ways} ranks; say cpu or cuda")
        super().__init__(ways)
        self._folder = Path(tempfile.mkdtemp(prefix="syncline-ranks-"))
        self._meeting = Meeting(self._folder / "meeting", ways, engine.device)
        self._lost, self._log = lost, log
        self._gone: str | None = None
        self._stopping = False
        self._others = [_Process(RankSettings(rank, self._meeting, engine, process)) for rank in range(1, ways)]
        for other in self._others:
            threading.Thread(target=self._listen, args=(other,), name=f"rank-{other.rank}", daemon=True).start()

    def join(self) -> None:
        meet(self._meeting, 0)  # the file stays: others may still read it, and NCCL will, in its first sum
        self._log.info("ranks met", ranks=self.ways)

    @contextmanager
    def loading(self) -> Generator[None]:
        self._tell(LoadOrder())
        try:
            yield
        finally:
            answers = [(other.rank, other.answers.get()) for other in self._others]
        for rank, answer in answers:
            if answer.error is not None:
                kind = SourceNotReady if answer.waits else EngineUnavailable
                raise kind(f"rank {rank}: {answer.error}")

    def serve(self) -> None:
        self._tell(ServeOrder())

    @property
    def doubt(self) -> str | None:
        found = next(((other.rank, other.doubt) for other in self._others if other.doubt is not None), None)
        return self._gone or (None if found is None else f"rank {found[0]}: {found[1]}")

    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> None:
        if self._gone is not None:
            raise EngineUnavailable(self._gone)
        self._tell(StepOrder(tokens, slots, positions))

    def broke(self, error: Exception) -> None:
        self._lose(f"what {self.ways} ranks do together failed half-way ({error}); start the engine again")

    def stop(self) -> None:
        self._stopping = True
        for other in self._others:
            try:
                other.pipe.send(EndOrder())
            except OSError:
                pass  # it is gone
        for other in self._others:
            try:
                other.process.wait(0.0 if self._gone else GOODBYE_S)
            except subprocess.TimeoutExpired:
                other.process.kill()
                other.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _tell(self, order: Order) -> None:
        for other in self._others:
            try:
                other.pipe.send(order)
            except OSError as error:  # whoever listens to it says that it is gone
                raise EngineUnavailable(f"rank {other.rank} cannot be told what to do: {error}") from error

    def _listen(self, other: _Process) -> None:
        connection: Connection[Order, Loading | Doubt] = other.pipe
        try:
            while True:
                said = connection.recv()
                if isinstance(said, Doubt):
                    other.doubt = said.reason
                else:
                    other.answers.put(said)
        except (EOFError, OSError):
            pass
        status = other.process.wait()
        other.answers.put(Loading(f"it ended with status {status}"))  # whoever waits for one
        self._lose(f"rank {other.rank} ended with status {status}; start the engine again")

    def _lose(self, reason: str) -> None:
        if not self._stopping and self._gone is None:
            self._gone = reason
            self._log.error("engine ends", reason=reason)
            self._lost(reason)
