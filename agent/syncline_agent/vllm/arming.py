"""Arms one rank while vLLM loads its model: probes the loader first, lets vLLM load, then proves what was loaded.

The checkpoint's lock is held from before the probe until the proof, so that the agent does not move it meanwhile. Nothing
here may keep vLLM from serving: whatever goes wrong becomes the rank's refusal, which the agent is told.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from structlog.typing import FilteringBoundLogger

from syncline.checkpoint import Checkpoint
from syncline.clock import Clock
from syncline.errors import CheckpointBusy, DigestMismatch, LayoutRefused, SynclineError
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.probing import Probed, probe
from syncline_agent.arm.remembering import key_of, recall, remember
from syncline_agent.arm.torch_stores import check_not_derived, constants_of, memory_of, storages_of, stores_of
from syncline_agent.vllm.hooks import look_up
from syncline_agent.vllm.settings import VllmSettings
from syncline_agent.vllm.sleeping import Sleeper, SleepingMemory

LAYOUTS = "layouts"
"""Beside the socket: layouts that were probed before."""
OF_ONE_START = ("IDENT", "BUFFER_NAME", "HOST", "PORT", "LOG")
"""In the names of variables that vLLM sets anew for each start, or that change nothing."""
STABLE = (bool, int, float, str)
BUSY_S = 600.0
"""How long the load waits for an agent that writes to the checkpoint."""
UNDER_WAY: ContextVar[Arming | None] = ContextVar("syncline_arming", default=None)
"""The rank whose model this thread loads."""


class Arming:
    """A rank from before its load until it is proven, or refused."""

    def __init__(self, settings: VllmSettings, vllm_config: Any, *, clock: Clock, log: FilteringBoundLogger) -> None:
        self._settings, self._config = settings, vllm_config
        self._clock, self._log = clock, log
        self._open = ExitStack()
        self._checkpoint: Checkpoint | None = None
        self._probed: Probed | None = None
        self._before: set[int] = set()
        self.live: LiveWeights | None = None
        self.sleeper: Sleeper | None = None
        self.refusal: str | None = None

    def __enter__(self) -> Self:
        """Hold the checkpoint still. From here on the loader's hook finds this rank."""
        folder = self._settings.arm.checkpoint or Path(self._config.model_config.model)
        token = UNDER_WAY.set(self)
        self._open.callback(UNDER_WAY.reset, token)
        self.refusal = unfit(self._config)
        if self.refusal is None:
            try:
                self._checkpoint = self._held(folder)
            except (SynclineError, OSError) as error:
                self.refusal = f"{folder} is no node checkpoint that the arm could follow: {error}"
        return self

    def _held(self, folder: Path) -> Checkpoint:
        deadline = self._clock.monotonic() + BUSY_S
        while True:
            try:
                return self._open.enter_context(Checkpoint.open(folder).reading())
            except CheckpointBusy as error:
                if self._clock.monotonic() > deadline:
                    raise
                self._log.info("waiting for the agent, which writes the checkpoint", reason=str(error))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def before_load(self, model: torch.nn.Module, model_config: Any) -> None:
        """vLLM is about to load weights: find out where they will go."""
        checkpoint = self._checkpoint
        if checkpoint is None or self._probed is not None or model_config.model != self._config.model_config.model:
            return
        began = self._clock.monotonic()
        held = [*model.named_parameters(), *model.named_buffers()]
        folder, known = self._settings.arm.socket.parent / LAYOUTS, "remembered"
        try:
            key = key_of(checkpoint.table, held, engine_of(self._config, model))
            self._probed = recall(folder, key, held)
            if self._probed is None:
                load: Any = model.load_weights
                self._probed, known = probe(checkpoint.table, held, load), "probed"
        except Exception as error:
            self._refuse(error)
            return
        if known == "probed":
            try:
                remember(folder, key, self._probed)
            except OSError as error:
                self._log.info("the layout is not remembered", reason=str(error))
        self._log.info(
            f"layout {known}",
            tensors=len(checkpoint.table.tensors),
            blocks=len(self._probed.blocks),
            seconds=round(self._clock.monotonic() - began, 3),
        )

    def after_load(self, model: torch.nn.Module) -> None:
        """Weights are loaded, and vLLM is about to work on them."""
        self._before = storages_of(model)

    def finish(self, model: torch.nn.Module) -> None:
        """The model is as it will compute: prove it, or say why it cannot be changed in place."""
        checkpoint = self._checkpoint
        if checkpoint is None:
            return
        try:
            if self._probed is None:
                raise LayoutRefused(
                    self.refusal or "weights came by another way than vLLM's default loader; take --load-format auto"
                )
            marker = checkpoint.marker
            assert marker is not None  # `reading` refuses a folder without one
            alone = self._config.parallel_config.world_size == 1
            tiling = marker.tiling.tiling
            stores = stores_of(model, self._probed)
            check_not_derived(model, self._before)
            memory = SleepingMemory(memory_of(stores, self._probed, checkpoint, tiling, alone=alone))
            live = LiveWeights(checkpoint.table, tiling, memory, clock=self._clock)
            live.warm_up()
            try:
                live.prove(marker.lineage, marker.view, marker.version, marker.digest)
                self._log.info("weights loaded", version=marker.version, digest=marker.digest, proven=alone)
            except DigestMismatch as error:
                self._log.error("weights refused", version=marker.version, reason=str(error))
            self.live, self.refusal = live, None
            self.sleeper = Sleeper(live, memory, lambda: constants_of(model, stores), log=self._log)
        except Exception as error:
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        self.refusal = str(error) or type(error).__name__
        if isinstance(error, LayoutRefused):
            self._log.error("layout refused", reason=self.refusal)
        else:
            self._log.exception("the rank could not be armed")


