"""A decoder in plain torch, on CPU or CUDA, on one rank or on each of several, with a KV cache by slots.

It computes with the very tensors it is given: nothing is packed or kept in another precision, so bits that an
arm patches in place between two calls of `forward` are the bits of the next token. A weight is widened to float32 for
the one product that needs it; activations, cache, logits and softmax are float32, so a log-probability sampled token by
token and one recomputed over the whole sequence from the same bits agree to about 1e-5.

A slot holds one sequence's keys and values. It never tracks positions itself: the caller feeds each position of a slot
once, in order, and reuses a slot by starting again at position 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional as F

from syncline.errors import Rejected
from syncline_agent.reference.config import ModelConfig
from syncline_agent.reference.network import Network, network_of_names, norm
from syncline_agent.reference.ranks import ALONE, Ranks
from syncline_agent.reference.weights import load_weights

__all__ = ["Decoder", "ModelConfig", "load_weights", "sequence_logits", "token_logprobs"]

ROWS_A_BLOCK = 128
"""Rows that attend together: bounds the gathered keys and values of a long prefill."""


def _rotary_tables(config: ModelConfig, length: int, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    turns = config.rope_theta**-half
    if config.stretched is not None:
        how = config.stretched
        waves = how.original * turns / (2 * math.pi)  # in the positions that the model was first trained with
        kept = ((waves - how.low) / (how.high - how.low)).clamp(0, 1)
        turns = turns * (kept + (1 - kept) / how.factor)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), turns)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [..., heads, head_dim]; cos and sin broadcast over the heads."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def sequence_logits(config: ModelConfig, weights: Mapping[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Teacher-forced logits [batch, length, vocab] in float32 of tokens [batch, length], differentiable in the weights.

    Sequences start at position 0; padding belongs at the right, where causality keeps it from touching anything.
    """
    return _sequence(network_of_names(config, weights), tokens)


def _sequence(network: Network, tokens: torch.Tensor) -> torch.Tensor:
    config = network.config
    batch, length = tokens.shape
    x = network.embed(tokens)
    cos, sin = (table[:, None, :] for table in _rotary_tables(config, length, tokens.device))
    for layer in network.layers:
        q, k, v = network.queries(layer, norm(x, layer.norm_attention, config.norm_eps))
        attended = F.scaled_dot_product_attention(
            _rotate(q, cos, sin).transpose(1, 2),
            _rotate(k, cos, sin).transpose(1, 2),
            v.transpose(1, 2),
            is_causal=True,
            enable_gqa=config.heads != config.kv_heads,
        )
        x = x + layer.o(attended.transpose(1, 2).reshape(batch, length, -1))
        x = x + layer.mlp(norm(x, layer.norm_mlp, config.norm_eps))
    return network.logits(x)[..., : config.vocab]


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of each token [...] under softmax(logits [..., vocab] / temperature); 0 is read as 1."""
    scaled = logits.float() / (temperature or 1.0)
    return torch.log_softmax(scaled, dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


class Decoder:
    """A model over live weights, with room for `slots` sequences of up to `max_len` tokens."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor] | Network,
        *,
        slots: int = 32,
        max_len: int | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """`weights`: plain tensors by name, or what this one of the `ranks` holds."""
        self.config = config
        self.network = weights if isinstance(weights, Network) else network_of_names(config, weights)
        self.slots = slots
        self.max_len = min(max_len or config.max_positions, config.max_positions)
        self.device = self.network.device
        self._ranks = ranks
        self._cos, self._sin = _rotary_tables(config, self.max_len, self.device)
        shape = (config.layers, slots, self.max_len, self.network.kv_heads, config.head_dim)
        self._keys = torch.zeros(shape, dtype=torch.float32, device=self.device)
        self._values = torch.zeros_like(self._keys)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Feed row i's token at its position of its slot; returns float32 logits [rows, vocab] for what comes next.

        Rows may be one token each of many sequences, whole prompts (consecutive positions of one slot) or a mix; a row
        sees its own slot up to its own position, rows of this call included. A position must be fed after all smaller
        ones of its slot.
        """
        if not len(tokens) == len(slots) == len(positions) > 0:
            raise Rejected(
                f"forward needs a slot and a position a token, got {len(tokens)}, {len(slots)}, {len(positions)}"
            )
        for what, values, limit in (
            ("token", tokens, self.config.vocab),
            ("slot", slots, self.slots),
            ("position", positions, self.max_len),
        ):
            if min(values) < 0 or max(values) >= limit:
                raise Rejected(
                    f"forward got {what} {min(values)}..{max(values)}, this decoder has {what}s 0..{limit - 1}"
                )
        self._ranks.step(tokens, slots, positions)
        try:
            return self._feed(tokens, slots, positions)
        except Exception as error:
            self._ranks.broke(error)
            raise

    def _feed(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        ranks, network, config = self._ranks, self.network, self.config
        rows, seen = len(tokens), max(positions) + 1
        for restarted in {s for s, p in zip(slots, positions, strict=True) if p == 0}:
            self._keys[:, restarted] = 0  # a masked NaN of the slot's last sequence would still spoil the sums
            self._values[:, restarted] = 0
        at = torch.tensor([tokens, slots, positions], device=self.device)  # one copy to the device
        slot, position = at[1], at[2]
        cos, sin = self._cos[position][:, None, :], self._sin[position][:, None, :]
        hidden_from = (torch.arange(seen, device=self.device)[None, :] <= position[:, None])[:, None, None, :]
        x = ranks.sum(network.embed(at[0]))
        for number, layer in enumerate(network.layers):
            q, k, v = network.queries(layer, norm(x, layer.norm_attention, config.norm_eps))
            q = _rotate(q, cos, sin)
            self._keys[number, slot, position] = _rotate(k, cos, sin)
            self._values[number, slot, position] = v
            blocks = [
                self._attend(number, q[start:stop], slot[start:stop], hidden_from[start:stop])
                for start, stop in ((s, s + ROWS_A_BLOCK) for s in range(0, rows, ROWS_A_BLOCK))
            ]
            x = x + ranks.sum(layer.o(torch.cat(blocks)))
            x = x + ranks.sum(layer.mlp(norm(x, layer.norm_mlp, config.norm_eps)))
        return ranks.columns(network.logits(x))[..., : config.vocab]

    def _attend(self, number: int, q: torch.Tensor, slot: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        seen = visible.shape[-1]
        keys = self._keys[number, :, :seen][slot].transpose(1, 2)  # [rows, kv_heads, seen, head_dim]
        values = self._values[number, :, :seen][slot].transpose(1, 2)
        grouped = q.view(
            q.shape[0], self.network.kv_heads, -1, self.config.head_dim
        )  # query heads that share a kv head
        attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=visible)
        return attended.reshape(q.shape[0], -1)

    @torch.inference_mode()
    def logprobs(self, tokens: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
        """Log-probabilities [batch, length - 1] of tokens[:, 1:] [batch, length] given what precedes; no cache, and only
        where all weights are here."""
        logits = _sequence(self.network, tokens.to(self.device))
        return token_logprobs(logits[:, :-1], tokens[:, 1:].to(self.device), temperature=temperature)
