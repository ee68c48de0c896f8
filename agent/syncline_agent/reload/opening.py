"""From an agent's settings to the engine that its follower calls: the arms at its socket, a reload route, or both.

Starts nothing but what must listen before an engine connects.
"""

from __future__ import annotations

from contextlib import ExitStack

import httpx
from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline.errors import Rejected
from syncline_agent.arm.server import ArmServer
from syncline_agent.arm.tables import in_checkpoint
from syncline_agent.engine import Engine, Witness, nobody
from syncline_agent.reload.base import Reloading
from syncline_agent.reload.engine import Place, ReloadEngine
from syncline_agent.reload.fallback import ArmOrReload
from syncline_agent.reload.routes import Routes
from syncline_agent.reload.sglang import SglangReloading
from syncline_agent.reload.vllm import VllmReloading
from syncline_agent.settings import AgentSettings

ENGINES = ("arm", "reload")
KINDS = {"vllm": VllmReloading, "sglang": SglangReloading}


def open_engine(
    settings: AgentSettings, held: ExitStack, *, clock: Clock, witness: Witness = nobody, log: FilteringBoundLogger
) -> Engine:
    """The engine of the settings; what must be let go of in the end is `held`. `witness` is told of every commit."""
    if settings.engine == "reload":
        return _by_route(settings, held, clock=clock, witness=witness, log=log)
    tables = in_checkpoint(settings.node_dir / "checkpoint")
    server = ArmServer(
        settings.socket, pool=settings.pool, token=settings.token, tables=tables, witness=witness, log=log
    )
    arms = held.enter_context(server)
    if settings.engine_url is None:
        return arms
    return ArmOrReload(arms, _by_route(settings, held, clock=clock, witness=witness, log=log), log=log)


def check_engine(engine: str, url: str | None, kind: str) -> None:
    """Rejected, by the flag's name, for what cannot be used together."""
    if engine not in ENGINES:
        raise Rejected(f"--engine {engine} is unknown; it is {' or '.join(ENGINES)}")
    if kind not in KINDS:
        raise Rejected(f"--engine-kind {kind} is unknown; it is {' or '.join(KINDS)}")
    if engine == "reload" and url is None:
        raise Rejected("--engine reload needs --engine-url, where the engine answers")
    try:
        parsed = httpx.URL(url) if url is not None else None
    except httpx.InvalidURL as error:
        raise Rejected(f"--engine-url {url} is no URL: {error}") from error
    if parsed is not None and (parsed.scheme not in ("http", "https") or not parsed.host):
        raise Rejected(f"--engine-url {url} is not http://host:port")


def _by_route(
    settings: AgentSettings, held: ExitStack, *, clock: Clock, witness: Witness, log: FilteringBoundLogger
) -> ReloadEngine:
    assert settings.engine_url is not None  # `check_engine`
    # Proxies of the environment are for what is far away; this engine is on the node.
    client = held.enter_context(httpx.Client(trust_env=False))
    routes = Routes(settings.engine_url, client, key_file=settings.engine_key_file)
    reloading: Reloading = KINDS[settings.engine_kind](routes)
    place = Place(settings.pool, settings.engine_url, settings.node_dir, settings.engine_node_dir)
    return ReloadEngine(reloading, place, clock=clock, witness=witness, log=log)
