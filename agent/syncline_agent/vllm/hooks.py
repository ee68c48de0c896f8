"""Which parts of vLLM the arm leans on: none of them is its public interface, so each is looked for before anything is
changed.

Found alike in vLLM 0.20.2, 0.25 and 0.29 to 0.32. A release that lacks one is refused by the name of what it lacks; numbers of
releases are not compared.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from syncline.errors import LayoutRefused


@dataclass(frozen=True, slots=True)
class Hook:
    """Something that vLLM must have: where, and for a function the parameters that it must take."""

    module: str
    name: str
    takes: tuple[str, ...] = ()


CORE = "vllm.v1.engine.core"
HOOKS: Sequence[Hook] = (
    Hook(CORE, "EngineCore._initialize_kv_caches", ("vllm_config",)),
    Hook(CORE, "EngineCore.preprocess_add_request", ("request",)),
    Hook(CORE, "EngineCore.add_request", ("request", "request_wave")),
    Hook(CORE, "EngineCore.wake_up", ("tags",)),
    Hook(CORE, "EngineCore.collective_rpc", ("method",)),
    Hook(CORE, "EngineCoreProc.run_busy_loop"),
    Hook(CORE, "EngineCoreProc.has_work"),
    Hook(CORE, "EngineCoreProc.is_running"),
    Hook(CORE, "EngineCoreProc._process_engine_step"),
    Hook(CORE, "EngineCoreProc._send_error_outputs_to_client", ("req_ids", "client_index")),
    Hook(CORE, "EngineCoreProc._send_abort_outputs", ("aborted_reqs",)),
    Hook("vllm.v1.engine", "EngineCoreRequestType.WAKEUP"),
    Hook("vllm.v1.core.sched.interface", "PauseState.PAUSED_ALL"),
    Hook("vllm.v1.core.sched.interface", "PauseState.PAUSED_NEW"),
    Hook("vllm.v1.core.sched.scheduler", "Scheduler.set_pause_state", ("pause_state",)),
    Hook("vllm.v1.core.sched.scheduler", "Scheduler.get_num_unfinished_requests"),
    Hook("vllm.v1.core.sched.scheduler", "Scheduler.finish_requests", ("request_ids", "finished_status")),
    Hook("vllm.v1.core.sched.scheduler", "Scheduler.reset_prefix_cache", ("reset_running_requests",)),
    Hook("vllm.v1.request", "Request.update_block_hashes"),
    Hook("vllm.v1.request", "RequestStatus.FINISHED_ERROR"),
    Hook("vllm.v1.executor.uniproc_executor", "UniProcExecutor"),
    Hook("vllm.v1.executor.multiproc_executor", "WorkerProc.worker_busy_loop"),
    Hook("vllm.v1.worker.gpu_worker", "Worker.load_model"),
    Hook("vllm.v1.worker.gpu_worker", "Worker.sleep", ("level",)),
    Hook("vllm.v1.worker.gpu_worker", "Worker.wake_up", ("tags",)),
    Hook("vllm.v1.worker.gpu_worker", "Worker.reload_weights"),
    Hook(
        "vllm.model_executor.model_loader.default_loader", "DefaultModelLoader.load_weights", ("model", "model_config")
    ),
    Hook("vllm.model_executor.model_loader.utils", "process_weights_after_loading", ("model",)),
)


def check_hooks(hooks: Sequence[Hook] = HOOKS) -> None:
    """LayoutRefused, naming what is missing, when this vLLM is not one that the arm knows."""
    lacking = [(f"{hook.module}.{hook.name}", why) for hook in hooks if (why := _lacks(hook)) is not None]
    if lacking:
        missing = [name for name, _ in lacking]
        cause = next((f" ({why})" for _, why in lacking if why), "")
        raise LayoutRefused(
            f"this vLLM has no {', '.join(missing[:3])}{' …' if missing[3:] else ''}, which the arm needs{cause}; take"
            " vLLM 0.20.2 to 0.32, or let the agent use the engine's reload route"
        )


def look_up(module: str, name: str) -> Any:
    """Something of vLLM's by its place. ImportError or AttributeError where it is not."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _lacks(hook: Hook) -> str | None:
    """Why a hook cannot be used, empty where there is nothing to add to its name; None for one that can."""
    try:
        found = look_up(hook.module, hook.name)
        there = set(hook.takes) <= set(inspect.signature(found).parameters) if hook.takes else True
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    except (AttributeError, ValueError):
        return ""
    return None if there else ""


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put `wrap(original)` in the original's place, once, however often this is called. It tells the original's parameters:
    vLLM looks at those of what it is asked to call."""
    original = getattr(owner, name)
    if not getattr(original, "syncline", False):
        wrapped: Any = functools.update_wrapper(wrap(original), original)
        wrapped.syncline = True
        setattr(owner, name, wrapped)
