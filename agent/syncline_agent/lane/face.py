"""What the agent tells a gateway beside the engine, over HTTP on a Unix socket in the node directory: SOCKET.md.

Nothing here decides what is served: a gateway can have the follower look at once, and hold a commit back for a bounded time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from syncline.errors import Rejected
from syncline.wire.records import is_gateway_url
from syncline_agent.engine import Applied
from syncline_agent.lane.advertised import Advertised, Advertising
from syncline_agent.lane.commits import CommitLog, Noted, Page
from syncline_agent.lane.epochs import Epochs
from syncline_agent.lane.pins import MOST_PIN_S, Pins
from syncline_agent.status import Status, ages

SOCKET_MODE = 0o660
MOST_WAIT_S = 60.0


def make_face(
    status: Callable[[], Status],
    commits: CommitLog,
    *,
    pins: Pins,
    wake: Callable[[], None],
    advertising: Advertising,
    epochs: Epochs,
) -> web.Application:
    """Routes over what is handed in; starts nothing. `wake` has the follower look at once."""

    async def show_state(_request: web.Request) -> web.Response:
        return web.json_response(_state(status(), commits, epochs))

    async def show_commits(request: web.Request) -> web.Response:
        try:
            after = _number(request.query, "after", 0)
            wait_s = min(_number(request.query, "wait", 0), MOST_WAIT_S)
        except ValueError as error:
            return _refused(400, str(error))
        page = await _page(commits, after, wait_s)
        return web.json_response(
            {
                "log": page.log,
                "first": page.first,
                "last": page.last,
                "commits": [_commit(noted, epochs) for noted in page.commits],
            }
        )

    async def look(_request: web.Request) -> web.Response:
        wake()
        return web.Response(status=204)

    async def pin(request: web.Request) -> web.Response:
        seconds = _seconds(request.query.get("seconds", ""))
        if seconds is None:
            return _refused(400, f"seconds must be a number above 0; at most {MOST_PIN_S:g} are granted")
        granted = pins.grant(seconds)
        if granted is None:
            return _refused(409, "a commit is wanted or under way; ask again when it is over")
        return web.json_response({"pin": granted, "seconds": min(seconds, MOST_PIN_S)}, status=201)

    async def give_back(request: web.Request) -> web.Response:
        pins.give_back(int(request.match_info["pin"]))
        return web.Response(status=204)

    async def advertise(request: web.Request) -> web.Response:
        try:
            said = _advertised(await request.json())
        except (ValueError, KeyError, TypeError):
            return _refused(400, "give url (http://host:port), and waiting and at_engine as counts")
        advertising.hear(said)
        return web.Response(status=204)

    async def withdraw(_request: web.Request) -> web.Response:
        advertising.forget()
        return web.Response(status=204)

    app = web.Application()
    app.router.add_get("/v1/state", show_state)
    app.router.add_get("/v1/commits", show_commits)
    app.router.add_post("/v1/wake", look)
    app.router.add_post("/v1/pins", pin)
    app.router.add_delete(r"/v1/pins/{pin:\d{1,18}}", give_back)
    app.router.add_put("/v1/gateway", advertise)
    app.router.add_delete("/v1/gateway", withdraw)
    return app


async def listen_at(runner: web.AppRunner, path: Path) -> None:
    """Answer at `path` from here on; what another agent left there is removed. Rejected where no socket can be made."""
    path.unlink(missing_ok=True)
    try:
        await web.UnixSite(runner, str(path)).start()
        path.chmod(SOCKET_MODE)
    except OSError as error:
        raise Rejected(
            f"cannot listen at {path}: {error.strerror or error}; give a shorter, writable --node-dir"
        ) from error


async def _page(commits: CommitLog, after: int, wait_s: float) -> Page:
    """What comes after `after`, waited for if there is nothing yet."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        try:
            loop.call_soon_threadsafe(news.set)
        except RuntimeError:
            pass  # the loop has ended, and with it whoever waited

    leave = commits.listen(tell)
    try:
        page = commits.since(after)
        if page.last == after and wait_s > 0:  # who names a later one has read another log, and is told at once
            try:
                await asyncio.wait_for(news.wait(), wait_s)
            except TimeoutError:
                pass
            page = commits.since(after)
        return page
    finally:
        leave()


def _refused(status: int, message: str) -> web.Response:
    kind = "Rejected" if status == 400 else "Retryable"
    return web.json_response({"error": {"type": kind, "message": message}}, status=status)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ValueError(f"{name}={text[:40]} is no whole number")
    return int(text)


def _advertised(told: Any) -> Advertised:
    """ValueError, KeyError or TypeError for what is no such thing."""
    waiting, at_engine = told["waiting"], told["at_engine"]
    if not is_gateway_url(told["url"]) or any(type(n) is not int or not 0 <= n < 2**31 for n in (waiting, at_engine)):
        raise ValueError
    return Advertised(told["url"], waiting, at_engine)


def _state(status: Status, commits: CommitLog, epochs: Epochs) -> dict[str, Any]:
    page = commits.since(2**62)
    engine = status.engine
    return {
        "log": page.log,
        "last": page.last,
        "run": status.run,
        "view": status.view,
        "lineage": status.lineage,
        "pool": status.identity.pool,
        "node": status.identity.node,
        "pod": None if engine is None else engine.pod,
        "mode": status.mode.value,
        "policy": status.policy.value,
        "suspended": status.suspended,
        "head": status.head,
        "target": status.target,
        "applied": _applied(status.applied, epochs),
        "in_service": status.in_service,
        "lag_versions": status.lag_versions,
        "lag_seconds": round(status.lag_seconds, 3),
        **ages(status),
        "error": status.error,
    }


def _applied(held: Applied | None, epochs: Epochs) -> dict[str, Any] | None:
    return None if held is None else asdict(held) | {"epoch": epochs.of(held)}


def _commit(noted: Noted, epochs: Epochs) -> dict[str, Any]:
    crossing = noted.crossing
    return {
        "seq": noted.seq,
        "before": _applied(crossing.before, epochs),
        "after": _applied(crossing.after, epochs),
        "spans": None if crossing.spans is None else dict(crossing.spans),
        "ended": None if crossing.ended is None else list(crossing.ended),
    }
