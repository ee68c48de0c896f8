"""A gateway that is told its address says it to its agent, with its load, as long as it is there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from syncline_agent.gateway.__main__ import parse_settings
from syncline_agent.lane.advertised import Advertised
from syncline_agent.testing.lanes import AgentHere, open_lane

URL = "http://10.0.0.3:8100"
FLAGS = ["--engine-url", "http://127.0.0.1:1", "--node-dir", "node"]


async def answer(_: web.Request) -> web.Response:
    return web.json_response({})


def test_it_is_said_from_the_beginning_to_the_end(tmp_path: Path) -> None:
    async def go() -> AgentHere:
        async with open_lane(tmp_path, answer, advertise=URL) as lane:
            while lane.agent.advertising.now() is None:
                await asyncio.sleep(0.01)
            assert Advertised(URL, 0, 0) == lane.agent.advertising.now()
            return lane.agent

    assert asyncio.run(go()).advertising.now() is None


def test_a_gateway_that_was_told_none_says_none(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_lane(tmp_path, answer) as lane:
            assert (await lane.ask({"prompt": "x"}))[0] == 200
            assert lane.agent.advertising.now() is None

    asyncio.run(go())


@pytest.mark.parametrize(
    ("given", "taken"), [([], None), (["--advertise", URL + "/"], URL), (["--advertise", "https://[fd00::1]:8100"], "https://[fd00::1]:8100")]
)  # fmt: skip
def test_the_address_is_a_flag(given: list[str], taken: str | None) -> None:
    assert taken == parse_settings([*FLAGS, *given], {}).advertise


def test_the_address_is_in_the_environment_too_and_what_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert URL == parse_settings(FLAGS, {"SYNCLINE_GATEWAY_ADVERTISE": URL}).advertise
    with pytest.raises(SystemExit):
        parse_settings([*FLAGS, "--advertise", "10.0.0.3:8100"], {})
    assert "no address of a gateway" in capsys.readouterr().err
