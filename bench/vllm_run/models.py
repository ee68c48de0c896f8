"""Qwen3-shaped checkpoints that vLLM loads, made on the device, and their next versions: BF16, FP8 in blocks, a mixture of experts.

A step moves a hundredth of every weight to a neighbour, as training does, and draws one in two thousand anew, so that other
tokens are the likeliest after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from syncline.checkpoint import header_bytes

MOVED, DRAWN = 1e-2, 5e-4
BLOCK = 128
CODES_MOST = 448.0
_KINDS = {torch.int16: "BF16", torch.uint8: "F8_E4M3", torch.int32: "F32"}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head: int = 128
    vocab: int = 32768
    experts: int = 0
    """Of each layer; 0 is a dense one."""
    experts_a_token: int = 4
    fp8: bool = False

    def config(self) -> dict[str, Any]:
        """As `config.json` has it."""
        told: dict[str, Any] = {
            "architectures": ["Qwen3MoeForCausalLM" if self.experts else "Qwen3ForCausalLM"],
            "model_type": "qwen3_moe" if self.experts else "qwen3",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
        }
        if self.experts:
            told |= {
                "num_experts": self.experts,
                "num_experts_per_tok": self.experts_a_token,
                "moe_intermediate_size": self.inner,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "norm_topk_prob": True,
            }
        if self.fp8:
            told["quantization_config"] = {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": [BLOCK, BLOCK],
                # As published ones have it: vLLM would round the router's BF16 to FP8 without a scale.
                "modules_to_not_convert": [
                    name.removesuffix(".weight")
                    for name in self.plain()
                    if name.endswith(("mlp.gate.weight", "lm_head.weight"))
                ],
            }
        return told

    def matrices(self) -> dict[str, tuple[int, int]]:
        """The weights that are quantized where any are."""
        found: dict[str, tuple[int, int]] = {}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            for name, rows in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
                found[f"{prefix}self_attn.{name}_proj.weight"] = (rows * self.head, self.hidden)
            found[f"{prefix}self_attn.o_proj.weight"] = (self.hidden, self.heads * self.head)
            of_layer = [f"mlp.experts.{expert}." for expert in range(self.experts)] or ["mlp."]
            for part in of_layer:
                found[f"{prefix}{part}gate_proj.weight"] = found[f"{prefix}{part}up_proj.weight"] = (
                    self.inner,
                    self.hidden,
                )
                found[f"{prefix}{part}down_proj.weight"] = (self.hidden, self.inner)
        return found

    def plain(self) -> dict[str, tuple[int, ...]]:
        """The tensors that stay in BF16."""
        found: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden),
            "lm_head.weight": (self.vocab, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            found[f"{prefix}self_attn.q_norm.weight"] = found[f"{prefix}self_attn.k_norm.weight"] = (self.head,)
            found[f"{prefix}input_layernorm.weight"] = found[f"{prefix}post_attention_layernorm.weight"] = (
                self.hidden,
            )
            if self.experts:
                found[f"{prefix}mlp.gate.weight"] = (self.experts, self.hidden)
        return found


class Model:
    """The newest weights, as integers on the device."""

    def __init__(self, shape: Shape, device: str, seed: int = 1) -> None:
        self.shape = shape
        self._device = device
        self._random = torch.Generator(device).manual_seed(seed)
        self._bits: dict[str, torch.Tensor] = {}
        for name, size in shape.plain().items():
            self._bits[name] = self._values(name, size)
        for name, size in shape.matrices().items():
            if not shape.fp8:
                self._bits[name] = self._values(name, size)
                continue
            self._bits[name] = self._codes(size)
            blocks = tuple(-(-n // BLOCK) for n in size)
            # Of codes as wide as these, so that products are as large as in BF16.
            scale = torch.rand(blocks, generator=self._random, device=device) + 0.5
            self._bits[f"{name}_scale_inv"] = (scale * 1.5 / size[1] ** 0.5 / 100.0).view(torch.int32)

    @property
    def nbytes(self) -> int:
        return sum(bits.nbytes for bits in self._bits.values())

    def step(self) -> None:
        for name, bits in self._bits.items():
            moved = torch.rand(bits.shape, generator=self._random, device=self._device) < MOVED
            if bits.dtype == torch.uint8:
                bits.copy_(torch.where(moved, self._codes(bits.shape), bits))
                continue
            bits += moved.to(bits.dtype)  # one unit in the last place away from zero
            if "norm" in name or bits.dtype == torch.int32:
                continue
            anew = torch.rand(bits.shape, generator=self._random, device=self._device) < DRAWN
            bits.copy_(torch.where(anew, self._values(name, bits.shape), bits))

    def write(self, folder: Path) -> None:
        """A checkpoint in a new folder."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.shape.config()), encoding="utf-8")
        (folder / "generation_config.json").write_text("{}", encoding="utf-8")
        widest = sorted(self._bits.items(), key=lambda named: (-named[1].element_size(), named[0]))
        named = [(name, _KINDS[bits.dtype], list(bits.shape)) for name, bits in widest]
        with (folder / "model.safetensors").open("wb") as file:
            file.write(header_bytes(named, {"format": "pt"}))
            for _, bits in widest:
                file.write(bits.reshape(-1).view(torch.uint8).cpu().numpy().data)

    def _values(self, name: str, size: tuple[int, ...] | torch.Size) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(size, dtype=torch.bfloat16, device=self._device).view(torch.int16)
        known: Mapping[str, float] = {"lm_head.weight": 4.0 / size[-1] ** 0.5, "model.embed_tokens.weight": 1.0}
        width = known[name] if name in known else 1.5 / size[-1] ** 0.5
        drawn = torch.randn(size, generator=self._random, device=self._device) * width
        return drawn.to(torch.bfloat16).view(torch.int16)

    def _codes(self, size: tuple[int, ...] | torch.Size) -> torch.Tensor:
        drawn = torch.randn(size, generator=self._random, device=self._device) * 100.0
        return drawn.clamp(-CODES_MOST, CODES_MOST).to(torch.float8_e4m3fn).view(torch.uint8)
