"""What both kinds have in common: group, version, metadata as the operator reads it, and the rule of names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from syncline_operator.api.schema import Part
from syncline_operator.api.values import Rule

GROUP = "syncline.dev"
VERSION = "v1alpha1"
API_VERSION: Literal["syncline.dev/v1alpha1"] = "syncline.dev/v1alpha1"
NAME_MAX = 52
"""What is named after an object has a suffix, and must still fit a label's 63 characters."""


class ObjectMeta(Part):
    """The parts of an object's metadata that the operator looks at."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


def name_rules(kind: str) -> tuple[Rule, ...]:
    """Of an object's own name: Services and pods are named after it."""
    return (
        Rule(
            f"size(self.metadata.name) <= {NAME_MAX}",
            f"the name of a {kind} has at most {NAME_MAX} characters: Services and pods are named after it, "
            "with a suffix",
        ),
        Rule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            f"the name of a {kind} begins with a letter and has letters, digits and '-' only: Services are "
            "named after it",
        ),
    )
