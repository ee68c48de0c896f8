"""The engine core's side of an armed engine: the gate, around the loop that vLLM runs."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline_agent.arm.answering import UNPROVEN
from syncline_agent.arm.client import ArmClient, ArmIdentity
from syncline_agent.arm.gate import Gate, OpenGate
from syncline_agent.vllm.caching import CacheNames
from syncline_agent.vllm.gate import CoreGate, Terms
from syncline_agent.vllm.rank import ENGINE, Rank, instance_of, rank_of, refusal_of
from syncline_agent.vllm.settings import VllmSettings
from syncline_agent.vllm.workers import doubt_of, settle


class CoreSide:
    """What an `EngineCoreProc` gets: made when its workers have loaded, started with its loop."""

    def __init__(
        self, core: Any, settings: VllmSettings, *, clock: Clock, randomness: random.Random, log: FilteringBoundLogger
    ) -> None:
        self._core = core
        parallel = core.vllm_config.parallel_config
        self._rank = _own_rank(core)
        refusal = next((why for why in core.collective_rpc(refusal_of) if why), None)
        rank = self._rank
        alone = rank is not None and parallel.world_size == 1
        self.gate = (
            None
            if refusal
            else CoreGate(
                core,
                CacheNames(settings.kv, f"{randomness.getrandbits(64):016x}"),
                Terms.of_vllm(),
                clock=clock,
                unfit=lambda: None if rank is None else rank.error,
                asleep=lambda: "weights" in getattr(core.model_executor, "sleeping_tags", ()),
                still=partial(core.model_executor.collective_rpc, settle),
                failed=None if alone else UNPROVEN,
                log=log,
            )
        )
        """None where the agent cannot change the weights in place: then vLLM serves as it does without Syncline."""
        met: Gate = self.gate or OpenGate(clock)
        if rank is not None:
            rank.connect(met)
            self._arm = None
            return
        told = settings.arm
        who = ArmIdentity(ENGINE, told.pool, told.pod, None, parallel.world_size, instance_of(core.vllm_config))
        self._arm = ArmClient(told.socket, who, None, met, randomness=randomness, token_file=told.token_file, log=log)

    def start(self) -> None:
        """The loop begins: guard what its steps let out, and meet the agent."""
        if self.gate is not None:
            step, let_out = self._core.step_fn, self.gate.let_out

            def guarded() -> Any:
                outputs, executed = step()
                return let_out(outputs), executed

            self._core.step_fn = guarded
            self.gate.hear_of_ends()
            if self._rank is not None and self._rank.live is not None and self._rank.live.version is not None:
                self.gate.stamp(self._rank.live.version)
        if self._arm is not None:
            self._arm.start()
        if self._rank is not None:
            self._rank.start()

    def look_at_ranks(self) -> None:
        """Weights may have changed, and each rank has looked at what it holds. What is in this process the gate sees itself."""
        if self.gate is not None and self._rank is None:
            self.gate.heed(self._core.model_executor.collective_rpc(doubt_of))

    def stop(self) -> None:
        """The loop has ended."""
        if self._arm is not None:
            self._arm.stop()
        if self._rank is not None:
            self._rank.stop()


def arm(
    core: Any, settings: VllmSettings, *, clock: Clock, randomness: random.Random, log: FilteringBoundLogger
) -> None:
    """Give a core its side."""
    core.syncline = CoreSide(core, settings, clock=clock, randomness=randomness, log=log)


def _own_rank(core: Any) -> Rank | None:
    """The rank whose worker runs in the core's own process."""
    wrapper = getattr(core.model_executor, "driver_worker", None)
    return rank_of(getattr(wrapper, "worker", None))
