"""A Qwen2-shaped decoder in plain torch, on CPU or CUDA, with a KV cache by slots.

It computes with the very tensors it is given: nothing is packed, fused or kept in another precision, so bits that an
arm patches in place between two calls of `forward` are the bits of the next token. A weight is widened to float32 for
the one product that needs it; activations, cache, logits and softmax are float32, so a log-probability sampled token by
token and one recomputed over the whole sequence from the same bits agree to about 1e-5.

A slot holds one sequence's keys and values. It never tracks positions itself: the caller feeds each position of a slot
once, in order, and reuses a slot by starting again at position 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from syncline.errors import Rejected
from syncline_agent.reference.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig
from syncline_agent.reference.weights import load_weights

__all__ = ["Decoder", "ModelConfig", "load_weights", "sequence_logits", "token_logprobs"]

ROWS_A_BLOCK = 128
"""Rows that attend together: bounds the gathered keys and values of a long prefill."""


@dataclass(frozen=True, slots=True)
class _Layer:
    norm_attention: torch.Tensor
    norm_mlp: torch.Tensor
    q: tuple[torch.Tensor, torch.Tensor | None]
    k: tuple[torch.Tensor, torch.Tensor | None]
    v: tuple[torch.Tensor, torch.Tensor | None]
    o: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


def _layer(weights: Mapping[str, torch.Tensor], number: int) -> _Layer:
    prefix = f"model.layers.{number}."

    def projection(name: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        return weights[f"{prefix}self_attn.{name}_proj.weight"], weights.get(f"{prefix}self_attn.{name}_proj.bias")

    return _Layer(
        norm_attention=weights[prefix + "input_layernorm.weight"],
        norm_mlp=weights[prefix + "post_attention_layernorm.weight"],
        q=projection("q"),
        k=projection("k"),
        v=projection("v"),
        o=weights[prefix + "self_attn.o_proj.weight"],
        gate=weights[prefix + "mlp.gate_proj.weight"],
        up=weights[prefix + "mlp.up_proj.weight"],
        down=weights[prefix + "mlp.down_proj.weight"],
    )


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return F.linear(x, weight.float(), None if bias is None else bias.float())


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _mlp(x: torch.Tensor, layer: _Layer) -> torch.Tensor:
    return _linear(F.silu(_linear(x, layer.gate)) * _linear(x, layer.up), layer.down)


def _rotary_tables(config: ModelConfig, length: int, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float64), config.rope_theta**-half)
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
    batch, length = tokens.shape
    x = F.embedding(tokens, weights[EMBEDDING]).float()
    cos, sin = (table[:, None, :] for table in _rotary_tables(config, length, tokens.device))
    for number in range(config.layers):
        layer = _layer(weights, number)
        h = _norm(x, layer.norm_attention, config.norm_eps)
        q = _rotate(_linear(h, *layer.q).view(batch, length, config.heads, config.head_dim), cos, sin)
        k = _rotate(_linear(h, *layer.k).view(batch, length, config.kv_heads, config.head_dim), cos, sin)
        v = _linear(h, *layer.v).view(batch, length, config.kv_heads, config.head_dim)
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            is_causal=True,
            enable_gqa=config.heads != config.kv_heads,
        )
        x = x + _linear(attended.transpose(1, 2).reshape(batch, length, -1), layer.o)
        x = x + _mlp(_norm(x, layer.norm_mlp, config.norm_eps), layer)
    return _linear(_norm(x, weights[FINAL_NORM], config.norm_eps), weights[EMBEDDING if config.tied else HEAD])


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of each token [...] under softmax(logits [..., vocab] / temperature); 0 is read as 1."""
    scaled = logits.float() / (temperature or 1.0)
    return torch.log_softmax(scaled, dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


class Decoder:
    """A model over live weights, with room for `slots` sequences of up to `max_len` tokens."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, torch.Tensor], *, slots: int = 32, max_len: int | None = None
    ) -> None:
        self.config = config
        self.weights = weights
        self.slots = slots
        self.max_len = min(max_len or config.max_positions, config.max_positions)
        self.device = weights[EMBEDDING].device
        self._layers = [_layer(weights, number) for number in range(config.layers)]
        self._cos, self._sin = _rotary_tables(config, self.max_len, self.device)
        shape = (config.layers, slots, self.max_len, config.kv_heads, config.head_dim)
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
        rows, config = len(tokens), self.config
        seen = max(positions) + 1
        for restarted in {s for s, p in zip(slots, positions, strict=True) if p == 0}:
            self._keys[:, restarted] = 0  # a masked NaN of the slot's last sequence would still spoil the sums
            self._values[:, restarted] = 0
        at = torch.tensor([tokens, slots, positions], device=self.device)  # one copy to the device
        slot, position = at[1], at[2]
        cos, sin = self._cos[position][:, None, :], self._sin[position][:, None, :]
        hidden_from = (torch.arange(seen, device=self.device)[None, :] <= position[:, None])[:, None, None, :]
        x = F.embedding(at[0], self.weights[EMBEDDING]).float()
        for number, layer in enumerate(self._layers):
            h = _norm(x, layer.norm_attention, config.norm_eps)
            q = _rotate(_linear(h, *layer.q).view(rows, config.heads, config.head_dim), cos, sin)
            k = _rotate(_linear(h, *layer.k).view(rows, config.kv_heads, config.head_dim), cos, sin)
            self._keys[number, slot, position] = k
            self._values[number, slot, position] = _linear(h, *layer.v).view(rows, config.kv_heads, config.head_dim)
            blocks = [
                self._attend(number, q[start:stop], slot[start:stop], hidden_from[start:stop])
                for start, stop in ((s, s + ROWS_A_BLOCK) for s in range(0, rows, ROWS_A_BLOCK))
            ]
            x = x + _linear(torch.cat(blocks), layer.o)
            x = x + _mlp(_norm(x, layer.norm_mlp, config.norm_eps), layer)
        head = self.weights[EMBEDDING if config.tied else HEAD]
        return _linear(_norm(x, self.weights[FINAL_NORM], config.norm_eps), head)

    def _attend(self, number: int, q: torch.Tensor, slot: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        seen = visible.shape[-1]
        keys = self._keys[number, :, :seen][slot].transpose(1, 2)  # [rows, kv_heads, seen, head_dim]
        values = self._values[number, :, :seen][slot].transpose(1, 2)
        grouped = q.view(q.shape[0], self.config.kv_heads, -1, self.config.head_dim)  # query heads that share a kv head
        attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=visible)
        return attended.reshape(q.shape[0], -1)

    @torch.inference_mode()
    def logprobs(self, tokens: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
        """Log-probabilities [batch, length - 1] of tokens[:, 1:] [batch, length] given what precedes; no cache."""
        logits = sequence_logits(self.config, self.weights, tokens.to(self.device))
        return token_logprobs(logits[:, :-1], tokens[:, 1:].to(self.device), temperature=temperature)
