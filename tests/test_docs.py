"""Documents that cannot rot: every path and every make target that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from syncline.wire import limits

ROOT = Path(__file__).resolve().parents[1]
FIRST_PARTS = (
    "chain|distributor|agent|operator|cli|crds|helm|examples|docs|bench|fuzz|tests|"
    r"\.ci|README\.md|Makefile|CONTRIBUTING\.md|CHANGELOG\.md|LICENSE|pyproject\.toml|requirements\.lock"
)
PATH = re.compile(rf"(?:{FIRST_PARTS})(?:/[\w.\-*/]*)?")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
MAKE = re.compile(r"\bmake ([a-z][a-z-]*)")


def documents() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    found += sorted((ROOT / "docs").rglob("*.md"))
    for name in ("chain", "distributor", "agent", "operator", "cli", "examples", "bench", "fuzz"):
        found += sorted((ROOT / name).rglob("*.md"))
    return found


def named(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", documents(), ids=named)
def test_every_path_that_a_document_names_exists(document: Path) -> None:
    prose = FENCE.sub("", document.read_text(encoding="utf-8"))
    paths = [text for text in CODE.findall(prose) if PATH.fullmatch(text)]
    assert [] == [path for path in paths if not any(ROOT.glob(path.rstrip("/")))]


@pytest.mark.parametrize("document", documents(), ids=named)
def test_every_link_between_documents_leads_somewhere(document: Path) -> None:
    prose = CODE.sub("", FENCE.sub("", document.read_text(encoding="utf-8")))
    links = [link for link in LINK.findall(prose) if "://" not in link]
    assert [] == [link for link in links if not (document.parent / link).exists()]


@pytest.mark.parametrize("document", documents(), ids=named)
def test_every_make_target_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    code = "\n".join(CODE.findall(FENCE.sub("", text)) + FENCE.findall(text))
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert [] == [target for target in MAKE.findall(code) if target not in targets]


def test_every_test_that_the_readme_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(named) >= 10
    missing = [
        f"{file}::{test}" for file, test in named if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert [] == missing


def test_the_bounds_of_the_format_are_those_of_the_code() -> None:
    text = (ROOT / "chain/syncline/wire/FORMAT.md").read_text(encoding="utf-8")
    told = {
        name: int(value) for name, value in re.findall(r"^\| `([A-Z_]+_MAX[A-Z_]*)` \| (\d+) \|", text, re.MULTILINE)
    }
    bounds = {name: value for name, value in vars(limits).items() if re.search(r"[A-Z]_MAX(_|$)", name)}
    assert bounds == told


def test_the_codecs_of_the_format_are_those_of_the_code() -> None:
    text = (ROOT / "chain/syncline/wire/FORMAT.md").read_text(encoding="utf-8")
    told = {int(number): name for number, name in re.findall(r"^\| (\d) \| `([a-z0-9-]+)` \|", text, re.MULTILINE)}
    assert told == limits.CODEC_NAMES


def test_the_glossary_defines_each_word_once() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(words) >= 15
    assert sorted(set(words)) == sorted(words)
