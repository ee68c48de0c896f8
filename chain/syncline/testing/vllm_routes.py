"""vLLM 0.32's routes for a reload, as its server answers them in development mode.

`/pause` takes its mode and `clear_cache` in the query; `/collective_rpc` answers 400 for a body without a method, and 500 when
a worker raises; `/reset_prefix_cache` answers `success` false while blocks are held, unless running requests are preempted;
`/weight_checker` gives SHA-256 by `dp:pp:pcp:tp:` and parameter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from syncline.testing.engine_routes import Call, EngineStandIn, Reply


class VllmStandIn(EngineStandIn):
    """One vLLM server of one worker."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        self.joined: Mapping[str, Sequence[str]] = {}
        """Parameters that hold several tensors behind one another."""
        self.repacked: set[str] = set()
        """Parameters that are kept in another order than the checkpoint's."""
        self.running = 0
        """Requests that hold blocks."""
        self.world = (1, 1)
        """Workers of the server, and of each of its engines."""
        self.routes = {
            ("GET", "/weight_info"): lambda _: Reply(200, {"weight_version": self.weight_version}),
            ("GET", "/get_world_size"): lambda call: Reply(
                200, {"world_size": self.world[call.query.get("include_dp", "true") == "false"]}
            ),
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("POST", "/collective_rpc"): self._rpc,
            ("POST", "/reset_prefix_cache"): self._reset,
            ("POST", "/reset_mm_cache"): lambda _: Reply(200),
            ("POST", "/reset_encoder_cache"): lambda _: Reply(200),
            ("POST", "/update_weight_version"): self._stamp,
            ("POST", "/weight_checker"): self._checksums,
        }

    def _pause(self, call: Call) -> Reply:
        mode = call.query.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            return Reply(422, {"detail": "Input should be 'abort', 'wait' or 'keep'"})
        self.paused = True
        if mode != "keep":
            self.running = 0
        return Reply(200, {"status": "paused"})

    def _resume(self, call: Call) -> Reply:
        self.paused = False
        return Reply(200, {"status": "resumed"})

    def _rpc(self, call: Call) -> Reply:
        methods: dict[str, Callable[[str], None]] = {"reload_weights": self._load}
        method = call.body.get("method")
        if method is None:
            return Reply(400, {"detail": "Missing 'method' in request body"})
        try:
            methods[method](call.body["kwargs"]["weights_path"])
        except Exception as error:
            return Reply(500, {"error": {"message": str(error), "type": "InternalServerError", "code": 500}})
        return Reply(200, {"results": [None]})

    def _reset(self, call: Call) -> Reply:
        if self.running and call.query.get("reset_running_requests") != "true":
            return Reply(200, {"success": False})
        self.stale_cache = False
        return Reply(200, {"success": True})

    def _stamp(self, call: Call) -> Reply:
        self.weight_version = call.body["new_version"]
        return Reply(200, {"success": True, "new_version": self.weight_version})

    def _checksums(self, call: Call) -> Reply:
        if call.body.get("action") != "checksum":
            return Reply(422, {"detail": "Input should be 'checksum', 'reset' or 'compare'"})
        inside = {part for parts in self.joined.values() for part in parts}
        made = {name: [name] for name in self.weights if name not in inside} | dict(self.joined)
        checksums: dict[str, str] = {}
        for name, parts in made.items():
            data = b"".join(self.weights[part] for part in parts)
            if name in self.repacked:
                data = data[::-1]
            checksums[f"dp0:pp0:pcp0:tp0:{name}"] = hashlib.sha256(data).hexdigest()
        return Reply(200, {"checksums": checksums})
