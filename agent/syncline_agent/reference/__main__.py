"""`python -m syncline_agent.reference`: one reference engine process.

    --checkpoint DIR   the node's checkpoint; waited for
    --socket PATH      the agent's arm socket; connected to, again and again
    --port N           HTTP (0: any free port; it is logged)

Ends on SIGTERM or SIGINT. Exit code 0 then, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from aiohttp import web
from structlog.typing import FilteringBoundLogger

from syncline.clock import SystemClock, system_random
from syncline.logs import LEVELS, logger, set_up_logs
from syncline.metrics import Metrics
from syncline_agent.reference.engine import EngineSettings, ReferenceEngine
from syncline_agent.reference.server import EngineServer

GOODBYE_S = 5.0
"""What answers in flight get when the process ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    flags = _parser().parse_args(arguments)
    clock, randomness, metrics = SystemClock(), system_random(), Metrics()
    set_up_logs(log_format=flags.log_format, level=flags.log_level, clock=clock)
    torch.set_num_threads(flags.threads)
    settings = EngineSettings(
        checkpoint=flags.checkpoint,
        socket=flags.socket,
        pool=flags.pool,
        pod=flags.pod,
        model=flags.model,
        device=flags.device,
        slots=flags.slots,
        max_len=flags.max_len,
        sweep_interval_s=flags.sweep_interval,
        token_file=flags.token_file,
    )
    log = logger("engine", pool=flags.pool, pod=flags.pod)
    engine = ReferenceEngine(settings, clock=clock, randomness=randomness, metrics=metrics, log=log)
    server = EngineServer(engine, clock=clock, randomness=randomness, metrics=metrics)
    asyncio.run(_serve(engine, server, host=flags.host, port=flags.port, log=log))
    return 0


async def _serve(
    engine: ReferenceEngine, server: EngineServer, *, host: str, port: int, log: FilteringBoundLogger
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # A client that goes away cancels its handler, which then aborts what was being generated for it.
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=GOODBYE_S)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    log.info("engine listening", address="{}:{}".format(*runner.addresses[0][:2]))
    engine.start()
    await stop.wait()
    await asyncio.to_thread(engine.stop)
    await runner.cleanup()
    log.info("engine stopped")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m syncline_agent.reference", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, help="folder that the agent materialized")
    add("--socket", type=Path, required=True, help="the agent's arm socket")
    add("--token-file", type=Path, help="what the agent knows the arm by (default: arm.token beside the socket)")
    add("--host", default="127.0.0.1", help="address of HTTP")
    add("--port", type=int, default=0, help="port of HTTP")
    add("--pool", default="default", help="the rollout pool")
    add("--pod", default="pod-0", help="this engine's name in the pool")
    add("--model", default="syncline-reference", help="name in the OpenAI API")
    add("--device", default="cpu", help="torch device: cpu or cuda")
    add("--threads", type=int, default=1, help="torch threads")
    add("--slots", type=int, default=32, help="sequences that generate at once")
    add("--max-len", type=int, help="tokens of prompt and answer (default: what the model allows)")
    add("--sweep-interval", type=float, default=600.0, help="seconds between two sweeps of live memory")
    add("--log-format", choices=("console", "json"), default="console")
    add("--log-level", choices=tuple(LEVELS), default="info")
    return parser


if __name__ == "__main__":
    sys.exit(main())
