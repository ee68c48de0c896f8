"""What a reference model looks like: the few fields of a Hugging Face `config.json` that decide its shapes and its
arithmetic. Llama, Qwen2, Qwen3 and Qwen3-MoE are such models.

It owns the list of tensors that such a model must have. What the reference decoder cannot compute exactly (other stretched
rotary positions, sliding windows, another activation) is refused here by name, before a weight is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from syncline.errors import LayoutRefused

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"

_KINDS = ("llama", "qwen2", "qwen3", "qwen3_moe")


@dataclass(frozen=True, slots=True)
class Llama3Positions:
    """How Llama 3.1 and later stretch rotary positions: waves longer than `original / low` are slowed by `factor`, those
    shorter than `original / high` are left alone, and between them it goes smoothly."""

    factor: float
    low: float
    high: float
    original: int

    @classmethod
    def from_hf(cls, rope: Mapping[str, Any]) -> Self:
        return cls(
            float(rope["factor"]),
            float(rope["low_freq_factor"]),
            float(rope["high_freq_factor"]),
            int(rope["original_max_position_embeddings"]),
        )

    def to_hf(self) -> dict[str, Any]:
        return {
            "factor": self.factor,
            "high_freq_factor": self.high,
            "low_freq_factor": self.low,
            "original_max_position_embeddings": self.original,
            "rope_type": "llama3",
        }


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, the last one perhaps of experts."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    tied: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    """Queries and keys are normed a head, as Qwen3 does."""
    experts: int = 0
    """In each layer that is no dense one; 0: all are dense."""
    experts_per_token: int = 0
    expert_intermediate: int = 0
    norm_topk: bool = True
    """The chosen experts' weights are made to sum to one."""
    dense_layers: tuple[int, ...] = ()
    """Of a model of experts, the layers without."""
    weight_block: tuple[int, int] = (128, 128)
    """Rows and columns that share a scale, where weights are FP8."""
    stretched: Llama3Positions | None = None
    """Rotary positions; None: as they are."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Read a parsed `config.json`; raises LayoutRefused for what this decoder would compute differently."""
        try:
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            rope = config.get("rope_parameters") or {}
            scaling = config.get("rope_scaling") or rope
            positions = scaling.get("rope_type", scaling.get("type", "default"))
            kind = config.get("model_type", "qwen2")
            moe = kind == "qwen3_moe"
            layers = int(config["num_hidden_layers"])
            block = (config.get("quantization_config") or {}).get("weight_block_size") or (128, 128)
            parsed = cls(
                vocab=int(config["vocab_size"]),
                hidden=hidden,
                intermediate=int(config["intermediate_size"]),
                layers=layers,
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                max_positions=int(config.get("max_position_embeddings", 2048)),
                rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
                norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                tied=bool(config.get("tie_word_embeddings", False)),
                qkv_bias=bool(config.get("attention_bias", config.get("model_type") == "qwen2")),
                qk_norm=kind in ("qwen3", "qwen3_moe"),
                experts=int(config["num_experts"]) if moe else 0,
                experts_per_token=int(config["num_experts_per_tok"]) if moe else 0,
                expert_intermediate=int(config["moe_intermediate_size"]) if moe else 0,
                norm_topk=bool(config.get("norm_topk_prob", False)) if moe else True,
                dense_layers=_dense_layers(config, layers) if moe else (),
                weight_block=(int(block[0]), int(block[1])),
                stretched=Llama3Positions.from_hf(scaling) if positions == "llama3" else None,
            )
        except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
            raise LayoutRefused(
                f"config.json: {error!r} is missing or not a number; give a Llama-, Qwen2- or Qwen3-style config"
            ) from error
        for field, value, only in (
            ("model_type", kind, _KINDS),
            ("hidden_act", config.get("hidden_act", "silu"), ("silu",)),
            ("rope type", positions, ("default", "llama3")),
            ("use_sliding_window", bool(config.get("use_sliding_window", False)), (False,)),
        ):
            if value not in only:
                raise LayoutRefused(
                    f"config.json: {field} {value!r} is not one of {only}; the reference engine cannot serve it"
                )
        if parsed.head_dim % 2 or parsed.heads % parsed.kv_heads:
            raise LayoutRefused(
                f"config.json: odd head_dim {parsed.head_dim}, or {parsed.heads} heads no multiple of {parsed.kv_heads}"
            )
        if parsed.experts < parsed.experts_per_token or min(parsed.weight_block) < 1:
            raise LayoutRefused(
                f"config.json: {parsed.experts_per_token} of {parsed.experts} experts, weight blocks of"
                f" {list(parsed.weight_block)}; neither can be"
            )
        return parsed

    @property
    def kind(self) -> str:
        """The `model_type` of such a config."""
        if self.experts:
            return "qwen3_moe"
        return "qwen3" if self.qk_norm else ("qwen2" if self.qkv_bias else "llama")

    def has_experts(self, layer: int) -> bool:
        return self.experts > 0 and layer not in self.dense_layers

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that `from_hf` reads back to an equal value."""
        written: dict[str, Any] = {
            "architectures": [_ARCHITECTURES[self.kind]],
            "attention_bias": self.qkv_bias,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.max_positions,
            "model_type": self.kind,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocab,
        }
        if self.stretched is not None:
            written["rope_scaling"] = self.stretched.to_hf()
        if self.experts:
            written |= {
                "mlp_only_layers": list(self.dense_layers),
                "moe_intermediate_size": self.expert_intermediate,
                "norm_topk_prob": self.norm_topk,
                "num_experts": self.experts,
                "num_experts_per_tok": self.experts_per_token,
            }
        if self.weight_block != (128, 128):
            written["quantization_config"] = {"quant_method": "fp8", "weight_block_size": list(self.weight_block)}
        return written

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of plain weights; the head only if it is not tied."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (self.vocab, self.hidden)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            shapes[prefix + "input_layernorm.weight"] = (self.hidden,)
            shapes[prefix + "post_attention_layernorm.weight"] = (self.hidden,)
            for name, rows in (("q", q), ("k", kv), ("v", kv)):
                shapes[f"{prefix}self_attn.{name}_proj.weight"] = (rows, self.hidden)
                if self.qkv_bias:
                    shapes[f"{prefix}self_attn.{name}_proj.bias"] = (rows,)
            if self.qk_norm:
                for name in "qk":
                    shapes[f"{prefix}self_attn.{name}_norm.weight"] = (self.head_dim,)
            shapes[prefix + "self_attn.o_proj.weight"] = (self.hidden, q)
            for mlp, width in self.mlps(layer):
                shapes[mlp + "gate_proj.weight"] = (width, self.hidden)
                shapes[mlp + "up_proj.weight"] = (width, self.hidden)
                shapes[mlp + "down_proj.weight"] = (self.hidden, width)
            if self.has_experts(layer):
                shapes[prefix + "mlp.gate.weight"] = (self.experts, self.hidden)
        shapes[FINAL_NORM] = (self.hidden,)
        if not self.tied:
            shapes[HEAD] = (self.vocab, self.hidden)
        return shapes

    def mlps(self, layer: int) -> list[tuple[str, int]]:
        """How the names of each MLP of a layer begin, and how wide it is."""
        prefix = f"model.layers.{layer}.mlp."
        if not self.has_experts(layer):
            return [(prefix, self.intermediate)]
        return [(f"{prefix}experts.{expert}.", self.expert_intermediate) for expert in range(self.experts)]


_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def _dense_layers(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    only, step = set(config.get("mlp_only_layers") or ()), int(config.get("decoder_sparse_step", 1))
    return tuple(layer for layer in range(layers) if layer in only or (layer + 1) % step)
