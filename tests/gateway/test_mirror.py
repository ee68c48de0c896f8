"""The agent's log as the gateway knows it: asked anew in time, and honest about what it has not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from syncline.clock import SystemClock
from syncline.logs import logger
from syncline_agent.engine import Crossing
from syncline_agent.gateway.agent import Agent
from syncline_agent.gateway.mirror import Mirror, Place
from syncline_agent.lane.commits import CommitLog
from syncline_agent.lane.face import listen_at, make_face
from syncline_agent.testing.lanes import AgentHere


@asynccontextmanager
async def mirrored(here: AgentHere, *, following: bool = False) -> AsyncIterator[Mirror]:
    await here.start()
    agent = Agent(here.socket)
    mirror = Mirror(agent, clock=SystemClock(), state_seconds=0.05, log=logger("gateway"))
    task = asyncio.create_task(mirror.follow()) if following else None
    try:
        yield mirror
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await agent.close()
        await here.stop()


def versions(crossed: Sequence[Crossing] | None) -> list[int] | None:
    return None if crossed is None else [c.after.version for c in crossed if c.after is not None]


def test_what_came_after_a_place_is_known_once_the_agent_was_asked_after_that(tmp_path: Path) -> None:
    async def go() -> None:
        here = AgentHere(tmp_path / "gateway.sock")
        here.find(1)
        async with mirrored(here) as mirror:
            assert await mirror.fresh()
            place = mirror.now
            assert (1, 1) == (place.seq, place.applied and place.applied.version)
            assert [] == versions(mirror.since(place))
            here.commit(2, spans={"r": 1})
            here.commit(3, spans={})
            assert [] == versions(mirror.since(place))
            assert await mirror.fresh()
            assert [2, 3] == versions(mirror.since(place))
            assert [3] == versions(mirror.since(Place(place.log, 2, None)))

    asyncio.run(go())


def test_questions_are_shared_but_never_with_one_that_was_asked_before(tmp_path: Path) -> None:
    async def go() -> None:
        here = AgentHere(tmp_path / "gateway.sock")
        here.find(1)
        async with mirrored(here) as mirror:
            await mirror.fresh()
            place = mirror.now
            first = [asyncio.create_task(mirror.fresh()) for _ in range(50)]
            await asyncio.sleep(0)  # the first question is on its way
            here.commit(2, spans={})
            later = [asyncio.create_task(mirror.fresh()) for _ in range(50)]
            assert all(await asyncio.gather(*later))
            assert [2] == versions(mirror.since(place))
            await asyncio.gather(*first)

    asyncio.run(go())


def test_another_log_and_one_that_went_on_without_this_gateway_leave_a_place_unknown(tmp_path: Path) -> None:
    async def go() -> None:
        here = AgentHere(tmp_path / "gateway.sock")
        here.commits = CommitLog("log-1", most_commits=3)
        for version in (1, 2, 3):
            here.commit(version, spans={})
        async with mirrored(here) as mirror:
            await mirror.fresh()
            place, old = mirror.now, Place("log-1", 1, None)
            assert [2, 3] == versions(mirror.since(old))
            for version in range(4, 9):
                here.commit(version, spans={})
            await mirror.fresh()
            assert (None, None, 8) == (mirror.since(place), mirror.since(old), mirror.now.seq)
            assert [7, 8] == versions(mirror.since(Place("log-1", 6, None)))

            await here.stop()
            assert not await mirror.fresh()
            other = AgentHere(here.socket, "log-2")
            for version in (8, 9):
                other.commit(version, spans={})
            await other.start()
            place = mirror.now
            assert await mirror.fresh()
            assert (None, "log-2", 2) == (mirror.since(place), mirror.now.log, mirror.now.seq)
            assert [9] == versions(mirror.since(Place("log-2", 1, None)))
            await other.stop()

    asyncio.run(go())


@pytest.mark.parametrize(
    "page", ['{"log": "x"}', "[]", "7", '{"log": 1, "first": "1", "last": null, "commits": [{}]}', "{"]
)
def test_an_answer_that_is_none_is_silence_and_the_next_one_is_read(tmp_path: Path, page: str) -> None:
    async def go() -> None:
        here = AgentHere(tmp_path / "gateway.sock")

        async def answer(_: web.Request) -> web.Response:
            return web.Response(text=page, content_type="application/json")

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await listen_at(runner, here.socket)
        agent = Agent(here.socket)
        mirror = Mirror(agent, clock=SystemClock(), state_seconds=0.05, log=logger("gateway"))
        following = asyncio.create_task(mirror.follow())
        assert not await mirror.fresh()
        assert mirror.silence is not None
        await runner.cleanup()
        here.find(1)
        await here.start()
        while mirror.silence is not None or mirror.now.seq != 1:
            await mirror.news(60)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await agent.close()
        await here.stop()

    asyncio.run(go())


def test_news_come_without_asking_and_a_silent_agent_is_noticed_and_its_return(tmp_path: Path) -> None:
    async def go() -> None:
        here = AgentHere(tmp_path / "gateway.sock")
        async with mirrored(here, following=True) as mirror:
            here.find(1)
            while mirror.now.seq != 1 or mirror.state is None or not mirror.state.in_service:
                await mirror.news(60)
            assert mirror.was_proven and mirror.silence is None
            await here.stop()
            while mirror.silence is None:
                await mirror.news(60)
            assert "no agent answers at" in mirror.silence
            await here.start()
            while mirror.silence is not None:
                await mirror.news(60)

    asyncio.run(go())


def test_a_question_that_is_lost_is_asked_again(tmp_path: Path) -> None:
    async def go() -> None:
        here = AgentHere(tmp_path / "gateway.sock")
        here.find(1)
        asked = 0

        @web.middleware
        async def lose_the_first(request: web.Request, handler: Handler) -> web.StreamResponse:
            nonlocal asked
            asked += 1
            return web.Response(status=500) if asked == 1 else await handler(request)

        face = make_face(
            here.report.read,
            here.commits,
            pins=here.pins,
            wake=lambda: None,
            advertising=here.advertising,
            epochs=here.epochs,
        )
        face.middlewares.append(lose_the_first)
        runner = web.AppRunner(face)
        await runner.setup()
        await listen_at(runner, here.socket)
        agent = Agent(here.socket)
        mirror = Mirror(agent, clock=SystemClock(), state_seconds=0.05, log=logger("gateway"))
        assert await mirror.fresh()
        assert (2, 1, None) == (asked, mirror.now.seq, mirror.silence)
        await agent.close()
        await runner.cleanup()

    asyncio.run(go())
