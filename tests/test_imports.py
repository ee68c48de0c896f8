"""Who imports whom: light packages stay light, and the import contracts catch what they are there to catch.

The contracts themselves run in `make lint`; here each kind of violation is planted in a copy of the sources.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = ("chain", "distributor", "agent", "operator", "cli")
HEAVY = ("torch", "numba", "triton", "kopf", "kubernetes", "minio")


def loaded_after(statement: str) -> set[str]:
    report = f"{statement}\nimport sys\nprint(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True, timeout=60)
    return set(found.stdout.split())


@pytest.mark.parametrize("package", ["syncline", "syncline_agent", "syncline_cli", "syncline_operator.api"])
def test_importing_a_package_by_itself_loads_nothing_heavy(package: str) -> None:
    loaded = loaded_after(f"import {package}")
    assert package in loaded
    assert set() == loaded & set(HEAVY)


def test_the_sdk_loads_kernels_and_nothing_else_that_is_heavy() -> None:
    loaded = loaded_after("from syncline_distributor import Publisher")
    assert {"numba"} == loaded & set(HEAVY)


def test_the_wire_format_loads_no_compiler_no_torch_and_no_client() -> None:
    loaded = loaded_after("import syncline.wire, syncline.wire.chunk, syncline.wire.digest, syncline.wire.records")
    assert set() == loaded & set(HEAVY)


def test_what_a_publisher_accepts_is_described_without_torch() -> None:
    assert "torch" not in loaded_after("import syncline_distributor.weights")


def test_every_component_stands_under_the_contracts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {path.parent.name for name in SOURCE_ROOTS for path in (ROOT / name).glob("*/__init__.py")}
    assert packages == set(project["tool"]["importlinter"]["root_packages"])


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in SOURCE_ROOTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def lint_imports(copy: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(copy / name) for name in SOURCE_ROOTS)
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=100,
    )


# (the module where the line is planted, what it imports, the contract that must name it)
PLANTED = [
    (
        "distributor/syncline_distributor",
        "syncline_agent",
        "Components never import each other; all stand on the library",
    ),
    ("chain/syncline", "syncline_cli", "Components never import each other; all stand on the library"),
    ("chain/syncline/wire", "syncline.store", "Inside the library imports go down only"),
    ("chain/syncline/wire", "socket", "The wire format does no input or output and knows no time"),
    ("agent/syncline_agent", "time", "Only clock reads the time"),
    ("chain/syncline/store", "numba", "Only kernels and codecs compile"),
    (
        "chain/syncline/store",
        "torch",
        "Only engines, probing, the torch adapter, the GPU kernels and the demo's trainer know torch",
    ),
    ("distributor/syncline_distributor", "minio", "Only the S3 adapter knows the S3 client"),
    ("agent/syncline_agent", "kopf", "Nothing but the operator knows Kubernetes"),
    ("operator/syncline_operator", "syncline.store", "The operator never touches weight bytes and holds no store keys"),
    ("operator/syncline_operator/api", "subprocess", "The kinds know no cluster"),
    (
        "operator/syncline_operator/work",
        "kubernetes",
        "In the operator only kube knows the client, and only the watches know kopf",
    ),
    (
        "operator/syncline_operator/kube",
        "syncline_operator.work",
        "In the operator what goes round stands on what talks",
    ),
]


@pytest.mark.parametrize(("package", "target", "contract"), PLANTED, ids=[f"{p} {t}" for p, t, _ in PLANTED])
def test_a_planted_violation_is_caught_by_its_contract(copy: Path, package: str, target: str, contract: str) -> None:
    source = copy / package / "__init__.py"
    source.write_text(f"{source.read_text(encoding='utf-8')}\nimport {target}\n", encoding="utf-8")
    planted_line = len(source.read_text(encoding="utf-8").splitlines())
    result = lint_imports(copy)
    assert 1 == result.returncode, result.stdout + result.stderr
    importer = package.partition("/")[2].replace("/", ".")
    finding = f"{importer} -> {target} (l.{planted_line})"
    assert finding in details_of(contract, result.stdout), result.stdout


def details_of(contract: str, report: str) -> str:
    """The part of the report that explains why this contract is broken; empty when it is kept."""
    section = report.partition("Broken contracts")[2].partition(f"{contract}\n---")[2]
    return section.partition("\n\n\n")[0]


def test_a_module_of_the_library_without_a_layer_is_refused(copy: Path) -> None:
    (copy / "chain/syncline/unplaced.py").write_text('"""Stands nowhere."""\n', encoding="utf-8")
    result = lint_imports(copy)
    assert 1 == result.returncode, result.stdout + result.stderr
    assert "unplaced" in result.stdout
