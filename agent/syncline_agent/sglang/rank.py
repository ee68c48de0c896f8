"""One armed scheduler process: its weights, or why they cannot be changed, its connection to the agent, its sweeps; on rank 0
the engine's gate as well."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock, system_random
from syncline_agent.arm.client import ArmClient, ArmIdentity
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.periodic import sweep_for_ever
from syncline_agent.reload.routes import Routes
from syncline_agent.sglang.gate import SglangGate
from syncline_agent.sglang.placement import Placement, start_of
from syncline_agent.sglang.settings import SglangSettings

ENGINE = "sglang"

Spans = Callable[[], Mapping[str, int]]


class Rank:
    """Started once, and stopped with its process."""

    def __init__(
        self,
        settings: SglangSettings,
        placement: Placement,
        live: LiveWeights | None,
        refusal: str | None,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        self.live, self.refusal = live, refusal
        self._settings, self._placement = settings, placement
        self._clock, self.log = clock, log
        self._client: httpx.Client | None = None
        self._arm: ArmClient | None = None
        self._stopping = threading.Event()

    def start(self, spans: Spans) -> None:
        """Connect to the agent. `spans` is asked while the scheduler stands."""
        told, where = self._settings.arm, self._placement
        gate = self._gate(spans) if where.rank == 0 else None
        self._arm = ArmClient(
            told.socket,
            ArmIdentity(ENGINE, told.pool, told.pod, where.rank, where.ranks, start_of(os.getppid())),
            self.live,
            gate,
            refusal=self.refusal,
            randomness=system_random(),
            token_file=told.token_file,
            log=self.log,
        )
        self._arm.start()
        if self.live is not None:
            self._spawn(self._sweep_for_ever, "arm-sweeper")
        if gate is not None and self._waits_for_others:
            self._spawn(lambda: gate.pause_first(self._stopping), "arm-gate")

    def stop(self) -> None:
        self._stopping.set()
        if self._arm is not None:
            self._arm.stop()
        if self._client is not None:
            self._client.close()

    @property
    def _waits_for_others(self) -> bool:
        """Only the agent can tell whether what all ranks hold is a version."""
        return self._placement.ranks > 1 and self.live is not None

    def _gate(self, spans: Spans) -> SglangGate:
        # Proxies of the environment are for what is far away; this is the engine's own server.
        self._client = httpx.Client(trust_env=False)
        routes = Routes(self._settings.url, self._client, key_file=self._settings.key_file)
        return SglangGate(
            routes,
            ranks=self._placement.ranks,
            kv=self._settings.kv,
            spans=spans,
            failed=self._waits_for_others,
            clock=self._clock,
            log=self.log,
        )

    def _spawn(self, work: Callable[[], None], name: str) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()

    def _sweep_for_ever(self) -> None:
        live, arm = self.live, self._arm
        assert live is not None and arm is not None  # started by `start`
        sweep_for_ever(
            live,
            arm,
            self._stopping,
            interval_s=self._settings.arm.sweep_interval_s,
            log=self.log,
        )


def keep(model: Any, rank: Rank) -> None:
    """Leave a rank where the process finds it again: at the model that it is of."""
    model.syncline = rank


def rank_of(model: Any) -> Rank | None:
    """The rank that a model was armed with."""
    rank = getattr(model, "syncline", None)
    return rank if isinstance(rank, Rank) else None
