"""The agent as a process: its settings, its HTTP face, its logs, and the directory that it owns."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.typedefs import Handler

from syncline.clock import ManualClock
from syncline.errors import DigestMismatch, Rejected
from syncline.logs import logger, set_up_logs
from syncline.metrics import Metrics
from syncline_agent.__main__ import main, parse_settings
from syncline_agent.engine import Applied, EngineDescription
from syncline_agent.nodefiles import own_node_dir
from syncline_agent.reporting import Reporter
from syncline_agent.server import make_app
from syncline_agent.status import Identity

USABLE = ["--store", "/s", "--target", "/t", "--node-dir", "/n"]


@pytest.fixture
def log_lines() -> Iterator[io.StringIO]:
    out = io.StringIO()
    yield out
    structlog.reset_defaults()


def test_flags_win_over_the_environment() -> None:
    environ = {
        "SYNCLINE_STORE": "/mirror /origin",
        "SYNCLINE_TARGET": "/t",
        "SYNCLINE_NODE_DIR": "/n",
        "SYNCLINE_POOL": "a",
    }
    settings = parse_settings(["--pool", "b"], environ)
    assert (["/mirror", "/origin"], Path("/t"), "b") == (settings.stores, settings.target, settings.pool)
    assert ["s3://x"] == parse_settings(["--store", "s3://x"], environ).stores


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--target"),
        (["--store", "/s", "--target", "/t"], "--node-dir"),
        ([*USABLE, "--node", "Not A Name"], "node"),
        ([*USABLE, "--poll-seconds", "soon"], "--poll-seconds"),
        ([*USABLE, "--poll-seconds", "0"], "--poll-seconds"),
        ([*USABLE, "--heartbeat-seconds", "nan"], "--heartbeat-seconds"),
        ([*USABLE, "--port", "65536"], "--port"),
        ([*USABLE, "--fetch-workers", "0"], "--fetch-workers"),
        ([*USABLE, "--node-dir", "/" + "n" * 120], "--node-dir"),
    ],
)
def test_settings_that_cannot_be_used_end_with_status_2_and_a_name(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(arguments, {})
    assert 2 == ended.value.code
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_a_variable_that_cannot_be_used_ends_with_its_flag_s_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(USABLE, {"SYNCLINE_PORT": "http"})
    assert "argument --port: 'http' is not a whole number" in capsys.readouterr().err


def test_help_names_the_defaults_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(["--help"], {})
    said = " ".join(capsys.readouterr().out.split())
    assert "how often head is polled (SYNCLINE_POLL_SECONDS, default 1.0)" in said


def test_a_port_in_use_ends_the_agent_with_status_2_and_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log_lines: io.StringIO
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert 2 == main([*usable(tmp_path), "--port", port])
    assert f"syncline-agent: cannot listen at 127.0.0.1:{port}: " in capsys.readouterr().err
    own_node_dir(tmp_path / "n").close()  # it was let go of


@pytest.mark.parametrize("in_the_way", ["n", "n/chunks", "n/arm.sock/x"])
def test_a_node_directory_that_cannot_be_used_is_named_with_its_flag(
    tmp_path: Path, in_the_way: str, capsys: pytest.CaptureFixture[str], log_lines: io.StringIO
) -> None:
    (tmp_path / in_the_way).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / in_the_way).write_text("a file")
    assert 2 == main(usable(tmp_path))
    assert f"syncline-agent: --node-dir {tmp_path / 'n'} cannot be used: " in capsys.readouterr().err


def usable(folder: Path) -> list[str]:
    return ["--store", str(folder / "store"), "--target", str(folder / "target"), "--node-dir", str(folder / "n")]


def test_a_node_directory_has_one_agent(tmp_path: Path) -> None:
    owned = own_node_dir(tmp_path / "n")
    with pytest.raises(Rejected, match="belongs to an agent"):
        own_node_dir(tmp_path / "n")
    owned.close()
    own_node_dir(tmp_path / "n").close()


@pytest.mark.asyncio
async def test_readiness_is_proof_and_nothing_else() -> None:
    metrics = Metrics()
    reporter = Reporter(Identity("c", "ns", "p", "n"), metrics)
    app = make_app(
        reporter.read,
        heartbeats=lambda: "on",
        alive=lambda: True,
        sweep=lambda: Applied("ab" * 16, "main", 7, "cd" * 16, True),
        registry=metrics.registry,
    )
    async with TestClient(TestServer(app)) as client:
        assert 503 == (await client.get("/readyz")).status
        assert 200 == (await client.get("/livez")).status
        applied = Applied("ab" * 16, "main", 7, "cd" * 16, True)
        reporter.say(run="r", applied=applied, in_service=True, lag_versions=90, lag_seconds=1e4, error="store is down")
        answer = await client.get("/readyz")
        assert (200, "proven: version 7\n") == (answer.status, await answer.text())
        reporter.say(engine=EngineDescription("vllm", "p", "pod", 1, applied, second="pod has two engines"))
        answer = await client.get("/readyz")
        assert (200, "proven: version 7; pod has two engines\n") == (answer.status, await answer.text())
        engine = (await (await client.get("/status")).json())["engine"]
        assert "pod has two engines" == engine["error"]
        body = await (await client.get("/status")).json()
        assert (7, True, 90, "store is down") == (
            body["applied"]["version"],
            body["in_service"],
            body["lag_versions"],
            body["error"],
        )
        text = await (await client.get("/metrics")).text()
        assert 'syncline_applied_version{node="n",pool="p",run="r",view="main"} 7.0' in text
        assert 'syncline_proven{node="n",pool="p",run="r",view="main"} 1.0' in text
        assert 7 == (await (await client.post("/verify")).json())["version"]
        reporter.say(applied=replace(applied, proven=False), in_service=False)
        assert 503 == (await client.get("/readyz")).status
        unproven = EngineDescription("vllm", "p", "pod", 1, applied, reloads=True, unprovable="it repacks f.down")
        reporter.say(applied=replace(applied, proven=False), engine=unproven, in_service=True)
        answer = await client.get("/readyz")
        served = "served unproven: version 7 (--serve-unproven yes): it repacks f.down\n"
        assert (200, served) == (answer.status, await answer.text())


@pytest.mark.asyncio
async def test_who_asks_to_verify_while_a_sweep_runs_gets_its_answer() -> None:
    metrics = Metrics()
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def sweep() -> Applied:
        begun.release()
        assert go_on.acquire(timeout=10)
        return Applied("ab" * 16, "main", 7, "cd" * 16, True)

    app = make_app(
        Reporter(Identity("c", "ns", "p", "n"), metrics).read,
        heartbeats=lambda: "on",
        alive=lambda: True,
        sweep=sweep,
        registry=metrics.registry,
    )
    heard: list[str] = []

    @web.middleware
    async def hear(request: web.Request, handler: Handler) -> web.StreamResponse:
        heard.append(request.path)
        return await handler(request)

    app.middlewares.append(hear)
    async with TestClient(TestServer(app)) as client:
        asked = [asyncio.create_task(client.post("/verify")) for _ in range(8)]
        assert await asyncio.to_thread(begun.acquire, timeout=10)
        while heard.count("/verify") < 8:
            await asyncio.sleep(0.01)
        go_on.release()
        assert [7] * 8 == [(await (await answer).json())["version"] for answer in asked]
        assert not begun.acquire(blocking=False)
        go_on.release()
        assert 200 == (await client.post("/verify")).status
        assert begun.acquire(blocking=False)  # what comes later is swept for anew


@pytest.mark.asyncio
async def test_liveness_is_the_followers_thread() -> None:
    metrics = Metrics()
    reporter = Reporter(Identity("c", "ns", "p", "n"), metrics)

    def damaged() -> Applied:
        raise DigestMismatch("live bits of layers.0.weight are not those of version 7")

    app = make_app(
        reporter.read, heartbeats=lambda: "on", alive=lambda: False, sweep=damaged, registry=metrics.registry
    )
    async with TestClient(TestServer(app)) as client:
        assert 500 == (await client.get("/livez")).status
        answer = await client.post("/verify")
        assert 409 == answer.status
        assert "layers.0.weight" in (await answer.json())["error"]["message"]


def test_logs_are_one_json_object_a_line_with_their_fields(log_lines: io.StringIO) -> None:
    set_up_logs(log_format="json", level="info", clock=ManualClock(1_700_000_000.25), stream=log_lines)
    log = logger("agent", node="n")
    log.debug("not shown")
    log.info("committed", run="r", version=7, phase="Commit")
    (line,) = log_lines.getvalue().splitlines()
    assert {
        "component": "agent",
        "event": "committed",
        "level": "info",
        "node": "n",
        "phase": "Commit",
        "run": "r",
        "time": "2023-11-14T22:13:20.250Z",
        "version": 7,
    } == json.loads(line)


def test_logs_for_a_console_are_readable_lines(log_lines: io.StringIO) -> None:
    set_up_logs(log_format="console", clock=ManualClock(), stream=log_lines)
    logger("agent").warning("failed", reason="StoreUnavailable")
    assert "failed" in log_lines.getvalue()
    assert "reason=StoreUnavailable" in log_lines.getvalue()


@pytest.mark.parametrize(("log_format", "level"), [("xml", "info"), ("json", "loud")])
def test_an_unknown_way_to_log_is_refused(log_format: str, level: str) -> None:
    with pytest.raises(ValueError, match=r"neither|none of"):
        set_up_logs(log_format=log_format, level=level)
