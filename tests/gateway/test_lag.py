"""A pool's bounds on lag at a real gateway: by its target file and by flags, while the file changes, breaks and comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from syncline.logs import logger
from syncline_agent.gateway.bounds import NO_BOUNDS, Bounds
from syncline_agent.gateway.pool import PoolPolicy
from syncline_agent.policy import Target, TargetFile
from syncline_agent.testing.lanes import Lane, open_lane, run

ASK = {"model": "m", "prompt": "x", "max_tokens": 4}


async def answer(_: web.Request) -> web.Response:
    choice = {"index": 0, "text": "abcd", "finish_reason": "length"}
    return web.json_response({"id": "cmpl-1", "choices": [choice], "usage": {"completion_tokens": 4}})


async def told(lane: Lane, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The gateway's status, once that is true of it."""
    while True:
        async with lane.http.get("/status") as said:
            status = await said.json()
        if holds(status):
            return status
        await asyncio.sleep(0.01)


def mount(folder: Path, generation: int, **fields: Any) -> Path:
    """The target file as Kubernetes mounts it: a link to a folder that is swapped whole."""
    new = folder / f"..{generation}"
    new.mkdir()
    (new / "target.json").write_text(json.dumps({"run": "demo", "generation": generation, **fields}))
    (folder / "..new").symlink_to(new.name)
    (folder / "..new").rename(folder / "..data")
    path = folder / "target.json"
    if not path.is_symlink():
        path.symlink_to("..data/target.json")
    return path


def test_who_asks_for_nothing_waits_until_the_pool_s_bound_holds_and_is_told_the_lag_otherwise(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_lane(tmp_path, answer, max_version_lag=1, wait_seconds=0.05) as lane:
            assert 200 == (await lane.ask(ASK))[0]
            lane.agent.report.say(target=9, head=9, lag_versions=2, lag_most=3.25, suspended=False)
            await told(lane, lambda status: status["lag_versions"] == 2)
            status, got, headers = await lane.ask(ASK)
            error = got["error"]
            assert (409, "lag_versions", "weight_version", True, 1.0) == (
                status,
                *(error[name] for name in ("code", "param", "retry", "retry_after")),
            )
            assert (7, 9, 2, True) == (
                *(error[n] for n in ("applied", "target", "lag_versions")),
                error["lag_seconds"] > 3,
            )
            assert ("1", "true") == (headers["Retry-After"], headers["x-should-retry"])
            assert (200, 200) == ((await lane.http.get("/readyz")).status, (await lane.http.get("/livez")).status)
            asking = asyncio.create_task(lane.ask(ASK | {"weight_version": {"max_lag": 5, "wait_seconds": 60}}))
            await told(lane, lambda status: status["requests"]["waiting"] == 1)
            assert not asking.done()
            lane.agent.commit(9, spans={})
            status, got, _ = await asking
            assert (200, 9) == (status, got["weight_version"]["start"])

    run(go())


@pytest.mark.parametrize(
    ("settings", "ask", "code"),
    [
        ({"max_lag_seconds": 5.0}, {}, "lag_unknown"),
        ({"max_version_lag": 9}, {}, "lag_unknown"),
        ({}, {"weight_version": {"max_lag_seconds": 5}}, "lag_unknown"),
        ({}, {"weight_version": {"max_lag": 9}}, "lag_unknown"),
        ({}, {}, None),
    ],
)
def test_a_store_that_is_silent_does_not_look_like_no_lag(
    tmp_path: Path, settings: dict[str, Any], ask: dict[str, Any], code: str | None
) -> None:
    async def go() -> None:
        async with open_lane(tmp_path, answer, wait_seconds=0.05, **settings) as lane:
            assert 200 == (await lane.ask(ASK | ask))[0]
            lane.agent.report.say(lag_most=40.0, head_age=40.0, error="the store does not answer")
            await told(lane, lambda status: (status["head_age_seconds"] or 0.0) >= 40.0)
            status, got, _ = await lane.ask(ASK | ask)
            assert (200 if code is None else 409) == status
            if code is not None:
                assert code == got["error"]["code"]
                assert "was last read 40" in got["error"]["message"]
                assert "the store does not answer" in got["error"]["message"]
                assert not got["error"]["lag_versions"]

    run(go())


def test_the_file_s_bounds_hold_in_the_place_of_flags_and_change_while_requests_come(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    path = mount(pool, 1, maxVersionLag=5)

    async def go() -> None:
        async with open_lane(
            tmp_path, answer, target=path, max_version_lag=1, max_lag_seconds=900.0, wait_seconds=0.05
        ) as lane:
            lane.agent.report.say(target=9, head=9, lag_versions=2)
            status = await told(lane, lambda status: status["lag_versions"] == 2)
            assert (1, None, 5, 900.0) == tuple(
                status[n] for n in ("generation", "target_error", "max_version_lag", "max_lag_seconds")
            )
            assert 200 == (await lane.ask(ASK))[0]
            mount(pool, 2, maxVersionLag=1, version={"mode": "Latest"})
            await told(lane, lambda status: status["generation"] == 2)
            assert "lag_versions" == (await lane.ask(ASK))[1]["error"]["code"]
            mount(pool, 3, maxVersionLag="none")
            status = await told(lane, lambda status: status["target_error"] is not None)
            assert "maxVersionLag must be a whole number" in status["target_error"]
            assert "the last good target stays in force" in status["target_error"]
            assert (2, 1) == (status["generation"], status["max_version_lag"])
            assert "lag_versions" == (await lane.ask(ASK))[1]["error"]["code"]
            mount(pool, 4, maxVersionLag=2)
            await told(lane, lambda status: status["generation"] == 4 and status["target_error"] is None)
            assert 200 == (await lane.ask(ASK))[0]

    run(go())


def test_a_look_at_the_file_that_fails_in_an_unforeseen_way_is_said_and_not_the_last(tmp_path: Path) -> None:
    class Starved(TargetFile):
        looks = 0

        def poll(self) -> Target | None:
            self.looks += 1
            if self.looks == 2:
                raise RuntimeError("can't start new thread")
            return super().poll()

    path = tmp_path / "target.json"
    path.write_text('{"run": "demo", "generation": 1, "maxVersionLag": 1}')

    async def go() -> list[tuple[int | None, Bounds | None, bool]]:
        pool = PoolPolicy(Starved(path), NO_BOUNDS, log=logger("gateway"))
        pool.look()
        following = asyncio.create_task(pool.follow())
        seen = []
        for holds in (lambda: pool.error is not None, lambda: pool.generation == 2):
            while not holds():
                await asyncio.sleep(0.01)
            seen.append((pool.generation, pool.bounds, pool.error is None))
            path.write_text('{"run": "demo", "generation": 2}')
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return seen

    assert [(1, Bounds(1), False), (2, NO_BOUNDS, True)] == run(go())


def test_nothing_is_let_in_while_the_pool_s_bounds_were_never_read(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()

    async def go() -> None:
        async with open_lane(tmp_path, answer, target=pool / "target.json", max_version_lag=1) as lane:
            status, got, _ = await lane.ask(ASK)
            assert (503, "no_policy", True) == (status, got["error"]["code"], got["error"]["retry"])
            said = await told(lane, lambda status: True)
            assert (True, None, None) == (said["ready"], said["generation"], said["max_version_lag"])
            assert "cannot be read" in said["target_error"]
            mount(pool, 1)
            said = await told(lane, lambda status: status["generation"] == 1)
            assert (1, None) == (said["max_version_lag"], said["target_error"])
            assert 200 == (await lane.ask(ASK))[0]

    run(go())
