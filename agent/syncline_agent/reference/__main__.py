"""`python -m syncline_agent.reference`: one reference engine process.

    --checkpoint DIR   the node's checkpoint; waited for
    --socket PATH      the agent's arm socket; connected to, again and again
    --port N           HTTP (0: any free port; it is logged)
    --tp N             ranks, each a process (and a GPU with --device cuda) that holds its part of the weights
    --no-expert-parallel   ranks hold a part of every expert, not some experts whole

Ends on SIGTERM or SIGINT. Exit status 0 then, 2 for arguments that cannot be used, 1 when a rank ended by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from structlog.typing import FilteringBoundLogger

from syncline.clock import SystemClock, system_random
from syncline.errors import Rejected
from syncline.logs import LEVELS, logger, set_up_logs
from syncline.metrics import Metrics
from syncline_agent.arm.turns import settle
from syncline_agent.flags import port, seconds, socket_path, whole
from syncline_agent.listening import listen
from syncline_agent.reference.engine import EngineSettings, ReferenceEngine
from syncline_agent.reference.orders import ProcessSettings
from syncline_agent.reference.ranks import ALONE, Others
from syncline_agent.reference.server import EngineServer
from syncline_agent.reference.spawning import RankProcesses

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
        expert_parallel=flags.expert_parallel,
        slots=flags.slots,
        max_len=flags.max_len,
        sweep_interval_s=flags.sweep_interval,
        token_file=flags.token_file,
        instance=f"{randomness.getrandbits(64):016x}",
    )
    log = logger("engine", pool=flags.pool, pod=flags.pod)
    process = ProcessSettings(flags.threads, flags.log_format, flags.log_level)
    end = _End()
    others: Others = ALONE
    try:
        if flags.tp > 1:
            others = RankProcesses(flags.tp, settings, process, lost=end, log=log)
        engine = ReferenceEngine(
            settings, clock=clock, randomness=randomness, metrics=metrics, log=log, others=others, loaded=settle
        )
        server = EngineServer(engine, clock=clock, randomness=randomness, metrics=metrics)
        asyncio.run(_serve(engine, server, host=flags.host, port=flags.port, end=end, log=log))
    except Rejected as error:
        print(f"syncline_agent.reference: {error}", file=sys.stderr)
        others.stop()
        return 2
    if end.lost is None:
        return 0
    print(f"syncline_agent.reference: {end.lost}", file=sys.stderr, flush=True)
    others.stop()
    os._exit(1)  # a thread that waits in a sum for a rank that is gone cannot be joined


class _End:
    """That the engine cannot go on, said from any thread at any time."""

    def __init__(self) -> None:
        self.lost: str | None = None
        self._tell: Callable[[], object] = lambda: None

    def __call__(self, reason: str) -> None:
        self.lost = reason
        self._tell()

    def tell(self, tell: Callable[[], object]) -> None:
        """Call this when it is so."""
        self._tell = tell
        if self.lost is not None:
            tell()


async def _serve(
    engine: ReferenceEngine,
    server: EngineServer,
    *,
    host: str,
    port: int,
    end: _End,
    log: FilteringBoundLogger,
) -> None:
    """Until told to stop, or until the engine cannot go on; then it is left as it is."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # A client that goes away cancels its handler, which then aborts what was being generated for it.
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=GOODBYE_S)
    await runner.setup()
    try:
        log.info("engine listening", address="{}:{}".format(*await listen(runner, host, port)))
        engine.start()
        end.tell(lambda: loop.call_soon_threadsafe(stop.set))
        await stop.wait()
        if end.lost is None:
            await asyncio.to_thread(engine.stop)
    finally:
        await runner.cleanup()
    log.info("engine stopped")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m syncline_agent.reference", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter

    def add(name: str, default: object, text: str, **more: Any) -> None:
        parser.add_argument(name, default=default, help=f"{text} (default %(default)s)", **more)

    parser.add_argument("--checkpoint", type=Path, required=True, help="folder that the agent materialized; waited for")
    parser.add_argument("--socket", type=socket_path, required=True, help="the agent's arm socket")
    parser.add_argument(
        "--token-file", type=Path, help="what the agent knows the arm by (default arm.token beside the socket)"
    )
    add("--host", "127.0.0.1", "address of HTTP")
    add("--port", "0", "port of HTTP; 0 takes a free one and logs it", type=port)
    add("--pool", "default", "the rollout pool; equal to the agent's")
    add("--pod", "pod-0", "this engine's name in the pool")
    add("--model", "syncline-reference", "name in the OpenAI API")
    add("--device", "cpu", "torch device: cpu or cuda")
    add("--tp", "1", "ranks of this engine, each a process that holds its part of the weights", type=whole(1))
    parser.add_argument(
        "--expert-parallel",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="each rank holds some experts whole, in order; with --no-expert-parallel a part of every expert, as of other MLPs",
    )
    add("--threads", "1", "torch threads, of each rank", type=whole(1))
    add("--slots", "32", "sequences that generate at once", type=whole(1))
    parser.add_argument("--max-len", type=whole(1), help="tokens of prompt and answer (default what the model allows)")
    add("--sweep-interval", "600", "seconds between two sweeps of live memory", type=seconds)
    add("--log-format", "console", "console or json", choices=("console", "json"))
    add("--log-level", "info", "least severe event that is logged", choices=tuple(LEVELS))
    return parser


if __name__ == "__main__":
    sys.exit(main())
