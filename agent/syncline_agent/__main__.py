"""`syncline-agent`: follow a run on this node and keep the engine at its socket on the target version.

Every flag can be given as `SYNCLINE_<FLAG>` in the environment; a flag wins. Exit status: 0 after SIGTERM or SIGINT,
2 for settings that cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock, SystemClock, system_random
from syncline.errors import Rejected, SynclineError
from syncline.logs import LEVELS, logger, set_up_logs
from syncline.metrics import Metrics
from syncline.store.keys import checked_name
from syncline.store.open import open_store
from syncline_agent.flags import check_socket_path, port, seconds, whole, yes_or_no
from syncline_agent.heartbeat import HeartSettings
from syncline_agent.lane.commits import CommitLog
from syncline_agent.nodefiles import own_node_dir
from syncline_agent.process import STORE_PATIENCE, Node, open_sources, serve
from syncline_agent.reload.opening import check_engine, open_engine
from syncline_agent.settings import AgentSettings, FollowSettings


def parse_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> AgentSettings:
    """Settings from flags and environment. Exits with status 2, as argparse does, for what cannot be used."""
    parser = argparse.ArgumentParser(prog="syncline-agent", description=__doc__.splitlines()[0] if __doc__ else None)

    def flag(name: str, default: str | None, text: str, **more: Any) -> None:
        variable = f"SYNCLINE_{name.upper().replace('-', '_')}"
        given = environ.get(variable, default)
        shown = f"{text} ({variable}{f', default {default}' if default else ''})"
        parser.add_argument(f"--{name}", default=given, required=given is None and name in REQUIRED, help=shown, **more)

    stores = environ.get("SYNCLINE_STORE", "").split()
    parser.add_argument(
        "--store", action="append", default=None, required=not stores, metavar="URL",
        help="store of the run; given twice: first the mirror, then the origin (SYNCLINE_STORE, separated by spaces)",
    )  # fmt: skip
    flag("target", None, "the watched file that says what to serve", metavar="FILE")
    flag("node-dir", None, "folder of this node: chunks, checkpoint and the arm's socket", metavar="DIR")
    flag(
        "distributor",
        None,
        "the run's distributor, where it is in reach: new versions are heard of at once",
        metavar="URL",
    )
    flag("consumers-store", None, "store for heartbeats and leases; the last --store unless given", metavar="URL")
    for name, default in (("cluster", "local"), ("namespace", "default"), ("pool", "default"), ("node", "node-0")):
        flag(name, default, f"name of this {name} in heartbeats and metrics")
    flag("engine", "arm", "how versions come into the engine: arm (in place) or reload (its own reload route)")
    flag("engine-url", None, "where the engine's routes answer; with arm: taken where it refuses", metavar="URL")
    flag("engine-kind", "vllm", "whose routes those are: vllm or sglang")
    flag("engine-node-dir", None, "the node directory as the engine sees it, where that differs", metavar="DIR")
    flag("engine-key-file", None, "a file with the bearer token that the engine's routes ask for", metavar="FILE")
    flag(
        "serve-unproven",
        "no",
        "yes: an engine whose weights cannot be proven from outside counts as in service",
        type=yes_or_no,
    )
    flag("host", "127.0.0.1", "address of /status, /metrics, /readyz and /livez")
    flag("port", "0", "their port; 0 takes a free one and logs it", type=port)
    flag(
        "token", "", "what an arm must present; empty: what stands in arm.token of --node-dir, made if it is not there"
    )
    flag("poll-seconds", "1.0", "how often head is polled", type=seconds)
    flag("heartbeat-seconds", "15", "how often the heartbeat is written", type=seconds)
    flag("fetch-workers", "4", "chunks fetched at once", type=whole(1))
    flag("advance-every", "8", "the node checkpoint follows at most so many versions behind", type=whole(1))
    flag("log-format", "console", "console or json", choices=["console", "json"])
    flag("log-level", "info", "least severe event that is logged", choices=list(LEVELS))
    given = parser.parse_args(arguments)
    try:
        check_engine(given.engine, given.engine_url, given.engine_kind)
        settings = AgentSettings(
            stores=given.store or stores,
            target=Path(given.target),
            node_dir=Path(given.node_dir),
            cluster=checked_name(given.cluster, "cluster"),
            namespace=checked_name(given.namespace, "namespace"),
            pool=checked_name(given.pool, "pool"),
            node=checked_name(given.node, "node"),
            host=given.host,
            port=given.port,
            distributor=given.distributor,
            consumers_store=given.consumers_store,
            fetch_workers=given.fetch_workers,
            engine=given.engine,
            engine_url=given.engine_url,
            engine_kind=given.engine_kind,
            engine_node_dir=Path(given.engine_node_dir) if given.engine_node_dir else None,
            engine_key_file=Path(given.engine_key_file) if given.engine_key_file else None,
            token=given.token,
            log_format=given.log_format,
            log_level=given.log_level,
            follow=FollowSettings(
                poll_seconds=given.poll_seconds,
                advance_every=given.advance_every,
                serve_unproven=given.serve_unproven,
            ),
            heart=HeartSettings(every_seconds=given.heartbeat_seconds, ttl_seconds=6 * given.heartbeat_seconds),
        )
        check_socket_path(settings.gateway_socket)  # the longer of the two
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --node-dir: {error}")
    except (ValueError, SynclineError) as error:
        parser.error(str(error))
    return settings


REQUIRED = ("target", "node-dir")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script."""
    settings = parse_settings(sys.argv[1:] if arguments is None else arguments, os.environ)
    clock, metrics = SystemClock(), Metrics()
    set_up_logs(log_format=settings.log_format, level=settings.log_level, clock=clock)
    log = logger("agent", pool=settings.pool, node=settings.node)
    try:
        with ExitStack() as held:
            randomness = system_random()
            commits = CommitLog(f"{randomness.getrandbits(64):016x}")
            node = _node(settings, held, clock=clock, random=randomness, metrics=metrics, commits=commits, log=log)
            asyncio.run(serve(settings, node, commits, metrics, log))
    except Rejected as error:
        print(f"syncline-agent: {error}", file=sys.stderr)
        return 2
    return 0


def _node(
    settings: AgentSettings,
    held: ExitStack,
    *,
    clock: Clock,
    random: random.Random,
    metrics: Metrics,
    commits: CommitLog,
    log: FilteringBoundLogger,
) -> Node:
    """The node's parts; what must be let go of in the end is `held`. Rejected for settings that cannot be used."""
    try:
        sources = open_sources(settings, clock=clock, metrics=metrics)
        consumers = (
            open_store(settings.consumers_store, clock=clock, metrics=metrics, policy=STORE_PATIENCE)
            if settings.consumers_store
            else sources[-1].store
        )
    except (SynclineError, OSError) as error:
        raise Rejected(str(error)) from error
    try:
        held.enter_context(closing(own_node_dir(settings.node_dir)))
        engine = open_engine(settings, held, clock=clock, witness=commits.note, log=log)
        return Node(
            settings,
            engine,
            sources=sources,
            consumers=consumers,
            clock=clock,
            random=random,
            metrics=metrics,
            log=log,
            workers=settings.fetch_workers,
        )
    except (SynclineError, OSError) as error:
        raise Rejected(f"--node-dir {settings.node_dir} cannot be used: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
