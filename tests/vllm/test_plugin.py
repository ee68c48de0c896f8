"""The plugin's edges: off unless told, settings by the name of their variable, hooks that must be there."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import types
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from syncline.errors import LayoutRefused, Rejected
from syncline_agent.vllm import hooks, register
from syncline_agent.vllm.hooks import Hook, check_hooks
from syncline_agent.vllm.rank import instance_of
from syncline_agent.vllm.settings import CpuLinear, KvPolicy, VllmSettings


def test_vllm_finds_the_plugin_by_its_entry_point() -> None:
    (found,) = [e for e in entry_points(group="vllm.general_plugins") if e.name == "syncline"]
    assert register is found.load()


def test_the_plugin_loads_nothing_until_a_model_is_loaded() -> None:
    """numba's compiler, once loaded, makes a worker of vLLM's fail as it starts."""
    code = (
        "import sys, syncline_agent.vllm, syncline_agent.vllm.installing\n"
        "print([m for m in ('torch', 'numba', 'llvmlite', 'vllm', 'aiohttp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.strip()


@pytest.mark.parametrize("environ", [{}, {"SYNCLINE_ARM_SOCKET": ""}, {"SYNCLINE_ARM_SOCKET": "/nowhere/arm.sock"}])
def test_registering_never_raises_where_it_is_off_or_vllm_is_another(environ: dict[str, str]) -> None:
    code = (
        "import os, sys; sys.modules['vllm'] = None; from syncline_agent.vllm import register; register(); register()"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environ}, capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    assert ("Syncline is off" in done.stderr) == bool(environ.get("SYNCLINE_ARM_SOCKET"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SYNCLINE_ARM_SOCKET", "/" + "x" * 200),
        ("SYNCLINE_VLLM_KV", "flush"),
        ("SYNCLINE_VLLM_CPU_LINEAR", "fast"),
        ("SYNCLINE_SWEEP_INTERVAL", "never"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_by_its_variable(name: str, value: str) -> None:
    with pytest.raises(Rejected, match=name):
        VllmSettings.from_env({"SYNCLINE_ARM_SOCKET": "arm.sock", name: value})


def test_settings_that_are_not_given_are_the_usual_ones() -> None:
    settings = VllmSettings.from_env({"SYNCLINE_ARM_SOCKET": "n/arm.sock", "HOSTNAME": "pod-7", "SYNCLINE_POOL": ""})
    assert (Path("n/arm.sock"), "default", "pod-7") == (settings.arm.socket, settings.arm.pool, settings.arm.pod)
    assert (None, None, KvPolicy.SALT, CpuLinear.PLAIN) == (
        settings.arm.token_file,
        settings.arm.checkpoint,
        settings.kv,
        settings.cpu_linear,
    )


def test_a_hook_that_is_missing_or_takes_something_else_is_refused_by_its_place() -> None:
    here = (Hook("pathlib", "Path.write_text", ("data",)),)
    check_hooks(here)
    for lacking in (Hook("pathlib", "Path.gone"), Hook("gone", "x"), Hook("pathlib", "Path.write_text", ("other",))):
        with pytest.raises(LayoutRefused, match=rf"{lacking.module}\.{lacking.name}"):
            check_hooks((*here, lacking))


def test_a_hook_whose_module_cannot_be_imported_is_refused_with_the_reason() -> None:
    with pytest.raises(LayoutRefused, match=r"no gone\.x, .*ModuleNotFoundError: No module named 'gone'"):
        check_hooks((Hook("gone", "x"),))


def test_a_function_is_wrapped_once_however_often_it_is_installed() -> None:
    owner: Any = types.SimpleNamespace(count=lambda: 1)
    for _ in range(3):
        hooks.replace(owner, "count", lambda original: lambda: original() + 1)
    assert 2 == owner.count()


def test_a_wrapped_function_still_says_what_it_takes() -> None:
    """vLLM's core counts the parameters of what it is asked to call."""

    def call(method: str, timeout: float | None = None) -> tuple[str, float | None]:
        return method, timeout

    owner: Any = types.SimpleNamespace(call=call)
    hooks.replace(owner, "call", lambda original: lambda *arguments, **named: original(*arguments, **named))
    assert ("look", 1.0) == owner.call("look", 1.0)
    assert ["method", "timeout"] == list(inspect.signature(owner.call).parameters)


@pytest.mark.timeout(300)
def test_the_installed_vllm_has_every_hook(vllm_python: Path) -> None:
    code = "from syncline_agent.vllm.hooks import check_hooks; check_hooks(); print('all there')"
    done = subprocess.run([str(vllm_python), "-c", code], capture_output=True, text=True, timeout=280)
    assert "all there" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("config", "instance"), [({"instance_id": "1f3a"}, "1f3a"), ({"instance_id": ""}, None), ({}, None)]
)
def test_a_start_is_named_as_vllm_names_it_to_all_its_processes(config: dict[str, str], instance: str | None) -> None:
    assert instance == instance_of(types.SimpleNamespace(**config))
