"""SGLang's routes for a reload, as 0.5.23 has them.

- `/pause_generation`: `retract` puts running requests back to the queue, their KV is computed anew; `abort` ends them.
  There is no mode that drains: `/update_weights_from_disk` of a server that is not paused waits by itself for every
  request in flight, and holds new ones.
- `/update_weights_from_disk` flushes the cache after the load. What it refuses it answers 400 with `success` false; only
  two of its messages say that nothing was written. After "Rolling back" the weights are those of no version for sure.
- `/weights_checker` hashes dequantized values to 64 bits: two different bit patterns may agree, so it proves nothing;
  it does show that memory changed since the load.
"""

from __future__ import annotations

from collections.abc import Mapping

from syncline.errors import EngineUnavailable, EngineUncertain, LayoutRefused
from syncline.versions import Policy
from syncline_agent.reload.base import done
from syncline_agent.reload.routes import DEFAULT_ROUTE_TIMEOUTS, AnswerLost, Routes, RouteTimeouts

MODES = {Policy.KEEP: "retract", Policy.ABORT: "abort"}
BEFORE_ANY_WRITE = ("Failed to get model loader", "Failed to get weights iterator")
"""How the messages of `/update_weights_from_disk` begin that come before its first write."""


class SglangReloading:
    """Reloads one SGLang server."""

    kind = "sglang"
    unprovable = "SGLang says no more of its weights than 64-bit hashes of dequantized values"

    def __init__(self, routes: Routes, timeouts: RouteTimeouts = DEFAULT_ROUTE_TIMEOUTS) -> None:
        self._routes = routes
        self._timeouts = timeouts
        self._drains = False

    def stamp(self) -> str:
        answer = self._routes.get("/model_info", self._timeouts.look_s)
        if answer.status == 404:
            answer = self._routes.get("/get_model_info", self._timeouts.look_s)
        stamp = done(answer, "say its weight version").get("weight_version")
        if not isinstance(stamp, str):
            raise LayoutRefused(f"the engine at {self._routes.url} names no weight version; run SGLang 0.5 or newer")
        return stamp

    def check(self) -> None:
        pass  # the server hands an update to all of its data-parallel schedulers, and succeeds when all have

    def pause(self, policy: Policy) -> None:
        self._drains = policy is Policy.DRAIN
        if not self._drains:
            done(self._routes.post("/pause_generation", self._timeouts.pause_s, {"mode": MODES[policy]}), "pause")

    def load(self, folder: str, stamp: str) -> None:
        timeout_s = self._timeouts.load_s + (self._timeouts.drain_s if self._drains else 0.0)
        body = {"model_path": folder, "weight_version": stamp, "flush_cache": True, "abort_all_requests": False}
        try:
            answer = self._routes.post("/update_weights_from_disk", timeout_s, body)
        except AnswerLost as error:
            raise EngineUncertain(str(error)) from error
        if answer.ok and answer.get("success") is True:
            return
        message = answer.get("message")
        if isinstance(message, str) and answer.get("success") is False:
            # Of several schedulers, one may have written what another refused.
            if all(part.strip().startswith(BEFORE_ANY_WRITE) for part in message.split(" | ")):
                raise LayoutRefused(f"the engine cannot read {folder}: {answer.said}")
            raise EngineUncertain(f"reloading {folder} failed inside the engine: {answer.said}")
        if answer.not_done:
            raise EngineUnavailable(f"the engine did not reload: {answer.said}")
        raise EngineUncertain(f"reloading {folder} failed inside the engine: {answer.said}")

    def resume(self) -> None:
        if not self._drains:
            # Emptying the allocator's cache is for loads that leave much behind, and fails where there is no CUDA.
            body = {"torch_empty_cache": False}
            done(self._routes.post("/continue_generation", self._timeouts.pause_s, body), "continue")

    def checks(self) -> Mapping[str, str] | None:
        answer = self._routes.post("/weights_checker", self._timeouts.checks_s, {"action": "checksum"})
        if answer.status in (404, 405):
            return None
        ranks = done(answer, "give checksums of its weights").get("ranks")
        if not isinstance(ranks, list):
            return None
        told: dict[str, str] = {}
        for number, rank in enumerate(ranks):
            checks = rank.get("checksums") if isinstance(rank, dict) else None
            if not isinstance(checks, dict):
                return None
            told |= {f"{number}:{name}": str(check) for name, check in checks.items()}
        return told
