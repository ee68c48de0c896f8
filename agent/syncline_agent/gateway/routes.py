"""What clients may call of each engine, and nothing else: a route of a newer engine is closed until it stands here.

Pure data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum


class Kind(StrEnum):
    """Whose routes the engine has."""

    VLLM = "vllm"
    SGLANG = "sglang"
    REFERENCE = "reference"


class Shape(Enum):
    """What a request and its answer look like."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    TOKENS = "tokens"
    """vLLM's own route, token ids in and out."""
    NATIVE = "native"
    """SGLang's own route."""
    EMBEDDINGS = "embeddings"
    """Answers without tokens."""
    PLAIN = "plain"
    """Passed on as it is; says nothing of weights."""


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the engine's."""

    path: str
    shape: Shape


_OPENAI = {
    ("POST", "/v1/completions"): Shape.COMPLETIONS,
    ("POST", "/v1/chat/completions"): Shape.CHAT,
    ("POST", "/v1/embeddings"): Shape.EMBEDDINGS,
    ("GET", "/v1/models"): Shape.PLAIN,
}
_OPEN: Mapping[Kind, Mapping[tuple[str, str], Shape]] = {
    Kind.VLLM: {**_OPENAI, ("POST", "/inference/v1/generate"): Shape.TOKENS},
    Kind.SGLANG: {**_OPENAI, ("POST", "/generate"): Shape.NATIVE, ("PUT", "/generate"): Shape.NATIVE},
    Kind.REFERENCE: {("POST", "/v1/completions"): Shape.COMPLETIONS, ("GET", "/v1/models"): Shape.PLAIN},
}
_HEALTH = {Kind.VLLM: "/health", Kind.SGLANG: "/health", Kind.REFERENCE: "/livez"}


class Routes:
    """The routes that are open in front of one engine."""

    def __init__(self, kind: Kind, open_paths: Sequence[str] = ()) -> None:
        self._open = _OPEN[kind]
        self._more = frozenset(open_paths)
        self.health = _HEALTH[kind]
        """Where the engine says that it is there."""

    def find(self, method: str, path: str) -> Route | None:
        """None for what is closed."""
        shape = self._open.get((method, path))
        if shape is None and path in self._more:
            shape = Shape.PLAIN
        return None if shape is None else Route(path, shape)
