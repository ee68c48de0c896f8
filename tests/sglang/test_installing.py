"""The edges of SGLang's plugin: off unless told, hooks that must be there, settings by the name of their variable."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import structlog

from syncline.errors import LayoutRefused, Rejected
from syncline_agent.sglang import loader, register
from syncline_agent.sglang.installing import SCHEDULER, look_up
from syncline_agent.sglang.settings import KvPolicy, SglangSettings


def test_without_its_variable_the_plugin_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYNCLINE_ARM_SOCKET", raising=False)
    register()


def test_where_sglang_lacks_a_hook_it_serves_on_without_syncline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SYNCLINE_ARM_SOCKET", "/n/arm.sock")
    register()  # not a scheduler's process: nothing is looked for
    monkeypatch.setitem(sys.modules, SCHEDULER, ModuleType(SCHEDULER))
    register()
    loader.arm(object(), [])
    said = capsys.readouterr().err
    structlog.reset_defaults()
    assert 2 == said.count("Syncline is off")
    assert "this SGLang has no sglang.srt.model_loader.loader.DefaultModelLoader" in said
    with pytest.raises(LayoutRefused, match=r"no json\.nothing"):
        look_up("json", "nothing")


def test_settings_come_from_the_environment_and_are_refused_by_their_variable() -> None:
    environ = {"SYNCLINE_ARM_SOCKET": "/n/arm.sock"}
    settings = SglangSettings.from_env(environ)
    assert (Path("/n/checkpoint"), KvPolicy.FLUSH) == (settings.checkpoint, settings.kv)
    for name, value in {
        "SYNCLINE_SGLANG_KV": "mixed",
        "SYNCLINE_SWEEP_INTERVAL": "0",
        "SYNCLINE_ENGINE_URL": "localhost:30000",
        "SYNCLINE_ARM_SOCKET": "/" + "n" * 120,
    }.items():
        with pytest.raises(Rejected, match=name):
            SglangSettings.from_env({**environ, name: value})
    with pytest.raises(Rejected, match="SYNCLINE_ARM_SOCKET is not set"):
        SglangSettings.from_env({})
