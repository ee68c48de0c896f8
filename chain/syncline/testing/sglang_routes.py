"""SGLang 0.5.23's routes around its weights and its scheduler, as its server answers them.

- `/pause_generation` is answered before its scheduler has seen it; `retract` puts running requests back into the queue,
  `in_place` leaves them where they are, `abort` ends all and does not stop the scheduler, which then has nothing to do.
- `/flush_cache` is refused (400) while requests run, and while some wait unless the scheduler is paused. With requests that
  run and stand `in_place` it never succeeds.
- `/update_weights_from_disk` answers 400 and `success` false for whatever goes wrong inside; a flush that is refused
  makes a load that was done a failure. A server that is not paused waits for its requests first.
- `/weights_checker` answers for each tensor-parallel rank after all of them have come to it with an idle device.
- `/update_weight_version` aborts everything unless told not to.
- `/update_weights_from_tensor` is refused outside of a session of `/begin_weight_update` and `/end_weight_update`; within one it calls
  the custom loader that `load_format` names, in each rank. A name that the server was not started with ends its scheduler.
"""

from __future__ import annotations

import base64
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path

from syncline.testing.engine_routes import Call, EngineStandIn, Reply

FLUSH_REFUSED = (
    "Weights were updated, but the cache was not flushed because requests are still running or queued. "
    "Retract or finish them, then call /flush_cache."
)


class SglangStandIn(EngineStandIn):
    """One SGLang server."""

    def __init__(self, folder: Path | None = None, *, ranks: int = 1) -> None:
        super().__init__(folder)
        self.ranks = ranks
        self.mode: str | None = None
        """Of the pause."""
        self.running = 0
        self.waiting = 0
        self.ended = 0
        """Requests that were aborted."""
        self.custom_loaders: dict[str, Callable[[], None]] = {}
        """What it was started with."""
        self.custom_calls = 0
        self.session = False
        self.died = False
        self.routes = {
            ("GET", "/model_info"): self._model_info,
            ("GET", "/get_model_info"): self._model_info,
            ("POST", "/pause_generation"): self._pause,
            ("POST", "/continue_generation"): self._continue,
            ("POST", "/flush_cache"): self._flush_route,
            ("GET", "/flush_cache"): self._flush_route,
            ("POST", "/abort_request"): self._abort,
            ("POST", "/update_weights_from_disk"): self._update,
            ("POST", "/update_weight_version"): self._stamp,
            ("POST", "/weights_checker"): self._check,
            ("GET", "/server_info"): self._server_info,
            ("POST", "/begin_weight_update"): self._begin,
            ("POST", "/update_weights_from_tensor"): self._tensors,
            ("POST", "/end_weight_update"): self._end,
        }

    @property
    def stands(self) -> bool:
        """No step can run."""
        return self.paused and (self.mode != "abort" or self.running == 0)

    def _model_info(self, call: Call) -> Reply:
        return Reply(200, {"model_path": "toy", "is_generation": True, "weight_version": self.weight_version})

    def _server_info(self, call: Call) -> Reply:
        return Reply(200, {"tp_size": self.ranks, "custom_weight_loader": list(self.custom_loaders)})

    def _begin(self, call: Call) -> Reply:
        if self.session:
            return Reply(400, {"success": False, "message": "a weight-update session is already open"})
        self.session = True
        return Reply(200, {"success": True, "message": "Success"})

    def _end(self, call: Call) -> Reply:
        if not self.session:
            return Reply(400, {"success": False, "message": "no weight-update session is open"})
        self.session = False
        return Reply(200, {"success": True, "message": "Success"})

    def _tensors(self, call: Call) -> Reply | None:
        if not self.session:
            return Reply(400, {"success": False, "message": "must run between begin and end"})
        lists: list[list[object]] = [
            pickle.loads(base64.b64decode(packed, validate=True)) for packed in call.body["serialized_named_tensors"]
        ]
        loader = self.custom_loaders.get(call.body["load_format"])
        if loader is None or len(lists) != self.ranks:
            self.died = True
            return None
        for _ in lists:
            self.custom_calls += 1
            loader()
        return Reply(200, {"success": True, "message": "Success"})

    def _pause(self, call: Call) -> Reply:
        mode = call.body.get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            return Reply(422, {"detail": "Input should be 'abort', 'retract' or 'in_place'"})
        self.paused, self.mode = True, mode
        if mode == "abort":
            self._end_all()
        if mode == "retract":
            self.waiting, self.running = self.waiting + self.running, 0
        return Reply(200, {"message": "Generation paused successfully.", "status": "ok"})

    def _continue(self, call: Call) -> Reply:
        if call.body.get("torch_empty_cache", True):
            return Reply(500, {"detail": "Torch not compiled with CUDA enabled"})
        self.paused, self.mode = False, None
        self.running, self.waiting = self.running + self.waiting, 0
        return Reply(200, {"message": "Generation continued successfully.", "status": "ok"})

    def _flush(self) -> bool:
        scheduler_paused = self.paused and self.mode != "abort"
        if self.running or (self.waiting and not scheduler_paused):
            return False
        self.stale_cache = False
        return True

    def _flush_route(self, call: Call) -> Reply:
        if not self._flush():
            return Reply(400, "Flush cache failed.\n")
        return Reply(200, "Cache flushed.\nPlease check backend logs for more details. \n")

    def _abort(self, call: Call) -> Reply:
        if call.body.get("abort_all"):
            # A request that stands in place ends with its next step, and there is none.
            self._end_all(running=not (self.paused and self.mode == "in_place"))
        return Reply(200, "")

    def _end_all(self, *, running: bool = True) -> None:
        self.ended += self.waiting + (self.running if running else 0)
        self.waiting, self.running = 0, 0 if running else self.running

    def _update(self, call: Call) -> Reply:
        was_paused = self.paused
        if not was_paused:
            self.running = self.waiting = 0  # it waits until they have ended, and holds new ones
            self.paused = True
        try:
            self._load(call.body["model_path"])
            success, message = True, "Succeeded to update model weights."
        except FileNotFoundError as error:
            success, message = False, f"Failed to get weights iterator: {error}."
        except Exception as error:
            success, message = False, f"Failed to update weights: {error}.\nRolling back to original weights."
        self.paused = was_paused
        if success:
            self.weight_version = call.body.get("weight_version") or self.weight_version
            if call.body.get("flush_cache", True) and not self._flush():
                success, message = False, FLUSH_REFUSED
        body = {"success": success, "message": message, "num_paused_requests": 0}
        return Reply(200 if success else 400, body)

    def _stamp(self, call: Call) -> Reply:
        if call.body.get("abort_all_requests", True):
            self._end_all()
        self.weight_version = call.body["new_version"]
        return Reply(200, {"success": True, "message": "", "new_version": self.weight_version})

    def _check(self, call: Call) -> Reply:
        if call.body.get("action", "checksum") != "checksum":
            return Reply(400, {"success": False, "message": "Unsupported action"})
        left_out: list[str] = call.body.get("skip_tensor_list") or []
        checksums = {
            name: hashlib.sha256(data).hexdigest()[:16]
            for name, data in self.weights.items()
            if not any(part in name for part in left_out)
        }
        ranks = [{"checksums": checksums, "per_gpu_checksum": ""} for _ in range(self.ranks)]
        return Reply(200, {"success": True, "message": "Success.", "ranks": ranks, "per_engine_checksum": ""})
