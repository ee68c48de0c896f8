"""Draws the next token of each row, reproducibly, and says how likely it was.

The draw of a request's n-th token depends only on its seed, n and its logits: not on the batch it shares, not on
earlier calls. The log-probability returned is that of the whole tempered distribution, softmax(logits / temperature),
before top-k and top-p cut it (with temperature 0, greedy, that of temperature 1): what `model.token_logprobs`
recomputes from the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from syncline.errors import Rejected
from syncline_agent.reference.model import token_logprobs

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request wants its tokens."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0.0 <= self.temperature < float("inf")) or self.top_k < 0 or not 0.0 < self.top_p <= 1.0:
            raise Rejected(f"sampling needs temperature >= 0, top_k >= 0 and 0 < top_p <= 1, got {self}")


@dataclass(frozen=True, slots=True)
class Sampled:
    """A drawn token and its log-probability."""

    token: int
    logprob: float


def uniform(seed: int, draw: int) -> float:
    """The draw-th number in [0, 1) of a seed: a fixed mix of bits, so that it needs no state and no order."""
    value = (seed * 0x9E3779B97F4A7C15 + (draw + 1) * 0xD1342543DE82EF95) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 0x9E3779B97F4A7C15)):
        value = ((value ^ (value >> shift)) * factor) & _MASK
    return ((value ^ (value >> 32)) >> 12) / (1 << 52)


@torch.inference_mode()
def sample(logits: torch.Tensor, params: Sequence[SamplingParams], draws: Sequence[int]) -> list[Sampled]:
    """One token for each row of logits [rows, vocab]; draws[i] is how many row i's request drew before."""
    if not logits.shape[0] == len(params) == len(draws):
        raise Rejected(
            f"sampling needs parameters and a draw a row, got {logits.shape[0]}, {len(params)}, {len(draws)}"
        )
    logits = logits.float()
    temperatures = torch.tensor([p.temperature or 1.0 for p in params], device=logits.device)
    scaled = logits / temperatures[:, None]
    points = torch.tensor(
        [uniform(p.seed, n) for p, n in zip(params, draws, strict=True)], dtype=torch.float64, device=logits.device
    )
    mass = torch.softmax(_cut(scaled, params), dim=-1).double().cumsum(-1)
    tokens = torch.searchsorted(mass, (points * mass[:, -1])[:, None], right=True).squeeze(1)
    greedy = torch.tensor([p.temperature == 0.0 for p in params], device=logits.device)
    tokens = torch.where(greedy, logits.argmax(-1), tokens.clamp_(max=logits.shape[1] - 1))
    chosen = token_logprobs(scaled, tokens)
    return [Sampled(t, lp) for t, lp in zip(tokens.tolist(), chosen.tolist(), strict=True)]


def _cut(scaled: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Logits with everything outside each row's top-k and top-p at minus infinity."""
    vocab = scaled.shape[1]
    if all(p.top_k in (0, vocab) and p.top_p == 1.0 for p in params):
        return scaled
    ordered, index = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=scaled.device)
    top_k = torch.tensor([p.top_k or vocab for p in params], device=scaled.device)
    top_p = torch.tensor([p.top_p for p in params], device=scaled.device)
    kept = ordered.masked_fill(rank[None, :] >= top_k[:, None], float("-inf"))
    before = torch.softmax(kept, dim=-1).cumsum(-1) - torch.softmax(kept, dim=-1)  # the first of a row always stays
    kept = kept.masked_fill((before >= top_p[:, None]) & (rank > 0)[None, :], float("-inf"))
    return torch.full_like(scaled, float("-inf")).scatter(-1, index, kept)
