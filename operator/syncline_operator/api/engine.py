"""What serves in a pool's pods."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from syncline_operator.api.schema import Part
from syncline_operator.api.values import Entry, ObjectName, Port, Rule, Span, lasting


class EngineType(StrEnum):
    """Which engine it is."""

    VLLM = "vLLM"
    SGLANG = "SGLang"
    REFERENCE = "Reference"


class ApplyPath(StrEnum):
    """How versions come into the engine."""

    IN_PLACE = "InPlace"
    RELOAD = "Reload"


class KeySecret(Part):
    """A Secret with one word."""

    name: ObjectName = Field(
        description="Name of the Secret, in the object's own namespace. It is mounted, never read by the operator."
    )
    key: Entry = Field(default="api-key", description="Entry of the Secret that holds the word.")


class Engine(Part):
    """What serves."""

    type: EngineType = Field(
        description="vLLM, SGLang, or Reference, the plain engine that comes with Syncline for tests and demos."
    )
    container: Annotated[Entry, Field(max_length=63)] | None = Field(
        default=None, description="Name of the engine's container in the template. Left out, it is the first."
    )
    port: Port = Field(
        default=8000,
        description="Port on which the engine's own routes answer. The default is vLLM's; SGLang's own is 30000.",
    )
    apply_path: ApplyPath = Field(
        default=ApplyPath.IN_PLACE,
        description="InPlace, the default: the arm inside the engine changes weights in memory, and where it has to "
        "refuse the engine's layout "
        "the reload route is taken, which the condition InPlace then tells. Reload: always the engine's "
        "own reload route, without an arm.",
    )
    api_key_secret_ref: KeySecret | None = Field(
        default=None,
        description="Secret with the bearer token that the engine's routes ask for. Left out, they ask for none.",
    )
    sweep_interval: Annotated[Span, lasting("10s", "24h")] = Field(
        default="10m",
        description="How often all live weights are read and compared with the manifest's digest, beside serving. Each "
        "time costs one read of them; ten minutes find a flipped bit soon and cost little.",
    )
    rules = (
        Rule(
            "self.type != 'Reference' || self.applyPath == 'InPlace'",
            "type Reference has no reload route; its applyPath is InPlace",
            at=".applyPath",
        ),
    )
