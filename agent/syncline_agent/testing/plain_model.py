"""Reference models written a second time, for tests: weights of random bits as a checkpoint stores them, and their logits in
float64, one head, one position and one expert at a time.

It shares no arithmetic with the engine: only names, shapes and what the formats mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncline.wire import dtypes
from syncline.wire.tensors import TensorSpec, TensorTable, split_axis
from syncline_agent.reference.config import EMBEDDING, FINAL_NORM, HEAD, ModelConfig

Floats = NDArray[np.float64]
Bits = NDArray[Any]
FORMATS = ("BF16", "FP8", "NVFP4")
_MULTIPLIED = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight")
_MLP = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
_NVFP4: Mapping[str, tuple[str, str, str, list[int]]] = {
    "NVFP4": ("weight", "weight_scale_2", "input_scale", []),
    "NVFP4 packed": ("weight_packed", "weight_global_scale", "input_global_scale", [1]),
}
"""Endings of names: codes, the scale of all, that of inputs; and the shape of the latter two."""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True)
class Model:
    """A version of a model as it is stored."""

    config: ModelConfig
    table: TensorTable
    bits: Mapping[str, Bits]
    """Flat unsigned units by name."""


def model(
    config: ModelConfig,
    *,
    kind: str = "BF16",
    others: Mapping[str, str] = MappingProxyType({}),
    scales: str = "F32",
    grain: str = "block",
    spelled: str = "weight_scale_inv",
    seed: int = 3,
) -> Model:
    """Random bits that stand for numbers of a sensible size. `kind`: of all matrices in layers but routers; `others`: of
    tensors whose names end so. `scales`, `grain` (block, row, column of rows, tensor) and `spelled`: the dtype of FP8's
    scales, what each is of, and how their names end."""
    draw = np.random.default_rng(seed)
    specs: list[TensorSpec] = []
    bits: dict[str, Bits] = {}

    def add(name: str, dtype: str, shape: Sequence[int], units: Bits) -> None:
        specs.append(_spec(name, dtype, shape))
        bits[name] = np.ascontiguousarray(units).reshape(-1)
        assert bits[name].size == dtypes.units(dtype, list(shape))

    for name, shape in config.tensors().items():
        base = name.removesuffix(".weight")
        usual = kind if name.endswith(_MULTIPLIED + _MLP) else "BF16"
        own = next((other for ending, other in others.items() if name.endswith(ending)), usual)
        if own in ("BF16", "F32"):
            floats = draw.normal(1.0 if "norm" in name else 0.0, 0.2, shape)
            add(name, own, shape, _bf16(floats) if own == "BF16" else floats.astype("<f4").view("<u4"))
        elif own == "FP8":
            codes = draw.integers(0, 256, shape, dtype=np.uint8)
            add(name, "F8_E4M3", shape, np.where(codes & 0x7F == 0x7F, 0, codes))
            blocks = [-(-n // of) for n, of in zip(shape, config.weight_block, strict=True)]
            shape_of = {"block": blocks, "row": [shape[0]], "column of rows": [shape[0], 1], "tensor": []}[grain]
            values = draw.uniform(0.001, 0.003, shape_of).astype(np.float32).reshape(-1)
            add(f"{base}.{spelled}", scales, shape_of, values.view("<u4") if scales == "F32" else _bf16(values))
        else:
            weight, of_all, of_inputs, shape_of = _NVFP4[own]
            packed, sixteenths = [shape[0], shape[1] // 2], [shape[0], shape[1] // 16]
            add(f"{base}.{weight}", "U8", packed, draw.integers(0, 256, packed, dtype=np.uint8))
            add(f"{base}.weight_scale", "F8_E4M3", sixteenths, draw.integers(0x28, 0x40, sixteenths, dtype=np.uint8))
            all_over = draw.uniform(0.05, 0.1, 1)
            stored = (all_over if own == "NVFP4" else 1 / all_over).astype(np.float32)
            add(f"{base}.{of_all}", "F32", shape_of, stored.view("<u4"))
            add(f"{base}.{of_inputs}", "F32", shape_of, np.ones(1, np.float32).view("<u4"))
    return Model(config, TensorTable(tensors=sorted(specs, key=lambda spec: spec.name)), bits)


def stacked(of: Model, *, turned: bool = False) -> Model:
    """The same weights with the experts of a layer in one tensor a matrix: gate above up, or turned around."""
    config, specs, bits = of.config, {spec.name: spec for spec in of.table.tensors}, dict(of.bits)
    for layer in (n for n in range(config.layers) if config.has_experts(n)):
        prefix = f"model.layers.{layer}.mlp.experts."
        for name, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            for ending, becomes in ((".weight", ""), (".weight_scale_inv", "_scale_inv")):
                every = [[f"{prefix}{e}.{part}{ending}" for part in parts] for e in range(config.experts)]
                if every[0][0] not in specs:
                    continue
                kind = specs[every[0][0]].dtype
                whole = np.stack(
                    [np.concatenate([bits.pop(one).reshape(specs.pop(one).shape) for one in own]) for own in every]
                )
                whole = whole.swapaxes(1, 2) if turned else whole
                specs[prefix + name + becomes] = _spec(prefix + name + becomes, kind, whole.shape)
                bits[prefix + name + becomes] = np.ascontiguousarray(whole).reshape(-1)
    return Model(config, TensorTable(tensors=[specs[name] for name in sorted(specs)]), bits)


def values(config: ModelConfig, bits: Mapping[str, Bits]) -> dict[str, Floats]:
    """What the stored bits stand for, by the names of plain weights; experts each by their own."""
    found: dict[str, Floats] = {}
    for name, shape in config.tensors().items():
        base = name.removesuffix(".weight")
        units = bits[name if name in bits else f"{base}.weight_packed"]
        if units.itemsize == 2:
            found[name] = _of_bf16(units).reshape(shape)
        elif units.itemsize == 4:
            found[name] = units.view("<f4").astype(np.float64).reshape(shape)
        elif f"{base}.weight_scale_2" in bits or f"{base}.weight_global_scale" in bits:
            scale = bits[f"{base}.weight_scale"]
            divided = f"{base}.weight_global_scale" in bits
            of_all = bits[f"{base}.weight_global_scale" if divided else f"{base}.weight_scale_2"]
            all_over = float(of_all.view("<f4")[0]) ** (-1 if divided else 1)
            flat = [
                _e2m1(int(units[i // 2]) >> (4 * (i % 2)) & 15) * _e4m3(int(scale[i // 16])) * all_over
                for i in range(shape[0] * shape[1])
            ]
            found[name] = np.array(flat).reshape(shape)
        else:
            scale = bits[f"{base}.weight_scale_inv" if f"{base}.weight_scale_inv" in bits else f"{base}.weight_scale"]
            wide = _of_bf16(scale) if scale.itemsize == 2 else scale.view("<f4").astype(np.float64)
            codes = np.array([_e4m3(int(code)) for code in units]).reshape(shape)
            found[name] = codes * _of_each(wide, shape, config.weight_block)
    return found


def _of_each(scale: Floats, shape: tuple[int, ...], block: tuple[int, int]) -> Floats:
    """The scale of each element of a matrix."""
    high, wide = (-(-n // per) for n, per in zip(shape, block, strict=True))
    if scale.size == 1:
        return np.full(shape, scale[0])
    if scale.size == high * wide:
        return np.array(
            [[scale[r // block[0] * wide + c // block[1]] for c in range(shape[1])] for r in range(shape[0])]
        )
    return np.array([[one] * shape[1] for one in scale])


def _spec(name: str, dtype: str, shape: Sequence[int]) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=list(shape), axis=split_axis(name, list(shape)))


def logits(config: ModelConfig, weights: Mapping[str, Floats], tokens: Sequence[int]) -> Floats:
    """Of each position [length, vocab]."""
    w, half = weights, config.head_dim // 2

    def norm(x: Floats, name: str) -> Floats:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps) * w[name]

    def turn(a_position: float) -> float:
        how = config.stretched
        if how is None:
            return a_position
        wave = 2 * np.pi / a_position
        if wave < how.original / how.high:
            return a_position
        if wave > how.original / how.low:
            return a_position / how.factor
        kept = (how.original / wave - how.low) / (how.high - how.low)
        return (1 - kept) * a_position / how.factor + kept * a_position

    def rotated(x: Floats, position: int) -> Floats:
        turned = x.copy()
        for i in range(half):
            angle = position * turn(1 / config.rope_theta ** (2 * i / config.head_dim))
            turned[i] = x[i] * np.cos(angle) - x[i + half] * np.sin(angle)
            turned[i + half] = x[i + half] * np.cos(angle) + x[i] * np.sin(angle)
        return turned

    def mlp(h: Floats, prefix: str) -> Floats:
        gate, up = h @ w[prefix + "gate_proj.weight"].T, h @ w[prefix + "up_proj.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ w[prefix + "down_proj.weight"].T

    def experts(h: Floats, prefix: str) -> Floats:
        chances = np.exp(h @ w[prefix + "gate.weight"].T)
        chances /= chances.sum()
        best = np.argsort(-chances)[: config.experts_per_token]
        shares = chances[best] / (chances[best].sum() if config.norm_topk else 1.0)
        return sum(
            (share * mlp(h, f"{prefix}experts.{e}.") for share, e in zip(shares, best, strict=True)), np.zeros_like(h)
        )

    x = w[EMBEDDING][list(tokens)]
    for layer in range(config.layers):
        p = f"model.layers.{layer}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = (
            (h @ w[f"{p}self_attn.{n}_proj.weight"].T + w.get(f"{p}self_attn.{n}_proj.bias", 0.0)).reshape(
                len(tokens), -1, config.head_dim
            )
            for n in "qkv"
        )
        if config.qk_norm:
            q, k = norm(q, p + "self_attn.q_norm.weight"), norm(k, p + "self_attn.k_norm.weight")
        mixed = np.zeros((len(tokens), config.heads, config.head_dim))
        for t in range(len(tokens)):
            for head in range(config.heads):
                group = head * config.kv_heads // config.heads
                scores = np.array([rotated(q[t, head], t) @ rotated(k[s, group], s) for s in range(t + 1)]) / np.sqrt(
                    config.head_dim
                )
                weight = np.exp(scores - scores.max())
                mixed[t, head] = (weight / weight.sum()) @ v[: t + 1, group]
        x = x + mixed.reshape(len(tokens), -1) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm.weight")
        if config.has_experts(layer):
            x = x + np.stack([experts(row, p + "mlp.") for row in h])
        else:
            x = x + mlp(h, p + "mlp.")
    return norm(x, FINAL_NORM) @ w[EMBEDDING if config.tied else HEAD].T


def _bf16(numbers: NDArray[Any]) -> Bits:
    return (numbers.astype(np.float32).view("<u4") >> 16).astype("<u2")


def _of_bf16(units: Bits) -> Floats:
    return (units.astype("<u4") << 16).view("<f4").astype(np.float64)


def _e4m3(code: int) -> float:
    exponent, fraction = code >> 3 & 15, code & 7
    size = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return -size if code & 0x80 else size


def _e2m1(code: int) -> float:
    return -_E2M1[code & 7] if code & 8 else _E2M1[code & 7]
