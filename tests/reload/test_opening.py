"""Which engine the agent's flags open, and when the reload route is taken in place of the arm."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from syncline.clock import SystemClock
from syncline.errors import EngineUnavailable, LayoutRefused, SynclineError
from syncline.versions import Policy
from syncline_agent.__main__ import parse_settings
from syncline_agent.arm.server import ArmServer
from syncline_agent.engine import Applied, CommitResult, EngineDescription, StageRequest, StageResult
from syncline_agent.reload.engine import ReloadEngine
from syncline_agent.reload.fallback import ArmOrReload
from syncline_agent.reload.opening import open_engine

USABLE = ["--store", "/s", "--target", "/t", "--node-dir", "/n"]
URL = "http://127.0.0.1:1"
HELD = Applied("ab" * 16, "main", 1, "cd" * 16, proven=True)


class Scripted:
    """An engine that says what it is told to."""

    def __init__(self, name: str, *, reloads: bool = False) -> None:
        self.said: EngineDescription | SynclineError = EngineDescription(name, "pool", "pod", 1, HELD, reloads=reloads)
        self.calls: list[str] = []

    def describe(self) -> EngineDescription:
        if isinstance(self.said, SynclineError):
            raise self.said
        return self.said

    def stage(self, request: StageRequest) -> StageResult:
        raise AssertionError("not asked for here")

    def commit(self, target: int, policy: Policy) -> CommitResult:
        self.calls.append("commit")
        return CommitResult(target, "", 0.0)

    def undo(self, version: int, policy: Policy = Policy.KEEP) -> CommitResult:
        raise AssertionError("not asked for here")

    def discard(self) -> None:
        self.calls.append("discard")

    def sweep(self) -> Applied:
        self.calls.append("sweep")
        return HELD


@pytest.fixture
def log_lines() -> Iterator[io.StringIO]:
    out = io.StringIO()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(out))
    yield out
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ([], ArmServer),
        (["--engine", "reload", "--engine-url", URL], ReloadEngine),
        (["--engine", "reload", "--engine-url", URL, "--engine-kind", "sglang"], ReloadEngine),
        (["--engine-url", URL], ArmOrReload),
    ],
)
def test_flags_open_the_arms_a_reload_route_or_both(tmp_path: Path, arguments: list[str], kind: type) -> None:
    settings = replace(parse_settings([*USABLE, *arguments], {}), node_dir=tmp_path)
    with ExitStack() as held:
        engine = open_engine(settings, held, clock=SystemClock(), log=structlog.get_logger())
        assert kind is type(engine)
        assert (kind is not ReloadEngine) == settings.socket.exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--engine", "magic"], "--engine magic is unknown; it is arm or reload"),
        (["--engine", "reload"], "--engine reload needs --engine-url"),
        (["--engine-kind", "tgi"], "--engine-kind tgi is unknown; it is vllm or sglang"),
        (["--engine-url", "127.0.0.1:8000"], "--engine-url 127.0.0.1:8000 is not http://host:port"),
        (["--engine-url", "http://:x"], "--engine-url http://:x is"),
        (["--serve-unproven", "maybe"], "--serve-unproven: 'maybe' is neither yes nor no"),
    ],
)
def test_settings_that_cannot_be_used_end_with_their_flag_s_name(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings([*USABLE, *arguments], {})
    assert 2 == ended.value.code
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_variables_say_the_same_as_flags() -> None:
    environ = {"SYNCLINE_ENGINE": "reload", "SYNCLINE_ENGINE_URL": URL, "SYNCLINE_SERVE_UNPROVEN": "yes"}
    settings = parse_settings(USABLE, environ)
    assert ("reload", URL, True) == (settings.engine, settings.engine_url, settings.follow.serve_unproven)
    assert not parse_settings(USABLE, {}).follow.serve_unproven


def test_an_arm_that_refuses_the_layout_leaves_the_engine_to_its_reload_route(log_lines: io.StringIO) -> None:
    arm, reload = Scripted("arm"), Scripted("reload", reloads=True)
    both = ArmOrReload(arm, reload, log=structlog.get_logger())
    assert "arm" == both.describe().engine
    both.commit(2, Policy.KEEP)
    arm.said = EngineDescription("arm", "pool", "pod", 1, None, "layers.0.w13 is requantized")
    assert both.describe().reloads
    both.describe()
    both.commit(3, Policy.KEEP)
    both.sweep()
    assert (["commit"], ["commit", "sweep"]) == (arm.calls, reload.calls)
    assert 1 == log_lines.getvalue().count("layers.0.w13 is requantized")
    arm.said = EngineDescription("arm", "pool", "pod", 1, HELD)
    assert "arm" == both.describe().engine


def test_ranks_whose_parts_are_no_view_are_a_refusal_too(log_lines: io.StringIO) -> None:
    arm = Scripted("arm")
    both = ArmOrReload(arm, Scripted("reload", reloads=True), log=structlog.get_logger())
    arm.said = LayoutRefused("bands overlap")
    assert both.describe().reloads


@pytest.mark.parametrize("before", [True, False], ids=["an engine that came again", "the first"])
def test_an_engine_that_its_own_gate_is_about_to_open_is_not_reloaded_yet(before: bool) -> None:
    arm, reload = Scripted("arm"), Scripted("reload", reloads=True)
    both = ArmOrReload(arm, reload, log=structlog.get_logger())
    refused = EngineDescription("arm", "pool", "pod", 2, None, "rank 1: x was requantized")
    if before:
        arm.said = refused
        assert both.describe().reloads
    arm.said = replace(refused, opening=True)
    assert arm.said == both.describe()
    arm.said = refused
    assert both.describe().reloads


def test_an_arm_that_is_not_there_has_refused_nothing(log_lines: io.StringIO) -> None:
    arm = Scripted("arm")
    both = ArmOrReload(arm, Scripted("reload", reloads=True), log=structlog.get_logger())
    arm.said = EngineUnavailable("no engine is connected")
    with pytest.raises(EngineUnavailable):
        both.describe()
    arm.said = EngineDescription("arm", "pool", "pod", 1, None)  # it is loading
    assert not both.describe().reloads
    arm.said = EngineDescription("arm", "pool", "pod", 1, HELD, "memory is in doubt")  # to be healed in place
    assert not both.describe().reloads


def test_a_refusal_outlives_the_connection_of_the_arm_that_refused(log_lines: io.StringIO) -> None:
    arm = Scripted("arm")
    both = ArmOrReload(arm, Scripted("reload", reloads=True), log=structlog.get_logger())
    arm.said = EngineDescription("arm", "pool", "pod", 1, None, "requantized")
    both.describe()
    arm.said = EngineUnavailable("no engine is connected")
    assert both.describe().reloads
