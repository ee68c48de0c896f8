"""From a loaded model to live weights that are proven, or to the reason why they cannot be changed in place.

Holds the node checkpoint still while it looks. Nothing here may keep SGLang from serving: whatever goes wrong is the rank's
refusal, which the agent is told.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from structlog.typing import FilteringBoundLogger

from syncline.checkpoint import Checkpoint
from syncline.clock import Clock
from syncline.errors import DigestMismatch, LayoutRefused, SynclineError
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.probing import Probed, probe
from syncline_agent.arm.torch_stores import check_not_derived, memory_of, storages_of, stores_of
from syncline_agent.sglang.placement import Placement
from syncline_agent.sglang.scratch import aside
from syncline_agent.sglang.settings import SglangSettings
from syncline_agent.sglang.still import Still


class Arming:
    """One rank, from before its model is probed until it is proven or refused. A context: the checkpoint is held still in it."""

    def __init__(
        self, settings: SglangSettings, placement: Placement, *, clock: Clock, log: FilteringBoundLogger
    ) -> None:
        self._settings, self._placement = settings, placement
        self._clock, self._log = clock, log
        self._open = ExitStack()
        self._checkpoint: Checkpoint | None = None
        self._probed: Probed | None = None
        self._before: set[int] | None = None
        self.live: LiveWeights | None = None
        self.refusal: str | None = placement.unfit

    def __enter__(self) -> Arming:
        if self.refusal is None:
            folder = self._settings.checkpoint
            try:
                self._checkpoint = self._open.enter_context(Checkpoint.open(folder).reading())
            except (SynclineError, OSError) as error:
                self.refusal = f"{folder} is no node checkpoint that the arm could follow: {error}"
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def before_load(self, model: torch.nn.Module) -> None:
        """The model is made and holds no weights yet: find out where they will go."""
        if self._checkpoint is not None:
            self._try(lambda checkpoint: self._probe(model, checkpoint))

    def after_load(self, model: torch.nn.Module) -> None:
        """Weights are loaded, and SGLang is about to work on them."""
        self._before = storages_of(model)

    def beside(self, model: torch.nn.Module) -> None:
        """The model is loaded already: probe its loader in scratch memory."""

        def look(checkpoint: Checkpoint) -> None:
            with aside(model) as scratch:
                self._probe(model, checkpoint)
            if self._probed is not None:
                self._probed = scratch.translated(self._probed)

        self._try(look)

    def finish(self, model: torch.nn.Module) -> None:
        """The model is as it will compute: prove it, or say why it cannot be changed."""
        self._try(lambda checkpoint: self._finish(model, checkpoint))

    def _probe(self, model: torch.nn.Module, checkpoint: Checkpoint) -> None:
        began = self._clock.monotonic()
        load: Any = model.load_weights
        self._probed = probe(checkpoint.table, [*model.named_parameters(), *model.named_buffers()], load)
        seconds = round(self._clock.monotonic() - began, 3)
        self._log.info("layout probed", tensors=len(checkpoint.table.tensors), seconds=seconds)

    def _finish(self, model: torch.nn.Module, checkpoint: Checkpoint) -> None:
        if self._probed is None:
            raise LayoutRefused(self.refusal or "the model was loaded by another way than SGLang's default loader")
        marker = checkpoint.marker
        assert marker is not None  # `reading` refuses a folder without one
        stores = stores_of(model, self._probed)
        if self._before is not None:
            check_not_derived(model, self._before)
        tiling = marker.tiling.tiling
        found = memory_of(stores, self._probed, checkpoint, tiling, alone=self._placement.ranks == 1)
        memory = Still(found, model)
        live = LiveWeights(checkpoint.table, tiling, memory, clock=self._clock)
        memory.warm_up()
        try:
            live.prove(marker.lineage, marker.view, marker.version, marker.digest)
            self._log.info("weights loaded", version=marker.version, digest=marker.digest)
        except DigestMismatch as error:
            self._log.error("weights refused", version=marker.version, reason=str(error))
        self.live, self.refusal = live, None

    def _try(self, work: Any) -> None:
        if self._checkpoint is None:
            return
        try:
            work(self._checkpoint)
        except Exception as error:
            self.refusal = str(error) or type(error).__name__
            if isinstance(error, LayoutRefused):
                self._log.error("layout refused", reason=self.refusal)
            else:
                self._log.exception("the rank could not be armed")
            self._probed = None
