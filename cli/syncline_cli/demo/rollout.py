"""What a rollout is to the trainer: the tokens an engine drew, how likely it said they were, and which version drew each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from syncline.errors import Rejected
from syncline_agent.reference.model import Decoder, ModelConfig, sequence_logits, token_logprobs

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Span:
    """Generated tokens [start, stop) that one version drew."""

    start: int
    stop: int
    version: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """One answer to the problem `group`; answers with equal groups are compared with each other."""

    group: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One a token, as the engine that drew it reported."""
    spans: tuple[Span, ...]
    reward: float

    def __post_init__(self) -> None:
        edges = [0, *(s.stop for s in self.spans)]
        starts = [s.start for s in self.spans]
        whole = edges[:-1] == starts and edges[-1] == len(self.tokens) and all(s.start < s.stop for s in self.spans)
        if not self.tokens or not self.prompt or len(self.logprobs) != len(self.tokens) or not whole:
            raise Rejected(
                f"a rollout of group {self.group} has {len(self.prompt)} prompt tokens, {len(self.tokens)} tokens, "
                f"{len(self.logprobs)} logprobs and spans {self.spans}; each token needs a logprob and one span"
            )

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(span.version for span in self.spans)


@dataclass(frozen=True, slots=True)
class Padded:
    """Rollouts as one batch, padded at the right."""

    tokens: torch.Tensor
    """[rollouts, length]"""
    drawn: torch.Tensor
    """[rollouts, length - 1]: where tokens[:, 1:] was drawn by an engine."""
    logprobs: torch.Tensor
    """[rollouts, length - 1]: what the engine said; 0 where nothing was drawn."""


def pad(rollouts: Sequence[Rollout]) -> Padded:
    length = max(len(r.prompt) + len(r.tokens) for r in rollouts)
    tokens = torch.zeros(len(rollouts), length, dtype=torch.long)
    drawn = torch.zeros(len(rollouts), length - 1, dtype=torch.bool)
    logprobs = torch.zeros(len(rollouts), length - 1)
    for row, rollout in enumerate(rollouts):
        first, end = len(rollout.prompt) - 1, len(rollout.prompt) + len(rollout.tokens) - 1
        tokens[row, : end + 1] = torch.tensor([*rollout.prompt, *rollout.tokens])
        drawn[row, first:end] = True
        logprobs[row, first:end] = torch.tensor(rollout.logprobs)
    return Padded(tokens, drawn, logprobs)


def recheck(
    config: ModelConfig, weights: Mapping[int, Weights], rollouts: Sequence[Rollout], *, temperature: float = 1.0
) -> float:
    """The largest difference between what engines reported and what the weights of the stamped versions give.

    A rollout that one version drew is recomputed over the whole sequence at once, which shares no cache with the engine. One that
    several versions drew is replayed: its older keys and values stay in the cache while the weights go on, as they did in the engine
    (a prompt belongs to the version of the first token). A version that is not in `weights` is refused, never skipped.
    """
    unknown = sorted({v for r in rollouts for v in r.versions} - set(weights))
    if unknown:
        raise Rejected(f"rollouts carry versions {unknown}, the trainer keeps {sorted(weights)}; keep more of them")
    worst = 0.0
    whole: dict[int, list[Rollout]] = {}
    mixed: list[Rollout] = []
    for rollout in rollouts:
        if len(rollout.spans) == 1:
            whole.setdefault(rollout.spans[0].version, []).append(rollout)
        else:
            mixed.append(rollout)
    for version, group in whole.items():
        worst = max(worst, _whole_difference(config, weights[version], group, temperature))
    if mixed:
        worst = max(worst, _replay_difference(config, weights, mixed, temperature))
    return worst


@torch.inference_mode()
def _whole_difference(config: ModelConfig, weights: Weights, rollouts: Sequence[Rollout], temperature: float) -> float:
    batch = pad(rollouts)
    logits = sequence_logits(config, weights, batch.tokens)[:, :-1]
    again = token_logprobs(logits, batch.tokens[:, 1:], temperature=temperature)
    return float((again - batch.logprobs).abs()[batch.drawn].max())


@torch.inference_mode()
def _replay_difference(
    config: ModelConfig, weights: Mapping[int, Weights], rollouts: Sequence[Rollout], temperature: float
) -> float:
    """Feeds every rollout's n-th span under that span's version, then the next ones, over one cache."""
    live = {name: tensor.clone() for name, tensor in weights[rollouts[0].spans[0].version].items()}
    longest = max(len(r.prompt) + len(r.tokens) for r in rollouts)
    decoder = Decoder(config, live, slots=len(rollouts), max_len=longest)
    worst = 0.0
    for ordinal in range(max(len(r.spans) for r in rollouts)):
        for version in sorted({r.spans[ordinal].version for r in rollouts if ordinal < len(r.spans)}):
            for name, tensor in weights[version].items():
                live[name].copy_(tensor)
            rows: list[tuple[int, int, int]] = []
            drawn: list[tuple[int, int, float]] = []  # row of the logits, token drawn from them, what the engine said
            for slot, rollout in enumerate(rollouts):
                if ordinal >= len(rollout.spans) or rollout.spans[ordinal].version != version:
                    continue
                span, fed = rollout.spans[ordinal], [*rollout.prompt, *rollout.tokens]
                before = len(rollout.prompt) - 1  # position that token 0 was drawn from
                for position in range(before + span.start if span.start else 0, before + span.stop):
                    if position >= before:
                        drawn.append((len(rows), fed[position + 1], rollout.logprobs[position - before]))
                    rows.append((fed[position], slot, position))
            logits = decoder.forward(*zip(*rows, strict=True))
            at, tokens, reported = zip(*drawn, strict=True)
            again = token_logprobs(logits[list(at)], torch.tensor(tokens), temperature=temperature)
            worst = max(worst, float((again - torch.tensor(reported)).abs().max()))
    return worst
