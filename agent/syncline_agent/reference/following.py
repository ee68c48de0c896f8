"""`python -m syncline_agent.reference.following FD`: another rank than the first of a reference engine. Started by it, and
never by hand.

It does what it is told over the pipe at FD: loads its slices, feeds the rows of each step. Its arm follows the agent on its
own; no step runs while ranks write, because the first rank tells none. It ends when the pipe does.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import assert_never

import torch

from syncline.clock import SystemClock, system_random
from syncline.errors import CheckpointBusy, SourceNotReady
from syncline.logs import logger, set_up_logs
from syncline_agent.arm.client import ArmClient, ArmIdentity
from syncline_agent.arm.periodic import sweep_for_ever
from syncline_agent.arm.turns import settle
from syncline_agent.reference.collective import Collective, meet
from syncline_agent.reference.loading import Loaded, Place, load
from syncline_agent.reference.model import Decoder
from syncline_agent.reference.orders import (
    Doubt,
    EndOrder,
    Loading,
    LoadOrder,
    Order,
    RankSettings,
    ServeOrder,
    StepOrder,
)

LOOK_S = 0.2
"""Between two looks whether the weights are in doubt, while no step comes."""


class FollowingRank:
    """One rank's weights and what it computes with them."""

    def __init__(self, settings: RankSettings, pipe: Connection[Loading | Doubt, Order]) -> None:
        self._rank, self._meeting, self._settings = settings.rank, settings.meeting, settings.engine
        self._pipe = pipe
        self._clock = SystemClock()
        self._log = logger("engine", pool=self._settings.pool, pod=self._settings.pod, rank=self._rank)
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._loaded: Loaded | None = None
        self._decoder: Decoder | None = None
        self._arm: ArmClient | None = None
        self._doubt: str | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        """Until told to end."""
        threading.Thread(target=self._listen, name="orders", daemon=True).start()
        meet(self._meeting, self._rank)
        while True:
            try:
                order = self._orders.get(timeout=LOOK_S)
            except queue.Empty:
                self._say_doubt()
                continue
            match order:
                case LoadOrder():
                    self._load()
                case ServeOrder():
                    self._serve()
                case StepOrder():
                    assert self._decoder is not None  # nothing is served before it was loaded
                    self._decoder.forward(order.tokens, order.slots, order.positions)
                    self._say_doubt()
                case EndOrder():
                    break
                case _:
                    assert_never(order)
        self._stopping.set()
        if self._arm is not None:
            self._arm.stop()

    def _listen(self) -> None:
        try:
            while True:
                order = self._pipe.recv()
                self._orders.put(order)
                if isinstance(order, EndOrder):
                    return
        except (EOFError, OSError):
            self._log.error("the first rank is gone")
            shutil.rmtree(self._meeting.file.parent, ignore_errors=True)
            os._exit(1)  # the loop may wait for it in a sum

    def _load(self) -> None:
        settings, meeting = self._settings, self._meeting
        self._loaded = self._decoder = None
        place = Place(meeting.device_of(self._rank), self._rank, meeting.ways, settings.expert_parallel)
        try:
            loaded = load(settings.checkpoint, place=place, clock=self._clock)
            ranks = Collective(meeting.ways)
            network, slots, max_len = loaded.network, settings.slots, settings.max_len
            self._decoder = Decoder(loaded.config, network, slots=slots, max_len=max_len, ranks=ranks)
            self._loaded = loaded
        except Exception as error:  # the first rank says it, and has it tried again
            waits = isinstance(error, SourceNotReady | CheckpointBusy)
            self._pipe.send(Loading(str(error) or type(error).__name__, waits))
        else:
            self._pipe.send(Loading(None))

    def _serve(self) -> None:
        assert self._loaded is not None
        settle()
        settings, live = self._settings, self._loaded.live
        who = ArmIdentity("reference", settings.pool, settings.pod, self._rank, self._meeting.ways, settings.instance)
        self._arm = ArmClient(
            settings.socket,
            who,
            live,
            None,
            randomness=system_random(),
            token_file=settings.token_file,
            log=self._log,
        )
        self._arm.start()
        threading.Thread(
            target=self._sweep_for_ever, args=(self._loaded, self._arm), name="sweeper", daemon=True
        ).start()

    def _sweep_for_ever(self, loaded: Loaded, arm: ArmClient) -> None:
        every = self._settings.sweep_interval_s
        sweep_for_ever(loaded.live, arm, self._stopping, interval_s=every, log=self._log)

    def _say_doubt(self) -> None:
        doubt = None if self._loaded is None else self._loaded.live.error
        if doubt != self._doubt:
            self._doubt = doubt
            self._pipe.send(Doubt(doubt))


def main() -> int:
    """Entry point."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # of a terminal, it goes to every process; the first rank ends the others
    pipe: Connection[Loading | Doubt, Order] = Connection(int(sys.argv[1]))
    settings = pipe.recv()
    assert isinstance(settings, RankSettings)
    process = settings.process
    set_up_logs(log_format=process.log_format, level=process.log_level, clock=SystemClock())
    torch.set_num_threads(process.threads)
    FollowingRank(settings, pipe).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
