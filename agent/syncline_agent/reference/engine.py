"""The reference engine as a whole: loads, proves, generates, follows, sweeps. `server` shows it; `__main__` starts it.

It owns the order in which the parts come up and go down, and the thread that loads first and sweeps ever after. It does
not know HTTP.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import CheckpointBusy, SourceNotReady
from syncline.metrics import Metrics
from syncline_agent.arm.answering import UNPROVEN
from syncline_agent.arm.client import ArmClient, ArmIdentity
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.periodic import SweepMetrics, sweep_for_ever
from syncline_agent.arm.stepgate import DEFAULT_PATIENCE, Patience
from syncline_agent.reference.loading import Loaded, Place, load
from syncline_agent.reference.model import Decoder
from syncline_agent.reference.ranks import ALONE, Others
from syncline_agent.reference.requests import NO_TOKENIZER, Limits
from syncline_agent.reference.scheduler import Scheduler

LOOK_S = 0.1
"""Between two looks for a checkpoint that is not there yet."""
WAITING = "waiting for the checkpoint"
RETRY_S = 2.0
"""Between two tries to load one that cannot be read."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a reference engine is told."""

    checkpoint: Path
    socket: Path
    pool: str = "default"
    pod: str = "pod-0"
    model: str = "syncline-reference"
    device: str = "cpu"
    expert_parallel: bool = True
    """Each rank holds some experts whole; else a part of every one."""
    slots: int = 32
    max_len: int | None = None
    sweep_interval_s: float = 600.0
    token_file: Path | None = None
    instance: str | None = None
    """What the arms of all ranks call this start of the engine."""
    patience: Patience = DEFAULT_PATIENCE


@dataclass(frozen=True, slots=True)
class Running:
    """The parts that exist once weights are loaded."""

    live: LiveWeights
    scheduler: Scheduler
    arm: ArmClient
    limits: Limits


class ReferenceEngine:
    """One process's engine."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        clock: Clock,
        randomness: random.Random,
        metrics: Metrics,
        log: FilteringBoundLogger,
        others: Others = ALONE,
        loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """`others`: the ranks beside this one, which is the first. `loaded` is called once, before anything is served."""
        self._loaded = loaded
        self.settings = settings
        self._others = others
        self._clock, self._random, self._metrics, self._log = clock, randomness, metrics, log
        self._running: Running | None = None
        self._waiting = WAITING if others.ways == 1 else f"waiting for {others.ways - 1} other ranks"
        """While nothing is loaded: for what, and why."""
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)

    @property
    def running(self) -> Running | None:
        """None until weights are loaded."""
        return self._running

    @property
    def unready(self) -> str | None:
        """Why no request can be served now, in words; None when proven and the agent has not turned the arm away."""
        running = self._running
        if running is None:
            return self._waiting
        if running.arm.refused:
            return running.arm.connection
        if running.scheduler.error is not None:
            return running.scheduler.error
        return None if running.live.in_service else "not proven yet: a sweep must match first"

    def start(self) -> None:
        self._keeper.start()

    def stop(self) -> None:
        """Stop following, then generating; what is in flight is aborted."""
        self._stopping.set()
        self._keeper.join()
        if self._running is not None:
            self._running.arm.stop()
            self._running.scheduler.stop()
        self._others.stop()

    def _keep(self) -> None:
        found = self._load()
        if found is None:
            return
        (loaded, decoder), settings = found, self.settings
        live, others = loaded.live, self._others
        scheduler = Scheduler(
            decoder,
            live,
            clock=self._clock,
            metrics=self._metrics,
            patience=settings.patience,
            doubt=lambda: others.doubt,
            failed=None if live.is_whole else UNPROVEN,
            log=self._log,
        )
        arm = ArmClient(
            settings.socket,
            ArmIdentity("reference", settings.pool, settings.pod, 0, others.ways, settings.instance),
            live,
            scheduler,
            randomness=self._random,
            token_file=settings.token_file,
            log=self._log,
        )
        if loaded.tokenizer is None:
            self._log.warning(f"{NO_TOKENIZER}; give token ids")
        limits = Limits(settings.model, loaded.config.vocab, decoder.max_len, loaded.tokenizer)
        self._loaded()
        scheduler.start()
        arm.start()
        others.serve()
        self._running = Running(live, scheduler, arm, limits)
        counted = SweepMetrics(self._metrics, settings.pool, self._clock)
        every = settings.sweep_interval_s
        sweep_for_ever(live, arm, self._stopping, interval_s=every, log=self._log, counted=counted)

    def _load(self) -> tuple[Loaded, Decoder] | None:
        """Weights, as soon as there are any, and what computes with them; None when told to stop first."""
        settings, others = self.settings, self._others
        try:
            others.join()
        except Exception as error:
            others.broke(error)
            return None
        self._waiting = WAITING
        device = settings.device if others.ways == 1 or settings.device == "cpu" else f"{settings.device}:0"
        place = Place(device, 0, others.ways, settings.expert_parallel)
        while not self._stopping.is_set():
            try:
                loaded = load(settings.checkpoint, place=place, clock=self._clock, others=others.loading())
                network, slots, max_len = loaded.network, settings.slots, settings.max_len
                decoder = Decoder(loaded.config, network, slots=slots, max_len=max_len, ranks=others)
            except (SourceNotReady, CheckpointBusy) as error:
                waiting = f"waiting for the checkpoint, which the agent writes: {error}"
                if self._waiting != waiting:
                    self._log.info("waiting for the checkpoint (the agent writes it)", reason=str(error))
                self._waiting = waiting
                self._stopping.wait(LOOK_S)
            except Exception as error:  # a config or a device that nobody foresaw: said, and tried again
                waiting = f"waiting for a checkpoint that can be loaded: {error}"
                if self._waiting != waiting:
                    self._log.error("checkpoint not loaded", error=type(error).__name__, reason=str(error))
                self._waiting = waiting
                self._stopping.wait(RETRY_S)
            else:
                applied = loaded.live.applied
                assert applied is not None
                if loaded.live.error is None:
                    said = "weights proven" if applied.proven else "weights loaded"
                    self._log.info(said, version=applied.version, digest=applied.digest)
                else:
                    self._log.error("weights refused", version=applied.version, reason=loaded.live.error)
                    self._metrics.digest_failures.labels(
                        run="", view=applied.view, pool=self.settings.pool, phase="load"
                    ).inc()
                return loaded, decoder
        return None