def engine_of(vllm_config: Any, model: torch.nn.Module) -> dict[str, object]:
    """All that can change where vLLM's loader puts things: its release, its configuration, its environment, this rank."""
    rank = look_up("vllm.distributed", "get_world_group")().rank
    environ = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("VLLM_", "SYNCLINE_VLLM_")) and not any(part in name for part in OF_ONE_START)
    }
    parts = ("model_config", "parallel_config", "load_config", "quant_config", "lora_config", "device_config")
    return {
        "syncline": version("syncline"),
        "vllm": look_up("vllm", "__version__"),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "hf": vllm_config.model_config.hf_config.to_json_string(),
        "rank": rank,
        "environ": sorted(environ.items()),
        **{part: _stable(getattr(vllm_config, part)) for part in parts},
    }


def _stable(config: object) -> str:
    """What a configuration says, without what differs between two starts: addresses, ports, moments."""
    told = {name: value for name, value in vars(config).items() if isinstance(value, STABLE)} if config else {}
    moving = ("port", "master", "executor", "seed")
    return str(sorted((n, str(v)) for n, v in told.items() if not any(part in n for part in moving)))


def unfit(vllm_config: Any) -> str | None:
    """Why an engine of this configuration is not followed in place, by name; None for one that is."""
    parallel = vllm_config.parallel_config
    if is_data_parallel(parallel):
        return "data-parallel engines are not followed in place yet; run one engine a replica"
    if getattr(parallel, "nnodes", 1) > 1:
        return "engines over several nodes are not followed in place yet"
    if getattr(parallel, "enable_eplb", False):
        return "expert load balancing moves experts while the engine serves; leave it off"
    if vllm_config.speculative_config is not None and vllm_config.speculative_config.method != "ngram":
        return "a draft model beside the served one is not followed"
    return None


def is_data_parallel(parallel: Any) -> bool:
    """Whether this engine is one of several. vLLM forgets the number for models that are not mixtures of experts, but not
    the port that it took for them."""
    return (
        parallel.data_parallel_size > 1
        or getattr(parallel, "data_parallel_index", 0) > 0
        or parallel.data_parallel_master_port != look_up("vllm.envs", "VLLM_DP_MASTER_PORT")
    )
