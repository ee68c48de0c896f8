"""The shape of the source tree: what keeps every Python that starts here alive, and every module readable."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from statistics import median

import syncline

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = ("chain", "distributor", "agent", "operator", "cli")
LONGEST_MODULE = 500
MEDIAN_MODULE = 150


def modules() -> list[Path]:
    return [path for name in SOURCE_ROOTS for path in sorted((ROOT / name).rglob("*.py"))]


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_folder_that_holds_a_package_or_tests_is_a_package_itself() -> None:
    # operator/__init__.py would shadow the standard library's module in every Python started in the root.
    stray = [ROOT / name / "__init__.py" for name in SOURCE_ROOTS]
    stray += (ROOT / "tests").rglob("__init__.py")
    assert [] == [str(path.relative_to(ROOT)) for path in stray if path.exists()]


def test_operator_is_the_standard_library_s_module_even_in_the_root() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.__file__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert Path(sysconfig.get_path("stdlib")).resolve() == Path(found.stdout.strip()).resolve().parent


def test_every_folder_of_modules_is_an_importable_package() -> None:
    # Without __init__.py a folder is a namespace package, which import-linter and pyright see only in part.
    folders = {path.parent for path in modules()}
    missing = [folder for folder in folders if not (folder / "__init__.py").exists()]
    assert [] == sorted(str(folder.relative_to(ROOT)) for folder in missing)


def test_no_module_is_longer_than_a_reader_s_patience() -> None:
    long = {str(path.relative_to(ROOT)): line_count(path) for path in modules() if line_count(path) > LONGEST_MODULE}
    assert {} == long


def test_half_of_all_modules_are_short() -> None:
    sizes = [line_count(path) for path in modules()]
    assert sizes
    assert median(sizes) <= MEDIAN_MODULE


def test_the_package_knows_its_own_version() -> None:
    assert metadata.version("syncline") == syncline.__version__


def test_the_changelog_names_the_version() -> None:
    assert f"## [{syncline.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
