"""The command line: flags and environment, and what cannot be used is said with its name and status 2."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from syncline_agent.gateway.__main__ import parse_settings
from syncline_agent.gateway.routes import Kind
from syncline_agent.gateway.settings import GatewaySettings

GIVEN = ["--engine-url", "http://localhost:8000/", "--node-dir", "node"]


def test_what_is_not_said_has_the_defaults_that_the_code_has() -> None:
    assert GatewaySettings("http://localhost:8000", Kind.VLLM, Path("node/gateway.sock")) == parse_settings(GIVEN, {})


def test_the_environment_says_it_too_and_a_flag_wins() -> None:
    environ = {
        "SYNCLINE_GATEWAY_ENGINE_URL": "http://engine:1",
        "SYNCLINE_GATEWAY_NODE_DIR": "here",
        "SYNCLINE_GATEWAY_ENGINE_KIND": "sglang",
        "SYNCLINE_GATEWAY_OPEN": "/tokenize /detokenize",
        "SYNCLINE_GATEWAY_WAIT_SECONDS": "3",
        "SYNCLINE_GATEWAY_KV_REUSE": "sessions",
        "SYNCLINE_GATEWAY_TARGET": "pool/target.json",
        "SYNCLINE_GATEWAY_MAX_VERSION_LAG": "0",
        "SYNCLINE_PORT": "7",
    }
    told = parse_settings(["--wait-seconds", "4"], environ)
    assert (
        "http://engine:1",
        Path("here/gateway.sock"),
        Kind.SGLANG,
        ("/tokenize", "/detokenize"),
        4.0,
        0,
        "sessions",
        Path("pool/target.json"),
        0,
        None,
    ) == (
        told.engine_url,
        told.socket,
        told.engine_kind,
        told.open_paths,
        told.wait_seconds,
        told.port,
        told.kv_reuse,
        told.target,
        told.max_version_lag,
        told.max_lag_seconds,
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--node-dir", "node"], "--engine-url"),
        (["--engine-url", "localhost:8000", "--node-dir", "node"], "no engine's address"),
        (["--engine-url", "http://h:1/v1", "--node-dir", "node"], "no engine's address"),
        ([*GIVEN, "--engine-kind", "tgi"], "none of vllm, sglang, reference"),
        ([*GIVEN, "--node-dir", "x" * 120], "has at most 107"),
        ([*GIVEN, "--open", "sleep"], "argument --open: 'sleep' is no path"),
        ([*GIVEN, "--port", "70000"], "--port"),
        ([*GIVEN, "--kv-reuse", "always"], "'always' is none of never, sessions"),
        ([*GIVEN, "--pin-seconds", "0"], "--pin-seconds"),
        ([*GIVEN, "--max-version-lag", "-1"], "--max-version-lag"),
        ([*GIVEN, "--max-lag-seconds", "0"], "--max-lag-seconds"),
    ],
)
def test_what_cannot_be_used_is_said_by_its_name(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(flags, {})
    assert 2 == ended.value.code
    assert says in capsys.readouterr().err


def test_a_port_that_is_taken_ends_it_with_2_and_a_message() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "syncline_agent.gateway", *GIVEN, "--port", str(port)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert 2 == ended.returncode
    assert f"syncline-gateway: cannot listen at 127.0.0.1:{port}" in ended.stderr
