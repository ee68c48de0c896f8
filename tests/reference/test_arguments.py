"""What the reference engine's process says of arguments that it cannot use."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from syncline_agent.reference.__main__ import main


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_port_in_use_ends_the_engine_with_status_2_and_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["--checkpoint", str(tmp_path / "c"), "--socket", str(tmp_path / "s"), "--port", port]
        assert 2 == main(arguments)
    assert f"syncline_agent.reference: cannot listen at 127.0.0.1:{port}: " in capsys.readouterr().err


def test_a_device_that_is_not_one_for_each_rank_ends_the_engine_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--checkpoint", str(tmp_path / "c"), "--socket", str(tmp_path / "s"), "--tp", "2"]
    assert 2 == main([*arguments, "--device", "cuda:1"])
    assert "device cuda:1 is not one for each of 2 ranks; say cpu or cuda" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "value"),
    [("--socket", "/" + "s" * 107), ("--port", "-1"), ("--slots", "0"), ("--sweep-interval", "0")],
)
def test_an_argument_that_cannot_be_used_is_named(
    argument: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--checkpoint", "/c", "--socket", "/s", f"{argument}={value}"])
    assert 2 == ended.value.code
    assert f"argument {argument}: " in capsys.readouterr().err


def test_help_names_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "sequences that generate at once (default 32)" in said
    assert "default None" not in said
