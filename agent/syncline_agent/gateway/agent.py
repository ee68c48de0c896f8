"""The agent as a gateway asks it: `lane/SOCKET.md` in typed values. Decides nothing and remembers nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from syncline.errors import EngineUnavailable
from syncline_agent.engine import Applied, Crossing

QUICK_S = 20.0
"""What the agent answers from memory: it has that long. One that is gone is noticed at once, one that is starved by what it
compiles beside has to be waited for: without it an answer has no label."""
MOST_CONNECTIONS = 64


class AgentSilent(EngineUnavailable):
    """The agent did not answer, or not as its protocol says."""


@dataclass(frozen=True, slots=True)
class State:
    """What the agent serves and is to serve: `GET /v1/state`."""

    run: str | None
    view: str
    applied: Applied | None
    in_service: bool
    target: int | None
    head: int | None
    pinned: bool
    suspended: bool
    error: str | None
    lag_most: float | None = field(default=None, compare=False)
    """Ages are no news: they grow by themselves."""
    head_age: float | None = field(default=None, compare=False)
    epoch: int | None = None
    """The writer's, of what is applied; None where the agent does not know it."""
    newest: int | None = None
    """What head was read to be while the follower was busy with another target."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One commit of the agent's log."""

    seq: int
    crossing: Crossing
    epoch: int | None = None
    """The writer's, of what is applied after it."""


@dataclass(frozen=True, slots=True)
class Entries:
    """A page of the log: `GET /v1/commits`."""

    log: str
    first: int
    last: int
    commits: Sequence[Entry]


class Agent:
    """Asks over the node's `gateway.sock`. AgentSilent from every call that finds nobody there; clients hear it, so it names no folder."""

    def __init__(self, socket: Path) -> None:
        """Within a running loop; `close` in the end."""
        connector = aiohttp.UnixConnector(str(socket), limit=MOST_CONNECTIONS)
        self._socket = socket
        self._http = aiohttp.ClientSession("http://agent", connector=connector)

    async def close(self) -> None:
        await self._http.close()

    async def state(self) -> State:
        return _state(await self._ask("GET", "/v1/state"))

    async def commits(self, after: int, *, wait: int = 0) -> Entries:
        """Those after `after`; waited for where there is none yet."""
        query = {"after": str(after), "wait": str(wait)}
        return _entries(await self._ask("GET", "/v1/commits", query, seconds=QUICK_S + wait))

    async def wake(self) -> None:
        """Have the follower look for a new version at once."""
        await self._ask("POST", "/v1/wake")

    async def pin(self, seconds: float) -> int | None:
        """Keep commits out; None while one is wanted or under way."""
        granted = await self._ask("POST", "/v1/pins", {"seconds": f"{seconds:.3f}"}, refused=409)
        return None if granted is None else int(granted["pin"])

    async def advertise(self, url: str, *, waiting: int, at_engine: int) -> None:
        """Say where this gateway is reached, and its load; for some seconds."""
        await self._ask("PUT", "/v1/gateway", said={"url": url, "waiting": waiting, "at_engine": at_engine})

    async def withdraw(self) -> None:
        """It is not reached there any more."""
        await self._ask("DELETE", "/v1/gateway")

    async def give_back(self, pin: int) -> None:
        await self._ask("DELETE", f"/v1/pins/{pin}")

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        seconds: float = QUICK_S,
        refused: int | None = None,
        said: Mapping[str, Any] | None = None,
    ) -> Any:
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._http.request(method, path, params=query, json=said, timeout=timeout) as answer:
                if answer.status == refused:
                    return None
                if answer.status not in (200, 201, 204):
                    raise AgentSilent(f"the agent at {self._socket.name} answered {method} {path} with {answer.status}")
                return await answer.json() if answer.status != 204 else {}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise AgentSilent(
                f"no agent answers at {self._socket.name} ({type(error).__name__}); start syncline-agent, or give its --node-dir"
            ) from error


def _state(told: Mapping[str, Any]) -> State:
    try:
        return State(
            run=told["run"],
            view=told["view"],
            applied=_applied(told["applied"]),
            in_service=bool(told["in_service"]),
            target=told["target"],
            head=told["head"],
            pinned=told["mode"] == "Pinned",
            suspended=bool(told["suspended"]),
            error=told["error"],
            lag_most=told.get("lag_seconds_most"),
            head_age=told.get("head_age_seconds"),
            epoch=_epoch(told["applied"]),
            newest=told.get("newest_seen"),
        )
    except (KeyError, TypeError) as error:
        raise AgentSilent(f"the agent's state lacks {error}; agent and gateway must be of one release") from error


def _entries(told: Mapping[str, Any]) -> Entries:
    try:
        commits = [Entry(c["seq"], _crossing(c), _epoch(c["after"])) for c in told["commits"]]
        return Entries(told["log"], told["first"], told["last"], commits)
    except (KeyError, TypeError) as error:
        raise AgentSilent(f"the agent's log lacks {error}; agent and gateway must be of one release") from error


def _crossing(told: Mapping[str, Any]) -> Crossing:
    ended = told["ended"]
    return Crossing(
        _applied(told["before"]), _applied(told["after"]), told["spans"], None if ended is None else frozenset(ended)
    )


def _applied(told: Mapping[str, Any] | None) -> Applied | None:
    if told is None:
        return None
    return Applied(told["lineage"], told["view"], told["version"], told["digest"], told["proven"])


def _epoch(told: Mapping[str, Any] | None) -> int | None:
    return None if told is None else told.get("epoch")
