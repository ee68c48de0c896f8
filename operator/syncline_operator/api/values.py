"""Values that fields are made of, each with the bounds and the words by which an API server refuses what is none.

Every string and list is bounded: an API server refuses a kind whose rules could cost too much. Who reads an object trusts
these bounds; what has passed the API server is not judged again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema

VERSION_MAX = 10**12 - 1
INT32_MAX = 2**31 - 1
INT53_MAX = 2**53 - 1
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition in CEL and what a user reads where it does not hold."""

    holds: str
    words: str
    at: str | None = None
    """The field that is pointed at, from where the rule stands: `.version`."""
    reason: str | None = None
    """FieldValueRequired or FieldValueForbidden, where FieldValueInvalid is not the kind of fault."""

    def to_schema(self) -> dict[str, str]:
        """As it stands in a schema."""
        written = {"rule": self.holds, "message": self.words}
        if self.at is not None:
            written["fieldPath"] = self.at
        if self.reason is not None:
            written["reason"] = self.reason
        return written


@dataclass(frozen=True, slots=True, eq=False)
class Kube:
    """What a schema says beside the type: rules, and marks that only Kubernetes knows."""

    rules: tuple[Rule, ...] = ()
    marks: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = dict(handler(core))
        if self.rules:
            before = schema.get("x-kubernetes-validations", [])
            schema["x-kubernetes-validations"] = [*before, *(rule.to_schema() for rule in self.rules)]
        return {**schema, **self.marks}


def map_list(*keys: str) -> Kube:
    """A list whose items are told apart by these fields, and may have owners of their own."""
    return Kube(marks={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)})


ATOMIC = Kube(marks={"x-kubernetes-list-type": "atomic"})
"""A list that has one owner."""


def matching(pattern: str, words: str) -> Kube:
    """A string of a form. A rule in place of a `pattern`: whoever is refused reads words, not an expression."""
    return Kube((Rule(f"self.matches('^({pattern})$')", words),))


def lasting(least: str, most: str) -> Kube:
    """A span of time within bounds."""
    form = r"([0-9]+([.][0-9]+)?(ms|s|m|h))+"
    return Kube(
        (
            Rule(
                f"self.matches('^{form}$') && duration(self) >= duration('{least}') && duration(self) <= "
                f"duration('{most}')",
                f"must be a span of time from {least} to {most}, such as 30s, 5m or 1h30m",
            ),
        )
    )


def seconds(span: str) -> float:
    """The seconds of a span of time as the API has it; ValueError for what is none."""
    parts = _SPAN.findall(span)
    if not parts or "".join(number + unit for number, unit in parts) != span:
        raise ValueError(f"{span!r} is no span of time such as 30s, 5m or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


_NAME_WORDS = (
    "must be a name: lower-case letters, digits, '.', '_' and '-', a letter or digit at both ends, and no '..'"
)

Span = Annotated[str, Field(max_length=32)]
Name = Annotated[
    str,
    Field(min_length=1, max_length=63),
    Kube((Rule("self.matches('^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$') && !self.contains('..')", _NAME_WORDS),)),
]
"""Of a run or a view: a part of every key in the store."""
ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    matching(
        "[a-z0-9]([-a-z0-9.]*[a-z0-9])?",
        "must be the name of an object: lower-case letters, digits, '-' and '.', a letter or digit at both ends",
    ),
]
Entry = Annotated[
    str,
    Field(min_length=1, max_length=253),
    matching("[-._a-zA-Z0-9]+", "must be an entry's name: letters, digits, '-', '_' and '.'"),
]
"""A key of a Secret or a ConfigMap."""
RelativePath = Annotated[
    str,
    Field(max_length=512),
    Kube(
        (
            Rule(
                "!self.startsWith('/') && !self.matches('(^|/)[.][.]?(/|$)')",
                "must be a path below, without a leading '/', '.' or '..'",
            ),
        )
    ),
]
AbsolutePath = Annotated[
    str,
    Field(max_length=80),
    Kube(
        (
            Rule(
                "self.matches('^(/[A-Za-z0-9._-]+)+$') && !self.matches('/[.][.]?(/|$)')",
                "must be an absolute path below '/', of letters, digits, '.', '_' and '-', without '.' or '..' parts",
            ),
        )
    ),
]
"""Short enough that a Unix socket below it still has a path that the kernel takes."""
_NO_CREDENTIAL = "must hold no credential; put the key pair into a Secret, credentialsSecretRef"
Endpoint = Annotated[
    str,
    Field(max_length=300),
    Kube(
        (
            Rule("!self.contains('@')", _NO_CREDENTIAL),
            Rule(
                "self.contains('@') || "
                "self.matches('^https?://([A-Za-z0-9.-]+|[[][0-9A-Fa-f:.]+[]])(:[1-9][0-9]{0,3}|:[1-6][0-9]{4})?/?$')",
                "must be http://host:port or https://host:port, without a path",
            ),
        )
    ),
]
StoreUri = Annotated[
    str,
    Field(max_length=300),
    Kube(
        (
            Rule("!self.contains('@')", _NO_CREDENTIAL),
            Rule("!self.contains('?')", "must hold no options; endpoint and region are fields of their own"),
            Rule(
                "self.contains('@') || self.contains('?') || "
                "(self.matches('^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*$')"
                " && !self.matches('^s3://[^/]*([.][.]|[.]-|-[.])|/[.][.]?(/|$)|^s3://[0-9]+([.][0-9]+){3}(/|$)'))",
                "must be s3://bucket/prefix, where a bucket has 3 to 63 characters: "
                "lower-case letters, digits, '-' and single '.'",
            ),
            Rule(
                "!self.startsWith('s3://') || self.matches('^s3://[^/]*(/.{0,120})?$')",
                "must have a prefix of at most 120 characters",
            ),
        )
    ),
]
Quantity = Annotated[
    int | str,
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 32}),
    Kube(
        (
            Rule(
                "isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('0')) >= 0",
                "must be a quantity of 0 or more, such as 500m, 4, 16Gi or 1.5T",
            ),
        )
    ),
]
CountOrPercent = Annotated[
    int | str,
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 11}),
    Kube(
        (
            Rule(
                "type(self) == int ? int(self) >= 0 : string(self).matches('^([0-9]|[1-9][0-9]|100)%$')",
                "must be a number of replicas, 0 or more, or a percentage of them such as 25%",
            ),
        )
    ),
]
Port = Annotated[int, Field(ge=1, le=65535)]
VersionNumber = Annotated[int, Field(ge=1, le=VERSION_MAX)]
Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
Large = Annotated[int, Field(ge=0, le=INT53_MAX)]
Text = Annotated[str, Field(max_length=1024)]
Instant = Annotated[str, Field(max_length=64), Kube(marks={"format": "date-time"})]
"""RFC 3339, by the clock that the field names."""
Fraction = Annotated[str, Field(max_length=16)]
"""A share from 0 to 1 in digits; a number would be rounded differently by each client."""
