"""SGLang's plugin door: arms a rank while its model is loaded, and connects it while its scheduler's loop runs.

SGLang calls `install` in each of its processes, before it makes anything. What it wraps is not SGLang's public interface, so each
part is looked for before anything is changed; a release that lacks one is refused by its name, and SGLang serves on.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock, SystemClock
from syncline.errors import LayoutRefused, SynclineError
from syncline.logs import logger, set_up_logs
from syncline_agent.sglang.arming import Arming
from syncline_agent.sglang.placement import Placement, placement_of
from syncline_agent.sglang.rank import Rank, keep, rank_of
from syncline_agent.sglang.settings import SglangSettings

LOADER, SCHEDULER = "sglang.srt.model_loader.loader", "sglang.srt.managers.scheduler"
CONTEXT = "sglang.srt.runtime_context"
HOOKS = (
    (LOADER, "DefaultModelLoader.load_weights_and_postprocess"),
    (LOADER, "DefaultModelLoader.load_weights_only"),
    (SCHEDULER, "Scheduler.run_event_loop"),
    (CONTEXT, "get_parallel"),
)
"""Found so in SGLang 0.5.23."""


def install(environ: Mapping[str, str]) -> None:
    """Arm this process, if it is a scheduler's. What keeps it from that is said, and SGLang goes on without Syncline."""
    if SCHEDULER not in sys.modules:
        return  # a process of requests and texts: nothing is loaded into it for an arm's sake
    clock = SystemClock()
    log = start_logs(environ, clock)
    try:
        settings = SglangSettings.from_env(environ)
        for module, name in HOOKS:
            look_up(module, name)
    except SynclineError as error:
        log.error("Syncline is off", reason=str(error))
        return
    loader, parallel = look_up(LOADER, "DefaultModelLoader"), look_up(CONTEXT, "get_parallel")
    around_loader(loader, settings, lambda: placement_of(parallel()), clock=clock, log=log)
    around_scheduler(look_up(SCHEDULER, "Scheduler"))


def start_logs(environ: Mapping[str, str], clock: Clock) -> FilteringBoundLogger:
    """Syncline's lines in the engine's output."""
    form, level = environ.get("SYNCLINE_LOG_FORMAT") or "console", environ.get("SYNCLINE_LOG_LEVEL") or "info"
    set_up_logs(log_format=form, level=level, clock=clock)
    return logger("sglang-arm")


def look_up(module: str, name: str) -> Any:
    """Something of SGLang's by its place. LayoutRefused, naming it, where it is not."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise LayoutRefused(
            f"this SGLang has no {module}.{name}, which the arm needs; take SGLang 0.5.23, or let the agent use the "
            "engine's reload route"
        ) from None
    return found


def around_loader(
    loader: Any,
    settings: SglangSettings,
    placement: Callable[[], Placement],
    *,
    clock: Clock,
    log: FilteringBoundLogger,
) -> None:
    """Arm the first model that this process loads: a draft model comes after the one that is served."""
    under_way: list[Arming] = []
    seen: list[object] = []

    def whole(original: Callable[..., Any]) -> Callable[..., Any]:
        def armed(model: Any, weights: Any, target_device: Any) -> Any:
            if seen:
                return original(model, weights, target_device)
            seen.append(model)
            try:
                where = placement()
            except Exception as error:
                log.error("Syncline is off", reason=f"SGLang does not say which rank this is: {error}")
                return original(model, weights, target_device)
            said = log.bind(rank=where.rank)
            with Arming(settings, where, clock=clock, log=said) as arming:
                arming.before_load(model)
                under_way.append(arming)
                try:
                    result = original(model, weights, target_device)
                finally:
                    under_way.remove(arming)
                arming.finish(model)
            keep(model, Rank(settings, where, arming.live, arming.refusal, clock=clock, log=said))
            return result

        return armed

    def only(original: Callable[..., Any]) -> Callable[..., Any]:
        def armed(model: Any, weights: Any, target_device: Any) -> Any:
            result = original(model, weights, target_device)
            for arming in under_way:
                arming.after_load(model)
            return result

        return armed

    _wrap(loader, "load_weights_and_postprocess", whole)
    _wrap(loader, "load_weights_only", only)


def around_scheduler(scheduler: Any) -> None:
    """Connect the rank while the loop runs."""

    def loop(original: Callable[..., Any]) -> Callable[..., Any]:
        def armed(self: Any, *arguments: Any, **named: Any) -> Any:
            rank = rank_of(self.tp_worker.model_runner.model)
            if rank is None:
                return original(self, *arguments, **named)
            try:
                rank.start(lambda: tokens_of(self))
            except Exception as error:
                rank.log.error("Syncline is off", reason=str(error))
            try:
                return original(self, *arguments, **named)
            finally:
                rank.stop()

        return armed

    _wrap(scheduler, "run_event_loop", loop)


def tokens_of(scheduler: Any) -> dict[str, int]:
    """Output tokens so far of the requests of a scheduler that stands: running ones, and those that went back to the queue."""
    requests = [*scheduler.running_batch.reqs, *scheduler.waiting_queue]
    return {request.rid: len(request.output_ids) for request in requests if len(request.output_ids)}


def _wrap(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put `wrap(original)` in the original's place, once, static where that was."""
    original = getattr(owner, name)
    if getattr(original, "syncline", False):
        return
    wrapped: Any = functools.wraps(original)(wrap(original))
    wrapped.syncline = True
    static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(wrapped) if static else wrapped)
