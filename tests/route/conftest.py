"""A fleet of real gateways in one event loop, before engines whose answers are the test's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from syncline.clock import SystemClock
from syncline.logs import logger
from syncline.route import Fleet, FleetSettings, Listed
from syncline.route.roster import RosterSettings
from syncline_agent.testing.lanes import Lane, open_lane

QUICK = FleetSettings(wait_seconds=60.0, roster=RosterSettings(members_seconds=0.1, look_seconds=0.05))


def completion(text: str) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}
    return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


@dataclass
class Here:
    """Gateways by name, and a fleet of them."""

    lanes: dict[str, Lane]
    fleet: Fleet
    asked: list[str] = field(default_factory=list[str])
    """Which engine got each request."""

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Until the fleet knows that of each replica."""
        while not all(holds(row) for row in self.fleet.table()):
            await asyncio.sleep(0.01)


Answers = dict[str, Callable[[web.Request], Any]]


@pytest.fixture
def open_here(tmp_path: Path) -> Callable[..., Any]:
    """`async with open_here({"a": 7, "b": 6}) as here`: names and what each serves."""

    @asynccontextmanager
    async def make(
        serves: dict[str, int | None],
        *,
        answers: Answers | None = None,
        settings: FleetSettings = QUICK,
        more: tuple[str, ...] = (),
    ) -> AsyncIterator[Here]:
        async with AsyncExitStack() as held:
            asked: list[str] = []

            def answer_of(name: str) -> Callable[[web.Request], Any]:
                async def answer(request: web.Request) -> web.StreamResponse:
                    asked.append(name)
                    given = (answers or {}).get(name)
                    return web.json_response(completion(name)) if given is None else await given(request)

                return answer

            lanes = {
                name: await held.enter_async_context(
                    open_lane(_folder(tmp_path, name), answer_of(name), serves=version)
                )
                for name, version in serves.items()
            }
            source = Listed([*(lane.url for lane in lanes.values()), *more])
            fleet = Fleet(source, settings, clock=SystemClock(), randomness=random.Random(1), log=logger("route"))
            await held.enter_async_context(fleet)
            yield Here(lanes, fleet, asked)

    return make


def _folder(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    return folder
