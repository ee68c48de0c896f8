"""The definitions as they are written: whole, described, bounded, and the very ones in crds/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import Field

from syncline_operator.api.crds import files, rollout_pools, training_runs, write
from syncline_operator.api.schema import Part, structural_schema
from syncline_operator.api.values import Rule, seconds

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "crds"
LARGEST_ANNOTATION = 256 << 10
KINDS = [training_runs(), rollout_pools()]
SHORT = ["trun", "rpool"]


def fields(schema: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below a schema, with its path."""
    for name, found in schema.get("properties", {}).items():
        yield f"{at}.{name}", found
        yield from fields(found, f"{at}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield f"{at}[]", schema[inner]
            yield from fields(schema[inner], f"{at}[]")


def described(made: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Fields that a user or the operator writes."""
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return [(at, found) for at, found in fields(schema) if at.startswith((".spec", ".status"))]


def test_crds_holds_what_the_models_say() -> None:
    """Otherwise: `make crds`."""
    assert files() == {path.name: path.read_text(encoding="utf-8") for path in sorted(CRDS.iterdir())}


def test_writing_puts_the_same_files_anywhere(tmp_path: Path) -> None:
    write(tmp_path / "crds")
    assert files() == {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "crds").iterdir()}


def test_a_definition_fits_the_annotation_that_a_plain_apply_writes() -> None:
    assert [] == [name for name, text in files().items() if len(str(yaml.safe_load(text))) >= LARGEST_ANNOTATION]


@pytest.mark.parametrize("made", KINDS, ids=SHORT)
def test_every_field_is_described_in_a_sentence(made: dict[str, Any]) -> None:
    named = [(at, found) for at, found in described(made) if not at.endswith("[]")]
    assert len(named) > 60
    assert [] == [at for at, found in named if not re.search(r"\w{2,}.*\.$", found.get("description", ""), re.DOTALL)]


@pytest.mark.parametrize("made", KINDS, ids=SHORT)
def test_every_string_list_and_map_is_bounded(made: dict[str, Any]) -> None:
    unbounded: list[str] = []
    for at, found in described(made):
        match found.get("type"):
            case "string" if "enum" not in found:
                bound = "maxLength"
            case "array":
                bound = "maxItems"
            case "object" if "additionalProperties" in found:
                bound = "maxProperties"
            case None:
                bound = "x-kubernetes-int-or-string"
            case _:
                continue
        if bound not in found:
            unbounded.append(f"{at} has no {bound}")
    assert [] == unbounded


@pytest.mark.parametrize("made", KINDS, ids=SHORT)
def test_every_list_says_how_it_is_merged(made: dict[str, Any]) -> None:
    lists = [(at, found) for at, found in described(made) if found.get("type") == "array"]
    assert lists
    assert [] == [at for at, found in lists if found.get("x-kubernetes-list-type") not in ("atomic", "map")]


@pytest.mark.parametrize("made", KINDS, ids=SHORT)
def test_what_the_operator_tells_has_no_defaults(made: dict[str, Any]) -> None:
    """They would be filled into objects whose status nobody has told yet, and look like news."""
    told = [(at, found) for at, found in described(made) if at.startswith(".status")]
    assert len(told) > 40
    assert [] == [at for at, found in told if "default" in found]


def test_what_a_structural_schema_cannot_say_is_refused() -> None:
    class Choosing(Part):
        """Of two types."""

        either: int | str = 1

    class Patterned(Part):
        """By an expression, which no user reads."""

        text: Annotated[str, Field(pattern="a+")]

    with pytest.raises(ValueError, match=r"Choosing\.either: a choice between types"):
        structural_schema(Choosing)
    with pytest.raises(ValueError, match=r"Patterned\.text: 'pattern'"):
        structural_schema(Patterned)


def test_a_rule_is_written_with_the_field_and_the_kind_of_fault() -> None:
    class Ruled(Part):
        """With a rule."""

        pinned: bool = Field(default=False, description="Whether it is.")
        rules = (Rule("self.pinned", "must be", at=".pinned", reason="FieldValueRequired"),)

    expected = {
        "description": "With a rule.",
        "type": "object",
        "x-kubernetes-validations": [
            {"rule": "self.pinned", "message": "must be", "fieldPath": ".pinned", "reason": "FieldValueRequired"}
        ],
        "properties": {
            "pinned": {"description": "Whether it is. Default: false.", "type": "boolean", "default": False}
        },
    }
    assert expected == structural_schema(Ruled)


@pytest.mark.parametrize(("span", "expected"), [("30s", 30.0), ("1h30m", 5400.0), ("1.5s", 1.5), ("250ms", 0.25)])
def test_a_span_of_time_has_seconds(span: str, expected: float) -> None:
    assert expected == seconds(span)


@pytest.mark.parametrize("text", ["", "30", "s", "30s later", "-30s", "30 s"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no span of time"):
        seconds(text)
