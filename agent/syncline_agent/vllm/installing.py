"""Puts the arm around vLLM's own functions, once a process, after looking whether all of them are there.

vLLM calls this in each process: where requests come in (nothing happens there), in the engine core's, in each worker's. In
the core's it comes while the core is being made, after its queues and before its workers. A worker then looks through all
loaded modules, which those of numba's compiler do not bear: nothing that loads it may be imported here before a model is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock, SystemClock, system_random
from syncline.errors import SynclineError
from syncline.logs import logger, set_up_logs
from syncline_agent.vllm import absence
from syncline_agent.vllm.hooks import CORE, check_hooks, look_up, replace
from syncline_agent.vllm.settings import CpuLinear, VllmSettings

Original = Callable[..., Any]


def install(environ: Mapping[str, str]) -> None:
    """Arm this process. What keeps it from that is said, and vLLM goes on without Syncline."""
    clock = SystemClock()
    set_up_logs(
        log_format=environ.get("SYNCLINE_LOG_FORMAT") or "console",
        level=environ.get("SYNCLINE_LOG_LEVEL") or "info",
        clock=clock,
    )
    log = logger("vllm-arm")
    try:
        settings = VllmSettings.from_env(environ)
        check_hooks()
    except SynclineError as error:
        log.error("Syncline is off", reason=str(error))
        return
    _around_workers(settings, clock, log)
    _around_core(settings, clock, log)
    _around_absence()
    if settings.cpu_linear is CpuLinear.PLAIN:
        _keep_linear_weights()


def _around_workers(settings: VllmSettings, clock: Clock, log: FilteringBoundLogger) -> None:
    def load_model(original: Original) -> Original:
        def armed(self: Any, *arguments: Any, **named: Any) -> Any:
            from syncline_agent.vllm.arming import Arming
            from syncline_agent.vllm.rank import Rank, instance_of

            ranks = self.vllm_config.parallel_config.world_size
            said = log.bind(rank=self.rank)
            with Arming(settings, self.vllm_config, clock=clock, log=said) as arming:
                result = original(self, *arguments, **named)
                arming.finish(self.model_runner.get_model())
            self.syncline = Rank(
                settings.arm,
                arming.live,
                arming.refusal,
                sleeper=arming.sleeper,
                rank=self.rank,
                ranks=ranks,
                instance=instance_of(self.vllm_config),
                randomness=system_random(),
                log=said,
            )
            return result

        return armed

    def load_weights(original: Original) -> Original:
        def probed(self: Any, model: Any, model_config: Any, *arguments: Any, **named: Any) -> Any:
            from syncline_agent.vllm.arming import UNDER_WAY

            arming = UNDER_WAY.get()
            if arming is not None:
                arming.before_load(model, model_config)
            result = original(self, model, model_config, *arguments, **named)
            if arming is not None:
                arming.after_load(model)
            return result

        return probed

    def worker_busy_loop(original: Original) -> Original:
        def armed(self: Any, *arguments: Any, **named: Any) -> Any:
            from syncline_agent.vllm.rank import rank_of

            rank = rank_of(getattr(self.worker, "worker", None))
            if rank is not None:
                rank.connect(None)
                rank.start()
            try:
                return original(self, *arguments, **named)
            finally:
                if rank is not None:
                    rank.stop()

        return armed

    loader = look_up("vllm.model_executor.model_loader.default_loader", "DefaultModelLoader")
    replace(look_up("vllm.v1.worker.gpu_worker", "Worker"), "load_model", load_model)
    replace(loader, "load_weights", load_weights)
    replace(look_up("vllm.v1.executor.multiproc_executor", "WorkerProc"), "worker_busy_loop", worker_busy_loop)


def _around_core(settings: VllmSettings, clock: Clock, log: FilteringBoundLogger) -> None:
    any_core, core = look_up(CORE, "EngineCore"), look_up(CORE, "EngineCoreProc")

    def initialize_kv_caches(original: Original) -> Original:
        def armed(self: Any, *arguments: Any, **named: Any) -> Any:
            if isinstance(self, core):
                from syncline_agent.vllm.core import arm

                arm(self, settings, clock=clock, randomness=system_random(), log=log)
            return original(self, *arguments, **named)

        return armed

    def preprocess_add_request(original: Original) -> Original:
        def named_first(self: Any, request: Any) -> Any:
            gate = _gate_of(self)
            if gate is None:
                return original(self, request)
            named = gate.names.begin(request)
            made, wave = original(self, request)
            made.syncline = named
            return made, wave

        return named_first

    def add_request(original: Original) -> Original:
        def admitted(self: Any, request: Any, *arguments: Any, **named: Any) -> Any:
            gate = _gate_of(self)
            if gate is None or gate.admit(request):
                return original(self, request, *arguments, **named)
            return None

        return admitted

    def has_work(original: Original) -> Original:
        def wanted(self: Any) -> bool:
            gate = _gate_of(self)
            return original(self) or (gate is not None and gate.wanted)

        return wanted

    def process_engine_step(original: Original) -> Original:
        def gated(self: Any) -> Any:
            gate = _gate_of(self)
            if gate is not None:
                gate.between_steps()
            return original(self)

        return gated

    def run_busy_loop(original: Original) -> Original:
        def armed(self: Any) -> Any:
            side = getattr(self, "syncline", None)
            if side is None:
                return original(self)
            side.start()
            try:
                return original(self)
            finally:
                side.stop()

        return armed

    replace(any_core, "_initialize_kv_caches", initialize_kv_caches)
    replace(any_core, "preprocess_add_request", preprocess_add_request)
    replace(any_core, "add_request", add_request)
    replace(core, "has_work", has_work)
    replace(core, "_process_engine_step", process_engine_step)
    replace(core, "run_busy_loop", run_busy_loop)


def _around_absence() -> None:
    worker, core = look_up("vllm.v1.worker.gpu_worker", "Worker"), look_up(CORE, "EngineCore")
    replace(worker, "sleep", absence.around_sleep)
    replace(worker, "wake_up", absence.around_wake_up)
    replace(worker, "reload_weights", absence.around_reload)
    replace(core, "wake_up", absence.around_change)
    replace(core, "collective_rpc", absence.around_change)


def _gate_of(core: Any) -> Any:
    """The gate that a core of vLLM's was given, if any."""
    side = getattr(core, "syncline", None)
    return None if side is None else side.gate


def _keep_linear_weights() -> None:
    """On the CPU vLLM packs linear weights after loading and drops the parameters; kept, they can be changed."""
    if not look_up("vllm.platforms", "current_platform").is_cpu():
        return
    import torch

    utils = importlib.import_module("vllm.model_executor.layers.utils")

    def dispatch(original: Original) -> Original:
        def plain(layer: Any, *arguments: Any, **named: Any) -> Any:
            if layer.weight.ndim == 2:
                layer.cpu_linear = torch.nn.functional.linear
                return None
            return original(layer, *arguments, **named)

        return plain

    if hasattr(utils, "dispatch_cpu_unquantized_gemm"):
        replace(utils, "dispatch_cpu_unquantized_gemm", dispatch)
