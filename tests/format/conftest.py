"""The scripts of this folder as modules, and a Python that cannot import Syncline."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent
NEEDED = ("blake3", "lz4", "zstandard", "numpy")


@pytest.fixture(scope="session")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python without site packages: it finds the standard library and what the reader needs, and nothing else."""
    packages = tmp_path_factory.mktemp("packages")
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.submodule_search_locations is not None
        found = Path(spec.submodule_search_locations[0])
        (packages / name).symlink_to(found)
        libraries = found.with_name(f"{name}.libs")
        if libraries.is_dir():
            (packages / libraries.name).symlink_to(libraries)

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {"PYTHONPATH": str(packages), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-S", *map(str, arguments)]
        return subprocess.run(
            command, cwd=packages, env=environment, capture_output=True, text=True, timeout=100, check=False
        )

    return run


@pytest.fixture(scope="session")
def reads(isolated: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., dict[str, Any]]:
    """Runs the independent reader; what it says of the version that it read. `out` names the file for the weights."""

    def read(store: Path, run: str, *options: str, out: Path) -> dict[str, Any]:
        done = isolated(FOLDER / "reader.py", store, run, *options, "--out", out)
        assert (0, "") == (done.returncode, done.stderr)
        return json.loads(done.stdout)

    return read


@pytest.fixture(scope="session")
def scripts() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a script of this folder, which finds the others as it does when it is run."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))
