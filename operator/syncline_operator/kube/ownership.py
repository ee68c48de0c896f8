"""Whether an object already is what would be applied, told from the fields that the API server says a manager owns.

Pure. `managedFields` names every owned field, and how lists merge; compared along it, an object that has what is wanted
costs no request. Where the server writes a value in another form than it was sent in ("1000m" as "1"), two documents
differ although an apply changes nothing: `Writer` remembers those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from syncline_operator.kube.resources import Document, FieldManager

MISSING = "\0missing"
"""Stands for a field that is not there; no JSON value of an object equals it."""
IDENTITY = ("apiVersion", "kind")
UNOWNED = ("name", "namespace", "uid", "resourceVersion")


def is_settled(desired: Document, observed: Document, manager: FieldManager) -> bool:
    """Whether `manager` owns exactly the fields of `desired`, and they have its values."""
    fields = owned_fields(observed, manager)
    wanted = body(desired)
    return fields is not None and _covers(fields, wanted) and project(wanted, fields) == project(observed, fields)


def owned_fields(observed: Mapping[str, Any], manager: FieldManager) -> Mapping[str, Any] | None:
    """What `manager` applied last; None if it never did."""
    for entry in observed["metadata"].get("managedFields", ()):
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: Mapping[str, Any] = entry.get("fieldsV1", {})
            return fields
    return None


def body(desired: Mapping[str, Any]) -> Document:
    """What an apply of `desired` decides: without nulls and without what says only which object it is."""
    found = without_nulls({name: value for name, value in desired.items() if name not in IDENTITY})
    metadata = {name: value for name, value in found.pop("metadata", {}).items() if name not in UNOWNED}
    return found | ({"metadata": metadata} if metadata else {})


def without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [without_nulls(inner) for inner in value]
    return value


def project(value: Any, fields: Mapping[str, Any]) -> Any:
    """The part of `value` that `fields` names, in a form that compares whatever the order of merged lists is."""
    named = {name: inner for name, inner in fields.items() if name != "."}
    if not named:
        return (value if not fields else True) if value is not None else MISSING
    return {name: project(_at(value, name), inner) for name, inner in named.items()}


def _at(value: Any, name: str) -> Any:
    mark, _, rest = name.partition(":")
    if mark == "f":
        return value.get(rest) if isinstance(value, Mapping) else None
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    wanted: Any = json.loads(rest)
    if mark == "k":
        return _element(value, wanted)
    if mark == "v":
        return wanted if wanted in value else None
    return value[wanted] if mark == "i" and wanted < len(value) else None


def _element(elements: Sequence[Any], keys: Mapping[str, Any]) -> Any:
    """The element with these keys. The server fills keys in (a port's protocol) that who applied left out."""
    fitting = [
        element
        for element in elements
        if isinstance(element, Mapping) and all(element.get(name, wanted) == wanted for name, wanted in keys.items())
    ]
    return max(fitting, key=lambda element: len(keys.keys() & element.keys()), default=None)


def _covers(fields: Mapping[str, Any], wanted: Any) -> bool:
    """Whether every field of `wanted` is among `fields`."""
    named = {name: inner for name, inner in fields.items() if name != "."}
    if not named:
        return True  # a value that is owned whole
    if isinstance(wanted, Mapping):
        return all(f"f:{name}" in named and _covers(named[f"f:{name}"], inner) for name, inner in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return len(wanted) == len(named) and all(
            any(_at([element], name) is not None and _covers(inner, element) for name, inner in named.items())
            for element in wanted
        )
    return True
