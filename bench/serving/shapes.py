"""The model that is served on a GPU: a Qwen3-shaped decoder of about a given size, its first weights and its training steps, all of them
made on the device from seeds.

A step moves each weight by one unit in its last place with the chance that Adam's step of one learning rate crosses a rounding boundary
there, as `bench.model` does on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import torch

from syncline_agent.reference.config import ModelConfig

DEVIATION = 0.02
RATE_OF_SHARE = {0.00085: 1.12e-8, 0.01: 1.85e-7}
"""Learning rates that change these shares of normal weights of DEVIATION, about; the share that came of it is measured."""
_UNITS_AT_ONCE = 1 << 24

Weights = Mapping[str, torch.Tensor]


def model_config(size_gb: float) -> ModelConfig:
    """Of at least this size in BF16, in layers as wide as those of a 70B model; below a tenth of a GB, of tiny ones."""
    if size_gb < 0.1:
        one = _config(vocab=512, hidden=256, intermediate=768, heads=4, kv_heads=2, head_dim=64)
    else:
        one = _config(vocab=32768, hidden=8192, intermediate=28672, heads=64, kv_heads=8, head_dim=128)
    first = size_bytes(one)
    layer = size_bytes(replace(one, layers=2)) - first
    return replace(one, layers=1 + max(0, -int(-(size_gb * 1e9 - first) // layer)))


def _config(*, vocab: int, hidden: int, intermediate: int, heads: int, kv_heads: int, head_dim: int) -> ModelConfig:
    """Of one layer."""
    return ModelConfig(
        vocab=vocab,
        hidden=hidden,
        intermediate=intermediate,
        layers=1,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=2048,
        tied=False,
        qkv_bias=False,
        qk_norm=True,
    )


def size_bytes(config: ModelConfig) -> int:
    return 2 * sum(prod(shape) for shape in config.tensors().values())


def first_weights(config: ModelConfig, device: str) -> dict[str, torch.Tensor]:
    """BF16 tensors by name."""
    generator = torch.Generator(device).manual_seed(0)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in config.tensors().items():
        tensor = torch.empty(shape, dtype=torch.bfloat16, device=device)
        if name.endswith("norm.weight"):
            tensor.fill_(1.0)
        for piece in _pieces(tensor) if not name.endswith("norm.weight") else ():
            piece.copy_(torch.randn(piece.shape, device=device, generator=generator) * DEVIATION)
        weights[name] = tensor
    return weights


def move(weights: Weights, *, rate: float, seed: int) -> None:
    """One training step, in place."""
    device = next(iter(weights.values())).device
    generator = torch.Generator(device).manual_seed(seed)
    exponents = torch.arange(256, dtype=torch.float64).clamp(1, 254)
    chances = (rate / torch.exp2(exponents - 127 - 7)).clamp(max=1.0).float().to(device)
    for tensor in weights.values():
        for piece in _pieces(tensor):
            bits = piece.view(torch.int16)
            drawn = torch.rand(bits.shape, device=device, generator=generator)
            chance = chances[((bits >> 7) & 0xFF).long()]
            moved = (drawn < chance) & ((bits & 0x7FFF) != 0)
            up = (drawn * 2 < chance).to(torch.int16) * 2 - 1
            bits.add_(torch.where(moved, up, torch.zeros_like(up)))


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    flat = tensor.view(-1)
    for at in range(0, flat.numel(), _UNITS_AT_ONCE):
        yield flat[at : at + _UNITS_AT_ONCE]
