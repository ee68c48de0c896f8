"""What a rank computes between two attentions: the products, norms and experts of a reference model, over weights wherever
they lie.

A network is made from plain tensors by name (a trainer's, all of one rank) or from a rank's parameters. It holds no cache
and knows no requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional as F

from syncline_agent.reference.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig
from syncline_agent.reference.matrices import Linear, Plain, Weight, linear, weight
from syncline_agent.reference.parameters import Parameters


class Mlp(Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention's products and norms, and the MLP or the experts."""

    norm_attention: torch.Tensor
    norm_mlp: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: Linear
    mlp: Mlp


@dataclass(frozen=True, slots=True)
class Network:
    """All layers of a rank. Where it holds a part of rows or experts, what it computes is to be summed over the ranks; of
    the logits, each rank has its own columns."""

    config: ModelConfig
    embedding: Weight
    layers: Sequence[Layer]
    norm: torch.Tensor
    head: Weight
    heads: int
    kv_heads: int
    first_token: int = 0
    """Of the embedding's rows."""

    @property
    def device(self) -> torch.device:
        return self.norm.device

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """This rank's share: zero for tokens whose rows others hold."""
        rows = tokens - self.first_token
        mine = (rows >= 0) & (rows < self.embedding.rows)
        found = self.embedding.pick(rows.clamp(0, self.embedding.rows - 1))
        return torch.where(mine[..., None], found, 0.0)  # a product would keep what is not finite

    def queries(self, layer: Layer, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values [..., heads, head_dim], before positions are turned in."""
        config = self.config
        q, k, v = (found.unflatten(-1, (-1, config.head_dim)) for found in layer.qkv.all(x))
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = norm(q, layer.q_norm, config.norm_eps), norm(k, layer.k_norm, config.norm_eps)
        return q, k, v

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Of this rank's rows of the head."""
        return F.linear(norm(x, self.norm, self.config.norm_eps), self.head())


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


@dataclass(frozen=True, slots=True)
class SwiGlu:
    """The gated MLP."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up.all(x)
        return self.down(F.silu(gate) * up)


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts that are here, of those that the router chooses from."""

    router: torch.Tensor
    here: Sequence[SwiGlu]
    first: int
    each: int
    """How many a token gets."""
    normed: bool
    """Their weights sum to one."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        chances = torch.softmax(F.linear(flat, self.router.float()), dim=-1)
        weights, chosen = chances.topk(self.each, dim=-1)
        if self.normed:
            weights = weights / weights.sum(-1, keepdim=True)
        found = torch.zeros_like(flat)
        for number, expert in enumerate(self.here, self.first):
            row, place = torch.where(chosen == number)
            if row.numel():
                found = found.index_add(0, row, expert(flat[row]) * weights[row, place, None])
        return found.reshape(x.shape)


def network_of_names(config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> Network:
    """Over whole, plain tensors by name; differentiable in them."""

    def matrix(*names: str) -> Linear:
        return Linear([weights[f"{name}.weight"].float for name in names], [weights.get(f"{n}.bias") for n in names])

    def mlp(prefix: str) -> SwiGlu:
        return SwiGlu(matrix(prefix + "gate_proj", prefix + "up_proj"), matrix(prefix + "down_proj"))

    def layer(number: int) -> Layer:
        prefix = f"model.layers.{number}."
        own = prefix + "self_attn."
        mlps = [mlp(name) for name, _ in config.mlps(number)]
        router = weights.get(prefix + "mlp.gate.weight")
        return Layer(
            weights[prefix + "input_layernorm.weight"],
            weights[prefix + "post_attention_layernorm.weight"],
            matrix(own + "q_proj", own + "k_proj", own + "v_proj"),
            weights.get(own + "q_norm.weight"),
            weights.get(own + "k_norm.weight"),
            matrix(own + "o_proj"),
            mlps[0] if router is None else Experts(router, mlps, 0, config.experts_per_token, config.norm_topk),
        )

    embedding, head = Plain(weights[EMBEDDING]), Plain(weights[EMBEDDING if config.tied else HEAD])
    layers = [layer(number) for number in range(config.layers)]
    return Network(config, embedding, layers, weights[FINAL_NORM], head, config.heads, config.kv_heads)


def network_of(config: ModelConfig, parameters: Parameters) -> Network:
    """Over what a rank holds, in place."""
    slices = parameters.slices

    def mlp(prefix: str, expert: int | None = None) -> SwiGlu:
        return SwiGlu(
            linear(parameters, prefix + "gate_up_proj", expert=expert),
            linear(parameters, prefix + "down_proj", expert=expert),
        )

    def mlps(number: int) -> Mlp:
        prefix = f"model.layers.{number}.mlp."
        if not config.has_experts(number):
            return mlp(prefix)
        here = [mlp(prefix + "experts.", expert) for expert in range(slices.experts)]
        router = parameters[prefix + "gate.weight"]
        return Experts(router, here, slices.first_expert, config.experts_per_token, config.norm_topk)

    def layer(number: int) -> Layer:
        prefix = f"model.layers.{number}."
        own = prefix + "self_attn."
        return Layer(
            parameters[prefix + "input_layernorm.weight"],
            parameters[prefix + "post_attention_layernorm.weight"],
            linear(parameters, own + "qkv_proj"),
            parameters.find(own + "q_norm.weight"),
            parameters.find(own + "k_norm.weight"),
            linear(parameters, own + "o_proj"),
            mlps(number),
        )

    embedding, head = (name.removesuffix(".weight") for name in (EMBEDDING, HEAD))
    rows = weight(parameters, embedding)
    return Network(
        config,
        rows,
        [layer(number) for number in range(config.layers)],
        parameters[FINAL_NORM],
        weight(parameters, head) if head in slices.matrices else rows,
        slices.heads,
        slices.kv_heads,
        slices.vocab.start,
    )
