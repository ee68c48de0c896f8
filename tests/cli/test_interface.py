"""What scripts lean on: exit codes, one document on standard output, logs elsewhere, and a page that says so."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.main import get_command

from syncline import errors
from syncline.errors import SynclineError
from syncline.store.local import LocalStore
from syncline.store.open import open_store
from syncline.store.retrying import RetryPolicy
from syncline_cli import __main__, context, history
from syncline_cli.__main__ import app
from syncline_cli.output import EXIT_CODES, EXIT_DIFFERENT, EXIT_FAULT, exit_code
from syncline_cli.voice import speak_plainly

Call = Callable[..., Any]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def tree(kind: type[SynclineError] = SynclineError) -> Iterator[type[SynclineError]]:
    """Every error of the library, the root left out."""
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield below
            yield from tree(below)


def of(kind: type[SynclineError]) -> SynclineError:
    """One such error, whatever its constructor takes."""
    return kind.__new__(kind)


def commands() -> dict[str, Any]:
    """Every command by its words."""
    found: dict[str, Any] = {}

    def walk(words: str, command: Any) -> None:
        below = getattr(command, "commands", None)
        if below is None:
            found[words] = command
        else:
            for name, inner in below.items():
                walk(f"{words} {name}".strip(), inner)

    walk("", get_command(app))
    return found


# --- exit codes


@pytest.mark.parametrize("kind", list(tree()), ids=lambda kind: kind.__name__)
def test_every_error_has_exactly_one_exit_code(kind: type[SynclineError]) -> None:
    codes = [code for branch, code in EXIT_CODES if issubclass(kind, branch)]
    assert [exit_code(of(kind))] == codes


def test_exit_codes_of_branches_are_what_the_page_says() -> None:
    rows = re.findall(r"^\| (\d+) \| (?:`(\w+)`)?", PAGE, re.MULTILINE)
    named = {name: int(code) for code, name in rows if name}
    assert {kind.__name__: code for kind, code in EXIT_CODES} == named
    plain = {int(code) for code, name in rows if not name}
    assert {0, EXIT_FAULT, 2, EXIT_DIFFERENT, 130} == plain


@pytest.mark.parametrize(("kind", "code"), [(errors.Fenced, 6), (errors.EngineUncertain, 7)])
def test_an_error_from_below_ends_the_command_with_its_code(
    syncline: Call, run: Any, monkeypatch: pytest.MonkeyPatch, kind: type[SynclineError], code: int
) -> None:
    def fail(*_: object) -> None:
        raise kind("what happened; what to do")

    monkeypatch.setattr(history, "_who_is_there", fail)
    ended = syncline("log", *run.options, "--json")
    assert (code, "error: what happened; what to do\n") == (ended.code, ended.err)
    assert {"error": {"type": kind.__name__, "message": "what happened; what to do"}} == ended.document


def test_a_fault_of_our_own_asks_to_be_reported(syncline: Call, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_who_is_there", lambda _: 1 // 0)
    ended = syncline("log", *run.options, "--json")
    assert (1, "ZeroDivisionError") == (ended.code, ended.document["error"]["type"])
    assert "Traceback" in ended.err and "please report it" in ended.err


def test_a_full_disk_is_to_be_tried_again_and_other_refusals_are_not() -> None:
    assert 3 == exit_code(__main__.of_the_machine(OSError(28, "No space left on device", "/full")))
    refused = __main__.of_the_machine(PermissionError(13, "Permission denied", "/mine"))
    assert (8, "Permission denied: /mine; check the path and its permissions") == (exit_code(refused), str(refused))


def test_a_run_that_does_not_exist_ends_with_8(syncline: Call, run: Any) -> None:
    for command in (["log"], ["show", 1], ["diff", 1, 2], ["verify", "store"], ["gc"], ["mark-bad", 1]):
        ended = syncline(*command, "--store", run.folder, "--run", "typo", "--json")
        assert (8, "NotFound") == (ended.code, ended.document["error"]["type"])
        assert (
            f"run typo in {run.folder} does not exist; check the run name (--run); the store holds demo\n" in ended.err
        )


def test_a_store_that_does_not_exist_is_named(syncline: Call, tmp_path: Path) -> None:
    ended = syncline("log", "--store", tmp_path / "nope", "--run", "demo")
    assert 8 == ended.code
    told = f"run demo in {tmp_path / 'nope'} does not exist; nothing was ever published there: the store is empty"
    assert told in ended.err
    assert not (tmp_path / "nope").exists()


def test_a_store_with_many_runs_names_the_first_of_them(syncline: Call, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    for number in range(12):
        store.put_if_absent(f"run-{number:02}/run.json", b"{}")
        store.put_if_absent(f"run-{number:02}/main/versions/000000000001.json", b"{}")
    ended = syncline("log", "--store", tmp_path / "store", "--run", "demo")
    assert "the store holds run-00, run-01, " in ended.err
    assert "run-09 and 2 more\n" in ended.err


def test_a_store_that_is_down_ends_with_3(syncline: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"s3://bucket/prefix?endpoint=http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("SYNCLINE_S3_ACCESS_KEY", "testkey")
        monkeypatch.setenv("SYNCLINE_S3_SECRET_KEY", "testsecret123")
        monkeypatch.setenv("SYNCLINE_STORE", url)
        monkeypatch.setenv("SYNCLINE_RUN", "demo")
        short = RetryPolicy(deadline_s=0.2)
        monkeypatch.setattr(context, "open_store", lambda url, policy: open_store(url, policy=short))
        ended = syncline("log", "--json")
    assert (3, "StoreUnavailable") == (ended.code, ended.document["error"]["type"])


@pytest.mark.parametrize(
    "words",
    [
        ["log"],
        ["frobnicate"],
        ["show", "zero", "--store", "s", "--run", "r"],
        ["show", "0", "--store", "s", "--run", "r"],
        ["log", "--store", "s", "--run", "r", "-n", "0"],
        ["demo", "--store", "s4"],
        ["demo", "--steps", "0"],
        ["verify"],
        ["verify", "replica", "127.0.0.1:9401", "--store", "s", "--run", "r"],
        ["verify", "replica", "ftp://host", "--store", "s", "--run", "r"],
        ["verify", "replica", "http://[host", "--store", "s", "--run", "r"],
        ["verify", "replica", "http://host:port", "--store", "s", "--run", "r"],
    ],
)
def test_a_wrong_command_line_ends_with_2(syncline: Call, words: list[str]) -> None:
    ended = syncline(*words)
    assert 2 == ended.code
    assert "Usage" in ended.err + ended.out


def test_a_store_of_no_known_kind_is_refused(syncline: Call) -> None:
    ended = syncline("log", "--store", "gs://bucket", "--run", "r")
    assert 8 == ended.code
    assert "known are file, s3" in ended.err


def test_a_fault_in_the_librarys_log_keeps_its_traceback_and_steers_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    speak_plainly()
    log = structlog.get_logger().bind(run="demo", view="main")
    log.info("nobody asked")
    try:
        raise ValueError("odd")
    except ValueError:
        log.exception("tick broke", machine="a\x1b[2J", error="why")
    structlog.reset_defaults()
    told, *trace = capsys.readouterr().err.splitlines()
    assert "error: tick broke (machine a\N{REPLACEMENT CHARACTER}[2J): why" == told
    assert "ValueError: odd" == trace[-1]


def test_what_takes_long_is_told_in_a_line_when_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    speak_plainly()
    log = logging.getLogger("syncline.kernels.compiling")
    log.info("compiling kernels", extra={"about": {"takes": "a minute or so, once an environment"}})
    log.info("compiled", extra={"about": {"kernels": "gaps", "seconds": 1.5}})
    structlog.reset_defaults()
    assert "note: compiling kernels (takes a minute or so, once an environment)\n" == capsys.readouterr().err


# --- the page


def test_every_command_that_the_page_names_exists_and_the_other_way_round() -> None:
    named = {
        " ".join(w for w in row.split() if not w.isupper())
        for row in re.findall(r"^\| `syncline ([^`]+)` \|", PAGE, re.M)
    }
    assert set(commands()) == named


def test_every_option_that_the_page_names_exists() -> None:
    options = {opt for command in commands().values() for param in command.params for opt in param.opts}
    assert [] == [name for name in re.findall(r"`(--[a-z-]+)", PAGE) if name not in options and name != "--help"]


def test_every_command_but_the_version_speaks_json() -> None:
    silent = [w for w, c in commands().items() if "--json" not in {opt for param in c.params for opt in param.opts}]
    assert ["version"] == silent


# --- as a process of its own


def start(*words: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "syncline_cli", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def test_a_process_prints_one_document_and_keeps_its_logs_off_standard_output(run: Any, tmp_path: Path) -> None:
    # Version 3's anchor is damaged: the library warns in its log and takes the way from version 1.
    anchor = run.reader.anchor(3)
    file = run.file(run.reader.anchor_file(anchor, "model.safetensors"))
    file.write_bytes(bytes(file.stat().st_size))
    process = start("materialize", tmp_path / "out", "--json", SYNCLINE_STORE=str(run.folder), SYNCLINE_RUN="demo")
    out, err = process.communicate(timeout=100)
    assert (0, 1) == (process.returncode, out.count("\n"))
    assert run.reader.manifest(5).digest == json.loads(out)["digest"]
    told = [line for line in err.splitlines() if line.startswith("warning: avoided a step (step anchor, version 3")]
    assert 1 == len(told)
    assert "model.safetensors: not the bytes of anchor 3" in told[0]


def test_ctrl_c_ends_a_follower_with_130_and_leaves_its_folder_whole(run: Any, tmp_path: Path) -> None:
    process = start("follow", tmp_path / "out", *run.options, "--json")
    assert process.stdout is not None
    assert 5 == json.loads(process.stdout.readline())["version"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert (130, "", "") == (process.returncode, out, err)
    checked = start("verify", "checkpoint", tmp_path / "out", *run.options)
    assert checked.communicate(timeout=100)[0].startswith("ok  version 5")


def test_no_command_of_the_store_loads_torch() -> None:
    text = (
        "import sys, syncline_cli.__main__; print(sorted({'torch', 'triton', 'kopf', 'aiohttp'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=100)
    assert "[]\n" == found.stdout
