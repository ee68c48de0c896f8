"""The body of `POST /v1/completions` as a typed value, or a refusal in OpenAI's error shape that names the field.

Parses at the edge; what comes out fits the model and can be scheduled as it is. Fields of the OpenAI API that this
engine would have to ignore are refused unless they say what it does anyway.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from syncline.errors import Rejected
from syncline_agent.reference.sampling import SamplingParams
from syncline_agent.reference.tokenizer import CharacterTokenizer

CHOICES_MAX = 1024
STOPS_MAX = 16
TOP_MAX = 5
SEED_MAX = (1 << 63) - 1
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (1, None),
    "echo": (False, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "logit_bias": (None, {}),
    "suffix": (None, ""),
}
"""Fields that this engine does not have, with the values that ask for nothing."""
NO_TOKENIZER = "there is no character_tokenizer.json, and tokenizer.json is not read by the reference engine"
KNOWN = {
    *NEUTRAL,
    *("prompt", "model", "n", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "logprobs", "stream"),
    *("stream_options", "return_token_ids", "ignore_eos", "request_id", "user"),
}


class BadRequest(Rejected):
    """A request that can never be served; `param` is the field at fault."""

    def __init__(self, message: str, param: str | None = None, *, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What a client asks for. Choice p * n + i is the i-th of prompt p, and its seed is `seed` plus its number."""

    prompts: Sequence[Sequence[int]]
    n: int
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stops: Sequence[str]
    logprobs: int | None
    """None: no logprobs; else how many of the likeliest tokens come beside the sampled one."""
    stream: bool
    include_usage: bool
    return_token_ids: bool
    ignore_eos: bool
    request_id: str | None

    def params(self, number: int) -> SamplingParams:
        """Sampling of a choice."""
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.seed + number)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model and its engine can take."""

    model: str
    vocab: int
    max_len: int
    tokenizer: CharacterTokenizer | None


def parse(body: Any, limits: Limits, randomness: random.Random) -> CompletionRequest:
    """Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    fields = _Fields(body)
    unknown = sorted(set(body) - KNOWN)
    if unknown:
        raise BadRequest(f"unrecognized request argument: {unknown[0]}", unknown[0])
    for name, neutral in NEUTRAL.items():
        if body.get(name) not in neutral:
            raise BadRequest(f"{name} is not supported by this engine", name)
    model = fields.text("model", limits.model)
    if model != limits.model:
        raise BadRequest(
            f"the model {model!r} does not exist; this engine serves {limits.model!r}", "model", code="model_not_found"
        )
    n = fields.integer("n", 1, 1, CHOICES_MAX)
    max_tokens = fields.integer("max_tokens", 16, 1, limits.max_len)
    prompts = _prompts(body.get("prompt"), limits)
    if len(prompts) * n > CHOICES_MAX:
        raise BadRequest(f"{len(prompts)} prompts x n = {n} is beyond {CHOICES_MAX} choices", "n")
    longest = max(map(len, prompts))
    if longest + max_tokens > limits.max_len:
        raise BadRequest(
            f"this model's context is {limits.max_len} tokens; the prompt has {longest} and max_tokens is {max_tokens}",
            "max_tokens",
            code="context_length_exceeded",
        )
    logprobs = None if body.get("logprobs") is None else fields.integer("logprobs", 0, 0, TOP_MAX)
    return CompletionRequest(
        prompts=prompts,
        n=n,
        max_tokens=max_tokens,
        temperature=fields.number("temperature", 1.0, 0.0, 100.0),
        top_p=fields.number("top_p", 1.0, 1e-6, 1.0),
        top_k=max(0, fields.integer("top_k", 0, -1, limits.vocab)),  # -1 and 0 both keep all
        seed=fields.integer("seed", randomness.getrandbits(62), -SEED_MAX, SEED_MAX),
        stops=_stops(body.get("stop"), limits),
        logprobs=logprobs,
        stream=fields.flag("stream"),
        include_usage=_include_usage(body.get("stream_options")),
        # Without a tokenizer there is no text, and the ids are all of the answer.
        return_token_ids=limits.tokenizer is None or fields.flag("return_token_ids"),
        ignore_eos=fields.flag("ignore_eos"),
        request_id=checked_id(fields.text("request_id", None)),
    )


def checked_id(given: str | None) -> str | None:
    """A request's id, from body or header, that span tables and logs can carry as it is."""
    if given is not None and not (0 < len(given) <= 256 and given.isascii() and given.isprintable()):
        raise BadRequest("a request id must be 1 to 256 printable ASCII characters", "request_id")
    return given


class _Fields:
    """Typed look-ups in a body; null is the default."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadRequest(f"{name} must be an integer from {low} to {high}, not {value!r:.100}", name)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise BadRequest(f"{name} must be a number from {low:g} to {high:g}, not {value!r:.100}", name)
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._body.get(name)
        if value is not None and not isinstance(value, bool):
            raise BadRequest(f"{name} must be true or false, not {value!r:.100}", name)
        return bool(value)

    def text(self, name: str, default: Any) -> Any:
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or not 0 < len(value) <= 256:
            raise BadRequest(f"{name} must be a string of 1 to 256 characters", name)
        return value


def _prompts(value: Any, limits: Limits) -> list[list[int]]:
    """A string, token ids, or a list of either."""
    many = value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]
    return [_prompt(one, limits) for one in many]


def _prompt(value: Any, limits: Limits) -> list[int]:
    if isinstance(value, str):
        if limits.tokenizer is None:
            raise BadRequest(f"{NO_TOKENIZER}; give token ids", "prompt")
        try:
            return limits.tokenizer.encode(value)
        except Rejected as error:
            raise BadRequest(str(error), "prompt") from error
    if not isinstance(value, list) or not value:
        raise BadRequest("prompt must be a string, a list of token ids, or a list of either", "prompt")
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < limits.vocab:
            raise BadRequest(f"prompt holds {token!r:.100}, which is no token id below {limits.vocab}", "prompt")
    return value


def _stops(value: Any, limits: Limits) -> list[str]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > STOPS_MAX or any(not isinstance(s, str) or not s for s in stops):
        raise BadRequest(f"stop must be a string or up to {STOPS_MAX} strings, none of them empty", "stop")
    if stops and limits.tokenizer is None:
        raise BadRequest(f"{NO_TOKENIZER}; there is no text to stop at", "stop")
    return stops


def _include_usage(value: Any) -> bool:
    if value is None:
        return False
    if isinstance(value, dict) and not set(value) - {"include_usage"}:
        wanted = value.get("include_usage", False)
        if isinstance(wanted, bool):
            return wanted
    raise BadRequest("stream_options may hold include_usage: true or false", "stream_options")
