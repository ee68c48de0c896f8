"""A rank of an armed engine: its weights, or why they cannot be changed, its connection to the agent, its sweeps."""

from __future__ import annotations

import random
import threading
from typing import Any

from structlog.typing import FilteringBoundLogger

from syncline_agent.arm.client import ArmClient, ArmIdentity
from syncline_agent.arm.gate import Gate
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.periodic import sweep_for_ever
from syncline_agent.arm.settings import ArmSettings
from syncline_agent.vllm.sleeping import Sleeper

ENGINE = "vllm"


class Rank:
    """One rank, from its proof until the engine ends."""

    def __init__(
        self,
        settings: ArmSettings,
        live: LiveWeights | None,
        refusal: str | None,
        *,
        sleeper: Sleeper | None,
        rank: int,
        ranks: int,
        instance: str | None,
        randomness: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        self.live, self.refusal = live, refusal
        self._sleeper = sleeper
        self._settings, self._random, self._log = settings, randomness, log
        self._identity = ArmIdentity(ENGINE, settings.pool, settings.pod, rank, ranks, instance)
        self._arm: ArmClient | None = None
        self._stopping = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep_for_ever, name="arm-sweeper", daemon=True)

    @property
    def error(self) -> str | None:
        """Why these weights must not serve; None for weights that the agent does not follow, too."""
        return None if self.live is None else self.live.error

    def connect(self, gate: Gate | None) -> None:
        """Before `start`: how to meet the agent, with the engine's gate where that is in this process."""
        self._arm = ArmClient(
            self._settings.socket,
            self._identity,
            self.live,
            gate,
            refusal=self.refusal,
            randomness=self._random,
            token_file=self._settings.token_file,
            log=self._log,
        )

    def start(self) -> None:
        """Meet the agent, and sweep from time to time."""
        assert self._arm is not None  # `connect` made it
        self._arm.start()
        if self.live is not None:
            self._sweeper.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._arm is not None:
            self._arm.stop()

    def fall_asleep(self, why: str, *, lost: bool) -> None:
        """The worker takes the weights out of memory; `lost`: for good."""
        if self._sleeper is not None:
            self._sleeper.fall_asleep(why, lost=lost)

    def wake(self) -> None:
        """They are in memory again, or others."""
        if self._sleeper is not None:
            self._sleeper.wake()
        if self._arm is not None:
            self._arm.notify()

    def _sweep_for_ever(self) -> None:
        live, arm = self.live, self._arm
        assert live is not None and arm is not None  # started by `start`
        sweep_for_ever(
            live,
            arm,
            self._stopping,
            interval_s=self._settings.sweep_interval_s,
            log=self._log,
        )


def instance_of(vllm_config: Any) -> str | None:
    """What all processes of one start of an engine are handed and no other start is; None where vLLM has no such thing."""
    return getattr(vllm_config, "instance_id", None) or None


def rank_of(worker: Any) -> Rank | None:
    """The rank that a worker of vLLM's was armed with."""
    rank = getattr(worker, "syncline", None)
    return rank if isinstance(rank, Rank) else None


def refusal_of(worker: Any) -> str | None:
    """Asked of each worker by the engine core: why its weights cannot be changed in place."""
    rank = rank_of(getattr(worker, "worker", worker))
    return "the worker was not armed" if rank is None else rank.refusal
