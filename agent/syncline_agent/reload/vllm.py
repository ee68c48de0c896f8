"""vLLM's routes for a reload, as 0.32 has them under VLLM_SERVER_DEV_MODE=1.

`/pause` answers when the device is idle. `/collective_rpc` reaches every worker of one engine core, so a server of
several data-parallel cores is refused. An error inside a worker is answered 500, and the weights are then of two
versions. `/weight_checker` gives the SHA-256 of each parameter's bytes: enough to prove them.
"""

from __future__ import annotations

from collections.abc import Mapping

from syncline.errors import EngineUnavailable, EngineUncertain, LayoutRefused
from syncline.versions import Policy
from syncline_agent.reload.base import done
from syncline_agent.reload.routes import DEFAULT_ROUTE_TIMEOUTS, Answer, AnswerLost, Routes, RouteTimeouts

MODES = {Policy.KEEP: "keep", Policy.DRAIN: "wait", Policy.ABORT: "abort"}
DEV_MODE = "start vLLM 0.32 with VLLM_SERVER_DEV_MODE=1 in its environment"


class VllmReloading:
    """Reloads one vLLM server."""

    kind = "vllm"
    unprovable = None

    def __init__(self, routes: Routes, timeouts: RouteTimeouts = DEFAULT_ROUTE_TIMEOUTS) -> None:
        self._routes = routes
        self._timeouts = timeouts

    def stamp(self) -> str:
        answer = self._routes.get("/weight_info", self._timeouts.look_s)
        if answer.status == 404:
            raise LayoutRefused(f"the engine at {self._routes.url} has no /weight_info; {DEV_MODE}")
        stamp = done(answer, "say its weight version").get("weight_version")
        if not isinstance(stamp, str):
            raise EngineUnavailable(f"/weight_info of {self._routes.url} names no weight version: {answer.said}")
        return stamp

    def check(self) -> None:
        sizes = [
            done(
                self._routes.get("/get_world_size", self._timeouts.look_s, include_dp=include), "say its world size"
            ).get("world_size")
            for include in ("true", "false")
        ]
        if sizes[0] != sizes[1]:
            raise LayoutRefused(
                f"{self._routes.url} is a data-parallel server ({sizes[0]} workers, {sizes[1]} in each engine); its "
                "reload route reaches one engine only: start a server for each"
            )

    def pause(self, policy: Policy) -> None:
        patience_s = self._timeouts.drain_s if policy is Policy.DRAIN else self._timeouts.pause_s
        answer = self._routes.post("/pause", patience_s, mode=MODES[policy], clear_cache="false")
        if answer.status == 404:
            raise LayoutRefused(f"the engine at {self._routes.url} has no /pause; {DEV_MODE}")
        done(answer, "pause")

    def load(self, folder: str, stamp: str) -> None:
        timeout_s = self._timeouts.load_s
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}, "timeout": timeout_s}
        try:
            answer = self._routes.post("/collective_rpc", timeout_s, body)
        except AnswerLost as error:
            raise EngineUncertain(str(error)) from error
        if answer.status == 404:
            raise LayoutRefused(f"the engine at {self._routes.url} has no /collective_rpc; {DEV_MODE}")
        if answer.not_done:
            raise EngineUnavailable(f"the engine did not reload: {answer.said}")
        if not answer.ok:
            raise EngineUncertain(f"reloading {folder} failed inside the engine: {answer.said}")
        self._drop_caches()
        self._must("/update_weight_version", {"new_version": stamp})

    def _drop_caches(self) -> None:
        # Requests that go on are computed anew from their tokens: their KV is of the weights before.
        answer = self._must("/reset_prefix_cache", None, reset_running_requests="true", reset_external="true")
        if answer.get("success") is not True:
            raise EngineUncertain(f"new weights are loaded, and KV of older ones could not be dropped: {answer.said}")
        for cache in ("/reset_mm_cache", "/reset_encoder_cache"):
            self._must(cache, None, absent_is_well=True)

    def _must(self, path: str, body: Mapping[str, str] | None, *, absent_is_well: bool = False, **query: str) -> Answer:
        try:
            answer = self._routes.post(path, self._timeouts.pause_s, body, **query)
        except EngineUnavailable as error:
            raise EngineUncertain(f"new weights are loaded, and {path} failed: {error}") from error
        if not answer.ok and not (absent_is_well and answer.status == 404):
            raise EngineUncertain(f"new weights are loaded, and {path} failed: {answer.said}")
        return answer

    def resume(self) -> None:
        done(self._routes.post("/resume", self._timeouts.pause_s), "resume")

    def checks(self) -> Mapping[str, str] | None:
        answer = self._routes.post("/weight_checker", self._timeouts.checks_s, {"action": "checksum"})
        if answer.status in (404, 405):
            return None
        checks = done(answer, "give checksums of its weights").get("checksums")
        if not isinstance(checks, dict):
            raise EngineUnavailable(f"/weight_checker of {self._routes.url} gave no checksums: {answer.said}")
        return {str(name): str(sha) for name, sha in checks.items()}
