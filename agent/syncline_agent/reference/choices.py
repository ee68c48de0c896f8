"""One sequence being generated: its prompt, how it ends, its tokens, and which version produced each of them.

It owns the record that an answer is made from. It knows neither HTTP nor the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from syncline_agent.reference.sampling import SamplingParams
from syncline_agent.reference.stopping import TextStream


class Finish(StrEnum):
    """Why a choice ended, in OpenAI's words where they have one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Span:
    """Output tokens first..last, both included, that one version produced."""

    first: int
    last: int
    version: int


@dataclass(frozen=True, slots=True)
class Output:
    """What one step adds to a choice. The last one carries `finish`, or `error` when the replica failed under it."""

    choice: int
    text: str = ""
    token: int | None = None
    logprob: float = 0.0
    top: Mapping[int, float] | None = None
    """The likeliest tokens and their log-probabilities, where asked for."""
    spans: Sequence[Span] = ()
    """On the last output: all spans of the choice."""
    finish: Finish | None = None
    error: str | None = None

    @property
    def is_last(self) -> bool:
        return self.finish is not None or self.error is not None


@dataclass(slots=True, eq=False)
class Choice:
    """A sequence on its way; only the scheduler's thread changes it once submitted."""

    request_id: str
    """Unique among all choices: the request's own id and the choice's number."""
    number: int
    prompt: Sequence[int]
    params: SamplingParams
    max_tokens: int
    text: TextStream
    deliver: Callable[[Output], None]
    end_token: int | None
    """The token that ends the text; None: only stop strings and the length do."""
    top: int = 0
    """How many of the likeliest tokens to report a position."""
    tokens: list[int] = field(default_factory=list[int])
    spans: list[Span] = field(default_factory=list[Span])
    slot: int = -1

    def add(self, token: int, version: int) -> tuple[str, Finish | None]:
        """Take a token that `version` produced; the text that may go out now, and why the choice ends with it."""
        place = len(self.tokens)
        self.tokens.append(token)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = Span(self.spans[-1].first, place, version)
        else:
            self.spans.append(Span(place, place, version))
        text = self.text.feed(token)
        if self.text.stopped or token == self.end_token:
            return text + self.text.flush(), Finish.STOP
        if len(self.tokens) >= self.max_tokens:
            return text + self.text.flush(), Finish.LENGTH
        return text, None
