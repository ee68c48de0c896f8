"""A request's body as the engine gets it, and what has to be known of it when the answer comes. Pure.

Taken out: `weight_version`, an id of the caller's (the gateway's own is sent as X-Request-Id, with the caller's in front),
and its name for keys and values (isolation.py puts another in its place when the request is let in). Put in:
`return_token_ids` where tokens cannot be counted without; what the engine then says more is taken out of the answer again.
Every other byte stays.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from syncline_agent.gateway.isolation import UNNAMED, BadName, Named, read_named
from syncline_agent.gateway.members import JsonObject, NotAnObject, read_object
from syncline_agent.gateway.routes import Kind, Shape
from syncline_agent.gateway.wanted import FIELD, BadWish, Wanted, read_wanted

_PLAIN_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
MOST_CHOICES = 4096
_PREFIX = {Shape.COMPLETIONS: "cmpl", Shape.CHAT: "chatcmpl", Shape.TOKENS: "generate-tokens"}


class BadBody(ValueError):
    """A body that cannot be passed on; `param` is the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, read."""

    body: bytes
    """What the engine gets."""
    request_id: str
    wanted: Wanted
    choices: int | None
    """How many the answer has; None where nobody can tell."""
    names: Sequence[str] | None
    """What the engine calls each choice in the span table; None where it cannot be told."""
    hide_ids: bool
    """The caller did not ask for token ids."""
    named: Named = UNNAMED
    """What it says of keys and values."""


def read_asked(
    data: bytes, headers: Mapping[str, str], *, kind: Kind, shape: Shape, randomness: random.Random
) -> Asked:
    """BadBody for what is no request."""
    try:
        body = read_object(data)
    except NotAnObject as error:
        raise BadBody(f"the body is no JSON object: {error}") from error
    fields = body.fields
    try:
        wanted = read_wanted(fields.get(FIELD), headers)
    except BadWish as error:
        raise BadBody(str(error), FIELD) from error
    try:
        named = read_named(fields, kind, shape)
    except BadName as error:
        raise BadBody(str(error), error.param) from error
    given = fields.get("request_id") if kind is not Kind.SGLANG else None
    request_id = _request_id(given or headers.get("X-Request-Id"), randomness)
    choices = _choices(fields, shape)
    hide_ids = _needs_ids(fields, kind, shape, choices)
    more = {"return_token_ids": True} if hide_ids else {}
    return Asked(
        body=_edited(body, kind, named, more),
        request_id=request_id,
        wanted=wanted,
        choices=choices,
        names=_names(request_id, fields, kind, shape, choices),
        hide_ids=hide_ids,
        named=named,
    )


def _edited(body: JsonObject, kind: Kind, named: Named, more: Mapping[str, Any]) -> bytes:
    ours = {FIELD, named.field or FIELD} | (set() if kind is Kind.SGLANG else {"request_id"})
    return body.edited(without=ours, more=more)


def _request_id(given: Any, randomness: random.Random) -> str:
    """An id that was never given before, with the caller's in front so that the engine's log can be searched for it."""
    own = f"{randomness.getrandbits(96):024x}"
    return f"{given}-{own}" if isinstance(given, str) and _PLAIN_ID.fullmatch(given) else own


def _needs_ids(fields: Mapping[str, Any], kind: Kind, shape: Shape, choices: int | None) -> bool:
    """Whether the engine must be made to say token ids: a stream does not count them otherwise, nor several choices."""
    if kind is Kind.SGLANG or shape not in (Shape.COMPLETIONS, Shape.CHAT) or fields.get("return_token_ids"):
        return False
    return bool(fields.get("stream")) or choices != 1


def _choices(fields: Mapping[str, Any], shape: Shape) -> int | None:
    if shape is Shape.EMBEDDINGS:
        return 0
    n = fields.get("n", 1)
    if shape in (Shape.TOKENS, Shape.NATIVE):
        sampling = fields.get("sampling_params")
        n = sampling.get("n", 1) if isinstance(sampling, dict) else 1
    n = 1 if n is None else n
    prompts = _prompts(fields) if shape is Shape.COMPLETIONS else 1
    if shape is Shape.NATIVE and (isinstance(fields.get("text"), list) or _many(fields.get("input_ids"))):
        return None
    if isinstance(n, bool) or not isinstance(n, int) or prompts is None or not 0 < n * prompts <= MOST_CHOICES:
        return None
    return n * prompts


def _prompts(fields: Mapping[str, Any]) -> int | None:
    prompt = fields.get("prompt")
    if fields.get("prompt_embeds") is not None or fields.get("use_beam_search"):
        return None
    return len(prompt) if isinstance(prompt, list) and _many(prompt) else 1


def _many(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], str | list)


def _names(
    request_id: str, fields: Mapping[str, Any], kind: Kind, shape: Shape, choices: int | None
) -> Sequence[str] | None:
    """As SOCKET.md says that engines call them."""
    if choices is None or fields.get("use_beam_search"):
        return None
    if kind is Kind.REFERENCE:
        return [f"{request_id}-{number}" for number in range(choices)]
    if kind is Kind.SGLANG or shape not in _PREFIX:
        return None
    name = f"{_PREFIX[shape]}-{request_id}"
    prompts = (_prompts(fields) or 1) if shape is Shape.COMPLETIONS else 1
    each = choices // prompts
    names = [f"{name}-{prompt}" if shape is Shape.COMPLETIONS else name for prompt in range(prompts)]
    return [one if each == 1 else f"{choice}_{one}" for one in names for choice in range(each)]
