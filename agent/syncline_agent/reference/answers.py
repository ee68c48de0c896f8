"""Answers of `/v1/completions` in OpenAI's shape, with the versions that produced them.

It owns what is collected of a choice while it runs, and the JSON of answers, chunks and errors. No input or output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from syncline_agent.reference.choices import Finish, Output, Span
from syncline_agent.reference.requests import CompletionRequest

Text = Callable[[int], str]
"""Text of one token."""


@dataclass(frozen=True, slots=True)
class Header:
    """What every chunk and answer of one request repeats."""

    id: str
    created: int
    model: str

    def around(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
            **more,
        }


@dataclass(slots=True)
class Answer:
    """One choice, collected."""

    number: int
    prompt: Sequence[int]
    outputs: list[Output] = field(default_factory=list[Output])

    @property
    def token_ids(self) -> list[int]:
        return [o.token for o in self.outputs if o.token is not None]


def weight_version(spans: Sequence[Span]) -> dict[str, Any]:
    """First and last version, and which tokens came from which: `first` and `last` count output tokens, both included.
    An answer without tokens has no version."""
    return {
        "start": spans[0].version if spans else None,
        "end": spans[-1].version if spans else None,
        "spans": [{"first": s.first, "last": s.last, "version": s.version} for s in spans],
    }


def choice(answer: Answer, request: CompletionRequest, text: Text) -> dict[str, Any]:
    """A whole choice."""
    last = answer.outputs[-1]
    body = chunk(answer.outputs, request, text)
    if request.return_token_ids:
        body["prompt_token_ids"] = list(answer.prompt)
    return body | {"weight_version": weight_version(last.spans)}


def chunk(outputs: Sequence[Output], request: CompletionRequest, text: Text, *, offset: int = 0) -> dict[str, Any]:
    """Consecutive outputs of one choice; `offset` is the text that came before. The last outputs carry the versions."""
    last = outputs[-1]
    body: dict[str, Any] = {
        "index": last.choice,
        "text": "".join(o.text for o in outputs),
        "logprobs": None if request.logprobs is None else _logprobs(outputs, text, offset),
        "finish_reason": None if last.finish is None else str(last.finish),
    }
    if request.return_token_ids:
        body["token_ids"] = [o.token for o in outputs if o.token is not None]
    if last.is_last:
        body["weight_version"] = weight_version(last.spans)
    return body


def _logprobs(outputs: Sequence[Output], text: Text, offset: int) -> dict[str, Any]:
    drawn = [o for o in outputs if o.token is not None]
    offsets: list[int] = []
    for output in drawn:
        offsets.append(offset)
        offset += len(text(output.token or 0))
    return {
        "tokens": [_shown(o.token or 0, text) for o in drawn],
        "token_logprobs": [o.logprob for o in drawn],
        "top_logprobs": [
            None if o.top is None else {_shown(t, text): logprob for t, logprob in o.top.items()} for o in drawn
        ],
        "text_offset": offsets,
    }


def _shown(token: int, text: Text) -> str:
    """A token as `logprobs` names it; one without text by its number."""
    return text(token) or f"<{token}>"


def usage(answers: Sequence[Answer], n: int) -> dict[str, int]:
    """Tokens of a request; a prompt counts once however many choices it has."""
    prompt = sum(len(a.prompt) for a in answers[::n])
    completion = sum(len(a.token_ids) for a in answers)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def error(message: str, *, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def outcome(answers: Sequence[Answer]) -> str:
    """One word for a request, for its metric: its worst choice."""
    lasts = [a.outputs[-1] for a in answers if a.outputs]
    if any(o.error is not None for o in lasts):
        return "error"
    finishes = {o.finish for o in lasts}
    return str(next((f for f in (Finish.ABORT, Finish.LENGTH) if f in finishes), Finish.STOP))
