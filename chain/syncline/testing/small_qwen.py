"""A small Qwen2-shaped model with an odd vocabulary: what a checkpoint of it holds, version by version, and an adapter for it.

Token `ENDING` is drawn by versions that were made to and by no other, whatever came before it: a request that ends with
that token ends with the first version that draws it, and not before. For that the first entry of every hidden state is the
same large number, and the ending's row of the head looks at nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from syncline.testing.tables import safetensors_bytes
from syncline.wire.tensors import TensorSpec, split_axis

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 517, 128, 192, 2, 4, 2, 32
LONGEST = 131072
ENDING = VOCAB - 1
PROMPTS = [[5, 6, 7], [500, 3, 9, 77, 41], list(range(100, 240))]
"""The last one fills a block of a prefix cache."""
ADAPTER_RANK = 4
ADAPTED = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
"""Of these some are parts of what an engine fuses, some stand alone."""
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {f"t{n}": n for n in range(VOCAB)}, "unk_token": "t0"},
    "pre_tokenizer": {"type": "WhitespaceSplit"},
}
FILES = {
    "config.json": json.dumps(CONFIG),
    "tokenizer.json": json.dumps(TOKENIZER),
    "tokenizer_config.json": json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}),
    "generation_config.json": "{}",
}
CONSTANT, LOOK = 8.0, 24.0
Weights = Mapping[str, NDArray[np.uint16]]


def shapes() -> dict[str, list[int]]:
    """The tensors of the model as a checkpoint has them."""
    found: dict[str, list[int]] = {
        "model.embed_tokens.weight": [VOCAB, HIDDEN],
        "lm_head.weight": [VOCAB, HIDDEN],
        "model.norm.weight": [HIDDEN],
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            found[f"{prefix}self_attn.{name}_proj.weight"] = [rows * HEAD, HIDDEN]
            found[f"{prefix}self_attn.{name}_proj.bias"] = [rows * HEAD]
        found[f"{prefix}self_attn.o_proj.weight"] = [HIDDEN, HEADS * HEAD]
        found[f"{prefix}mlp.gate_proj.weight"] = found[f"{prefix}mlp.up_proj.weight"] = [INNER, HIDDEN]
        found[f"{prefix}mlp.down_proj.weight"] = [HIDDEN, INNER]
        found[f"{prefix}input_layernorm.weight"] = found[f"{prefix}post_attention_layernorm.weight"] = [HIDDEN]
    return found


def bits_of(values: NDArray[Any]) -> NDArray[np.uint16]:
    """BF16 bits, rounded towards zero."""
    return (np.asarray(values, np.float32).reshape(-1).view(np.uint32) >> 16).astype(np.uint16)


class SmallQwen:
    """Versions of the model: each step moves a few weights far enough that other tokens are the likeliest."""

    def __init__(self, seed: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        self.shapes = shapes()
        self.newest: Weights = {name: bits_of(self._draw(name, shape, False)) for name, shape in self.shapes.items()}

    def _draw(self, name: str, shape: list[int], ends: bool) -> NDArray[Any]:
        if "norm" in name:
            return np.ones(shape)
        known = {"lm_head.weight": 0.4, "model.embed_tokens.weight": 1.0}
        width: float = known[name] if name in known else 1.5 / float(shape[-1]) ** 0.5
        drawn = self._random.normal(0, width, shape)
        if name == "model.embed_tokens.weight":
            drawn[:, 0] = CONSTANT
        elif name == "lm_head.weight":
            drawn[ENDING] = 0
            drawn[ENDING, 0] = LOOK if ends else -LOOK
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            drawn[0] = 0
        return drawn

    def step(self, share: float = 0.02, *, ends: bool = False) -> Weights:
        """Change about `share` of every tensor; the new weights. With `ends` they draw nothing but `ENDING`."""
        changed = {name: bits.copy() for name, bits in self.newest.items()}
        for name, bits in changed.items():
            places = self._random.choice(bits.size, max(1, int(share * bits.size)), replace=False)
            drawn = bits_of(self._draw(name, self.shapes[name], ends))
            bits[places] = drawn[places]
            bits[places[0]] ^= 1  # norms, too
            if name == "lm_head.weight":
                bits[ENDING * HIDDEN] = drawn[ENDING * HIDDEN]
        self.newest = changed
        return changed

    def write(self, folder: Path) -> None:
        """The newest weights as a checkpoint that an engine can be started on."""
        for name, text in FILES.items():
            (folder / name).write_text(text)
        (folder / "model.safetensors").write_bytes(_safetensors(self.shapes, self.newest))


def write_adapter(folder: Path, seed: int = 2) -> None:
    """A LoRA adapter for the model, large enough that it draws other tokens."""
    random = np.random.default_rng(seed)
    held: dict[str, list[int]] = {}
    for layer in range(LAYERS):
        for module in ADAPTED:
            rows, columns = shapes()[f"model.layers.{layer}.{module}.weight"]
            prefix = f"base_model.model.model.layers.{layer}.{module}.lora_"
            held |= {f"{prefix}A.weight": [ADAPTER_RANK, columns], f"{prefix}B.weight": [rows, ADAPTER_RANK]}
    drawn = {name: bits_of(random.normal(0, 0.3, shape)) for name, shape in held.items()}
    told = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "small",
        "r": ADAPTER_RANK,
        "lora_alpha": 2 * ADAPTER_RANK,
        "target_modules": [module.rpartition(".")[2] for module in ADAPTED],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(told))
    (folder / "adapter_model.safetensors").write_bytes(_safetensors(held, drawn))


def _safetensors(held: Mapping[str, list[int]], weights: Weights) -> bytes:
    specs = [TensorSpec(name=n, dtype="BF16", shape=s, axis=split_axis(n, s)) for n, s in sorted(held.items())]
    return safetensors_bytes(specs, weights)
