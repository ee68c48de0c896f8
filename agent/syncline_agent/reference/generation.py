"""Completes a batch of prompts in one process, without an engine around it: for tests, and to see how good a model is.

It owns the loop of forward and sample over slots and nothing else; requests, streaming and versions are the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncline_agent.reference.model import Decoder
from syncline_agent.reference.sampling import SamplingParams, sample


@dataclass(frozen=True, slots=True)
class Completion:
    """What one prompt was answered: tokens, the end token included if it was reached, and their log-probabilities."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


def complete(
    decoder: Decoder, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, end: int, limit: int
) -> list[Completion]:
    """Answer each prompt with at most `limit` tokens, in order; prompts beyond the decoder's slots wait for the next round."""
    done: list[Completion] = []
    for start in range(0, len(prompts), decoder.slots):
        stop = start + decoder.slots
        done += _round(decoder, prompts[start:stop], params[start:stop], end, limit)
    return done


def _round(
    decoder: Decoder, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], end: int, limit: int
) -> list[Completion]:
    tokens: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    rows = [(token, slot, position) for slot, prompt in enumerate(prompts) for position, token in enumerate(prompt)]
    last = [sum(map(len, prompts[: slot + 1])) - 1 for slot in range(len(prompts))]
    running = list(range(len(prompts)))
    for draw in range(limit):
        logits = decoder.forward(*zip(*rows, strict=True))[last]
        drawn = sample(logits, [params[s] for s in running], [draw] * len(running))
        for slot, got in zip(running, drawn, strict=True):
            tokens[slot].append(got.token)
            logprobs[slot].append(got.logprob)
        running = [slot for slot in running if tokens[slot][-1] != end]
        if not running:
            break
        rows = [(tokens[slot][-1], slot, len(prompts[slot]) + draw) for slot in running]
        last = list(range(len(running)))
    return [Completion(tuple(t), tuple(p)) for t, p in zip(tokens, logprobs, strict=True)]
