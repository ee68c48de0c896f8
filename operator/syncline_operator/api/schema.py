"""From typed models to a structural schema, the dialect of JSON Schema that an API server takes.

Refuses what it does not know: a keyword that an API server would drop in silence is an error here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from syncline_operator.api.values import INT32_MAX, Rule

_KEPT = {
    "type",
    "description",
    "default",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "maxProperties",
    "properties",
    "required",
    "additionalProperties",
}
_DROPPED = {"title"}
_MARK = "x-kubernetes-"
PRESERVED = f"{_MARK}preserve-unknown-fields"


class Part(BaseModel):
    """A struct of the API: camelCase outside, frozen inside. What an older operator does not know it passes over."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=False
    )
    rules: ClassVar[tuple[Rule, ...]] = ()
    """What must hold between fields."""
    told: ClassVar[bool] = False
    """Whether the operator tells it: then a server must fill nothing in, which would look like news."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(core))
        properties = cast(dict[str, dict[str, Any]], schema.setdefault("properties", {}))
        for name, info in cls.model_fields.items():
            made = info.default_factory
            if isinstance(made, type) and issubclass(made, Part):
                # Whole, not {}: an API server judges a default by the struct's rules before it fills it in.
                properties[info.alias or name]["default"] = _tidy(made().to_json())
            if cls.told:
                properties[info.alias or name].pop("default", None)
        if cls.rules:
            schema["x-kubernetes-validations"] = [rule.to_schema() for rule in cls.rules]
        if cls.model_config.get("extra") == "allow":
            schema[PRESERVED] = True
        return cast(dict[str, Any], schema)

    def to_json(self) -> dict[str, Any]:
        """As an API server takes it; what is not set is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Told(Part):
    """A struct of a status. Its defaults are for whoever makes one, and stand in no schema."""

    told: ClassVar[bool] = True


def _tidy(value: Any) -> Any:
    """Without maps and lists that hold nothing, which say no more than their absence."""
    if not isinstance(value, dict):
        return value
    fields = {name: (field, _tidy(field)) for name, field in cast(dict[str, Any], value).items()}
    return {name: tidy for name, (field, tidy) in fields.items() if field not in ({}, [])}


def structural_schema(model: type[Part], *, without: Collection[str] = ()) -> dict[str, Any]:
    """The structural schema of a struct; ValueError where it has something that no such schema can say."""
    written = model.model_json_schema(by_alias=True, mode="validation")
    for field in without:
        del written["properties"][field]
    return _converted(written, cast(Mapping[str, Any], written.get("$defs", {})), at=model.__name__)


def _converted(schema: Mapping[str, Any], named: Mapping[str, Any], *, at: str) -> dict[str, Any]:
    schema = _resolved(schema, named, at=at)
    converted: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "properties":
            converted[keyword] = {n: _converted(v, named, at=f"{at}.{n}") for n, v in value.items()}
        elif keyword in ("items", "additionalProperties") and isinstance(value, Mapping):
            converted[keyword] = _converted(cast(Mapping[str, Any], value), named, at=f"{at}[]")
        elif keyword == "additionalProperties" and PRESERVED in schema:
            pass  # the mark says the same
        elif keyword == "default" and value in (None, []):
            pass  # absence says the same
        elif keyword in _KEPT or keyword.startswith(_MARK):
            converted[keyword] = value
        elif keyword not in _DROPPED:
            raise ValueError(f"{at}: {keyword!r} cannot stand in a structural schema")
    if isinstance(default := converted.get("default"), bool | int | str) and default != "":
        # kubectl explain shows no defaults.
        converted["description"] = f"{converted.get('description', '')} Default: {json.dumps(default).strip(chr(34))}."
    if converted.get("type") == "integer":
        converted["format"] = "int32" if converted.get("maximum", INT32_MAX + 1) <= INT32_MAX else "int64"
    return {keyword: converted[keyword] for keyword in sorted(converted, key=_place)}


def _resolved(schema: Mapping[str, Any], named: Mapping[str, Any], *, at: str) -> dict[str, Any]:
    """With what it refers to in its place; what stands beside a reference wins."""
    found = dict(schema)
    if (choices := found.pop("anyOf", None)) is not None:
        meant = [choice for choice in choices if choice.get("type") != "null"]
        if len(meant) != 1:
            raise ValueError(f"{at}: a choice between types cannot stand in a structural schema")
        found = {**meant[0], **found}
    if (reference := found.pop("$ref", None)) is not None:
        found = {**_resolved(named[reference.rpartition("/")[2]], named, at=at), **found}
    found.pop("$defs", None)
    return found


def _place(keyword: str) -> tuple[int, str]:
    """A reader wants to know what a field is before what is below it."""
    order = ("description", "type")
    return (order.index(keyword) if keyword in order else 2 + (keyword in ("properties", "items")), keyword)
