"""What a reference model looks like: the few fields of a Hugging Face `config.json` that decide its shapes and its
arithmetic.

It owns the list of tensors that such a model must have. What the reference decoder cannot compute exactly (scaled
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


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Qwen2-shaped decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

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

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Read a parsed `config.json`; raises LayoutRefused for what this decoder would compute differently."""
        try:
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            rope = config.get("rope_parameters") or {}
            parsed = cls(
                vocab=int(config["vocab_size"]),
                hidden=hidden,
                intermediate=int(config["intermediate_size"]),
                layers=int(config["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                max_positions=int(config.get("max_position_embeddings", 2048)),
                rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
                norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                tied=bool(config.get("tie_word_embeddings", False)),
                qkv_bias=bool(config.get("attention_bias", config.get("model_type") == "qwen2")),
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise LayoutRefused(
                f"config.json: {error!r} is missing or not a number; give a Qwen2-style config"
            ) from error
        scaling = config.get("rope_scaling") or rope
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        for field, value, only in (
            ("model_type", config.get("model_type", "qwen2"), ("qwen2", "llama")),
            ("hidden_act", config.get("hidden_act", "silu"), ("silu",)),
            ("rope type", kind, ("default",)),
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
        return parsed

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that `from_hf` reads back to an equal value."""
        return {
            "architectures": ["Qwen2ForCausalLM" if self.qkv_bias else "LlamaForCausalLM"],
            "attention_bias": self.qkv_bias,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.max_positions,
            "model_type": "qwen2" if self.qkv_bias else "llama",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocab,
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor; the head only if it is not tied."""
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
            shapes[prefix + "self_attn.o_proj.weight"] = (self.hidden, q)
            shapes[prefix + "mlp.gate_proj.weight"] = (self.intermediate, self.hidden)
            shapes[prefix + "mlp.up_proj.weight"] = (self.intermediate, self.hidden)
            shapes[prefix + "mlp.down_proj.weight"] = (self.hidden, self.intermediate)
        shapes[FINAL_NORM] = (self.hidden,)
        if not self.tied:
            shapes[HEAD] = (self.vocab, self.hidden)
        return shapes
