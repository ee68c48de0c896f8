"""`python -m bench.serving.trainer`: holds a model on a device, moves it a step when told, and publishes it from there.

It rings as the distributor's service does: its own long poll of `/head` answers as soon as a version can be followed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from aiohttp import web
from bench.serving import shapes
from bench.serving.orders import answer_orders
from bench.serving.profiling import profiled

from syncline.metrics import Metrics
from syncline.wire.records import VersionManifest
from syncline_distributor import Publisher
from syncline_distributor.server import HeadBell, make_app

HASHERS = 16


@dataclass(slots=True)
class Heads:
    """What `/head` looks at."""

    head: VersionManifest | None = None

    @property
    def observer(self) -> Heads:
        return self

    def status(self) -> dict[str, Any]:
        return {}


class Trainer:
    """The weights and their publisher."""

    def __init__(self, store: Path, run: str, *, size_gb: float, device: str) -> None:
        self._config = shapes.model_config(size_gb)
        self._weights = shapes.first_weights(self._config, device)
        self._device = device
        self._publisher = Publisher(
            store,
            run,
            files={"config.json": json.dumps(self._config.to_hf(), indent=2).encode()},
            executor=ThreadPoolExecutor(HASHERS),
            device=device if device != "cpu" else None,
        )
        self._publisher.on_head = self._heard
        self._heads, self._bell = Heads(), None
        self._quiet = False
        self._steps = 0

    def ring_at(self, port: int) -> None:
        """Answer long polls of `/head` at the port, in a thread."""
        ready = threading.Event()

        async def serve() -> None:
            self._bell = HeadBell(asyncio.get_running_loop())
            runner = web.AppRunner(make_app(self._heads, Metrics(), self._bell), access_log=None)  # type: ignore[arg-type]
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            ready.set()
            await asyncio.Event().wait()

        threading.Thread(target=lambda: asyncio.run(serve()), name="bell", daemon=True).start()
        ready.wait()

    def _heard(self, head: VersionManifest) -> None:
        self._heads.head = head
        if self._bell is not None and not self._quiet:
            self._bell.ring(head)

    def ahead(self, rates: Sequence[float]) -> list[dict[str, Any]]:
        """Train and publish so many steps, of which nobody is told."""
        self._quiet = True
        return [self.step(rate) for rate in rates]

    def step(self, rate: float, profile: str | None = None) -> dict[str, Any]:
        """Train and publish: when it was called, how long its phases took, how much changed. `profile`: where Python's time goes."""
        if self._steps:
            shapes.move(self._weights, rate=rate, seed=self._steps)
        self._steps += 1
        if self._device != "cpu":
            torch.cuda.synchronize()
        called = monotonic()
        with profiled(profile):
            published = self._publisher.publish(self._weights)
        statistics = published.statistics
        return {
            "version": published.version,
            "called": called,
            "seconds": dict(published.seconds),
            "payload_bytes": statistics.payload_bytes,
            "changed": statistics.changed_units,
            "units": statistics.units,
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--gb", type=float, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--orders", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True, help="of /head")
    args = parser.parse_args(arguments)
    trainer = Trainer(args.store, args.run, size_gb=args.gb, device=args.device)
    trainer.ring_at(args.port)
    answer_orders(args.orders, {"step": trainer.step, "ahead": trainer.ahead})


if __name__ == "__main__":
    main()
