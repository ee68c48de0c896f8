"""The processes of a served run: started, told what to do, and waited for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch
from bench.processes import Processes, answer, free_port
from bench.serving import shapes
from bench.serving.orders import Orders

RUN = "serve"
SETTLE_S = 0.3
AHEAD_POLL_S = 0.02
"""How often an agent looks at its target where that takes the doorbell's place."""


class Fleet:
    """All processes, and what is known of them."""

    def __init__(self, root: Path, processes: Processes, args: argparse.Namespace) -> None:
        self.root, self.processes, self.args = root, processes, args
        self.config = shapes.model_config(args.gb)
        self.facts: dict[str, Any] = {"bytes": shapes.size_bytes(self.config), "layers": self.config.layers}
        self._began = monotonic()
        self._bell, self._agent_port, self._engine_port = free_port(), free_port(), free_port()
        self._generation = 0
        self.second = min(1, torch.cuda.device_count() - 1)
        """The engine's GPU: the trainer's own where there is no other."""
        self.ahead: list[dict[str, Any]] | None = None
        """Versions that are published and not served yet."""
        self.target(1)

    def say(self, words: str) -> None:
        print(f"[{monotonic() - self._began:6.1f} s] {words}", flush=True)

    def keep(self, **facts: Any) -> None:
        """Written at once, so that a run that is cut off leaves what it found."""
        self.facts |= facts
        if self.args.json:
            self.args.json.write_text(json.dumps(self.facts, indent=1) + "\n", encoding="utf-8")

    def publish_ahead(self, rates: Sequence[float]) -> None:
        """Before the engine starts, what it will be told to serve one after the other."""
        made: list[dict[str, Any]] = self.trainer("ahead", rates=list(rates), timeout_s=4 * self.args.patience)
        self.ahead = made
        self.say(f"{len(made)} versions published ahead")

    def target(self, pinned: int | None = None) -> float:
        """Say what is to be served; when that was said."""
        self._generation += 1
        version = {"mode": "Latest"} if pinned is None else {"mode": "Pinned", "version": pinned}
        draft = self.root / "target.draft"
        draft.write_text(json.dumps({"run": RUN, "version": version, "generation": self._generation}), encoding="utf-8")
        draft.replace(self.root / "target.json")
        return monotonic()

    # --- beginning

    def start(self, ahead: Sequence[float]) -> None:
        """`ahead`: the rates of the versions that are published before the engine starts."""
        args, root, node = self.args, self.root, self.root / "node"
        on = (lambda number: {"CUDA_VISIBLE_DEVICES": str(number)}) if args.device != "cpu" else (lambda _: {})
        none = {"CUDA_VISIBLE_DEVICES": ""}
        start = self.processes.start
        trainer = {"store": root / "store", "run": RUN, "gb": args.gb, "device": args.device, "port": self._bell}
        start("bench.serving.trainer", [*flags(trainer), "--orders", str(root / "trainer")], environ=on(0))
        agent = {
            "store": root / "store", "target": root / "target.json", "node-dir": node, "port": self._agent_port,
            "distributor": f"http://127.0.0.1:{self._bell}", "log-format": "json",
        }  # fmt: skip
        if ahead:
            agent["poll-seconds"] = AHEAD_POLL_S
        engine = {
            "checkpoint": node / "checkpoint", "socket": node / "arm.sock", "port": self._engine_port,
            "slots": args.streams, "max-len": args.tokens + 16, "log-format": "json",
        }  # fmt: skip
        own = ["--orders", str(root / "engine"), "--device", args.device, "--"]
        self.trainer = self._orders("trainer")
        first = self.trainer("step", rate=0.0, timeout_s=args.patience)
        self.say(f"first version published in {sum(first['seconds'].values()):.1f} s")
        if ahead:
            self.publish_ahead(ahead)
        else:
            self.target()
        began = monotonic()
        self.agent = start("syncline_agent", flags(agent), environ=none)
        start("bench.serving.engine", [*own, *flags(engine)], environ=on(self.second))
        self._wait(lambda: (answer(self._agent_port) or {}).get("boot"), "the node's checkpoint")
        self.say(f"materialized {monotonic() - began:.1f} s later")
        self._wait(lambda: (answer(self._engine_port, "/readyz") or {}).get("ready"), "a proven engine")
        self.say("engine serves")
        self.engine = self._orders("engine")
        self.keep(first=first, engine_at_start=self.engine("seen"))

    def stream(self) -> None:
        clients = {
            "url": f"http://127.0.0.1:{self._engine_port}", "streams": self.args.streams, "tokens": self.args.tokens,
            "vocab": self.config.vocab, "orders": self.root / "streams", "out": self.root / "streams.json",
        }  # fmt: skip
        self.processes.start("bench.serving.streams", flags(clients), environ={"CUDA_VISIBLE_DEVICES": ""})
        self.streams = self._orders("streams")

    def _orders(self, name: str) -> Orders:
        self._wait((self.root / name).exists, f"the {name}'s socket")
        sleep(SETTLE_S)
        return Orders(self.root / name)

    def _wait(self, ready: Callable[[], Any], what: str) -> Any:
        return self.processes.wait(ready, what=what, timeout_s=self.args.patience, every_s=0.02)

    # --- measuring

    def step(self, rate: float, **more: Any) -> dict[str, Any]:
        """Train, publish, and wait until it is served; what trainer and agent say of it. Of a version that was published ahead,
        `called` is when it would have been for the engine to hear of it now."""
        if self.ahead is None:
            published = self.trainer("step", rate=rate, timeout_s=self.args.patience, **more)
        else:
            published = self.ahead.pop(0)
            told = self.target(published["version"])
            until = sum(published["seconds"][phase] for phase in ("encode", "upload", "commit", "head"))
            published["called"] = told - until
        return published | {"sync": self.served(published["version"])["last_sync"]}

    def served(self, version: int) -> Any:
        def arrived() -> Any:
            status = answer(self._agent_port)
            applied = status and status["applied"]
            return status if applied and applied["proven"] and applied["version"] == version else None

        return self._wait(arrived, f"version {version}")


def flags(values: dict[str, Any]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]
