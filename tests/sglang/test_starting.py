"""A server that runs is told to arm its ranks, if it was started so that it can be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from syncline.errors import EngineUnavailable, LayoutRefused
from syncline.testing.engine_routes import Reply
from syncline.testing.sglang_routes import SglangStandIn
from syncline_agent.reload.routes import Routes
from syncline_agent.sglang.__main__ import main
from syncline_agent.sglang.loader import NAME
from syncline_agent.sglang.placement import start_of
from syncline_agent.sglang.starting import arm_server


@pytest.fixture
def server() -> Iterator[SglangStandIn]:
    with SglangStandIn(ranks=2) as server:
        server.custom_loaders = {NAME: lambda: None}
        yield server


@pytest.fixture
def routes(server: SglangStandIn) -> Iterator[Routes]:
    with httpx.Client(trust_env=False) as client:
        yield Routes(server.url, client)


def test_each_rank_calls_the_loader_within_a_session(server: SglangStandIn, routes: Routes) -> None:
    arm_server(routes)
    assert (2, False, False) == (server.custom_calls, server.session, server.died)
    assert 0 == main([server.url])


def test_a_server_without_sessions_is_called_without(server: SglangStandIn, routes: Routes) -> None:
    for path in ("/begin_weight_update", "/end_weight_update"):
        del server.routes["POST", path]
    server.session = True  # it asks for none
    arm_server(routes)
    assert 2 == server.custom_calls


def test_a_server_that_was_not_started_with_the_loader_is_left_alone(
    server: SglangStandIn, routes: Routes, capsys: pytest.CaptureFixture[str]
) -> None:
    server.custom_loaders = {"another.loader": lambda: None}
    with pytest.raises(LayoutRefused, match=f"without --custom-weight-loader {NAME}"):
        arm_server(routes)
    assert ([], False) == (server.paths, server.died)
    assert 2 == main([server.url])
    assert "without --custom-weight-loader" in capsys.readouterr().err


def test_a_session_is_ended_when_the_call_failed(server: SglangStandIn, routes: Routes) -> None:
    server.breaks["/update_weights_from_tensor"] = lambda _: Reply(400, {"success": False, "message": "no"})
    with pytest.raises(EngineUnavailable, match="400: no"):
        arm_server(routes)
    assert not server.session


def test_a_session_of_somebody_else_is_not_ended(server: SglangStandIn, routes: Routes) -> None:
    server.session = True
    with pytest.raises(EngineUnavailable, match="already open"):
        arm_server(routes)
    assert server.session


def test_what_is_no_sglang_server_is_said(server: SglangStandIn, routes: Routes) -> None:
    server.routes["GET", "/server_info"] = lambda _: Reply(200, {})
    with pytest.raises(EngineUnavailable, match="is it an SGLang server"):
        arm_server(routes)


def test_a_start_is_named_by_the_process_that_launched_it_and_by_when_that_began(tmp_path: Path) -> None:
    def named(launcher: int, stat: str) -> str | None:
        (tmp_path / str(launcher)).mkdir(exist_ok=True)
        (tmp_path / str(launcher) / "stat").write_text(stat, "utf-8")
        return start_of(launcher, tmp_path)

    fields = " ".join(map(str, range(3, 53)))  # the third field on, each its own number
    assert "7-22" == named(7, f"7 (sglang ) (x) {fields}")
    assert "8-22" == named(8, f"8 (sglang) {fields}")
    assert (None, None) == (named(9, "9 (sglang) S 1"), start_of(10, tmp_path))
    assert start_of(os.getpid()) == start_of(os.getpid()) != start_of(os.getppid())
