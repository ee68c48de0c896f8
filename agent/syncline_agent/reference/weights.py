"""Reads a servable safetensors folder into plain torch tensors by name, whole, as a trainer holds them.

It owns the memory of the weights: each tensor is its own contiguous allocation (never a map of the file), so that its
bits may be patched in place. A tied head is one tensor under both names. It never converts: BF16 in the file is BF16
in memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from syncline.errors import LayoutRefused, SourceInvalid, TiedWeightsDiffer
from syncline_agent.reference.config import EMBEDDING, HEAD, ModelConfig

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def load_weights(folder: Path, *, device: str = "cpu") -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """The model in `folder`: config.json and model.safetensors, or shards named by their index.

    Raises SourceInvalid for what can never be read, LayoutRefused where the tensors do not fit the config,
    TiedWeightsDiffer when a tied head is stored beside the embedding with other bits.
    """
    config = ModelConfig.from_hf(read_json(folder / "config.json"))
    weights: dict[str, torch.Tensor] = {}
    for file, expected in _shards(folder).items():
        try:
            with safe_open(str(file), framework="pt", device="cpu") as opened:
                names = set(opened.keys())
                for name in sorted(expected if expected is not None else names):
                    if name not in names:
                        raise SourceInvalid(
                            f"{file}: the index promises tensor {name}, which is not in it; write the checkpoint again"
                        )
                    stored = opened.get_tensor(name)
                    weights[name] = torch.empty(stored.shape, dtype=stored.dtype, device=device).copy_(stored)
        except (SafetensorError, OSError) as error:
            raise SourceInvalid(
                f"{file}: not a readable safetensors file ({error}); write the checkpoint again"
            ) from error
    _tie(config, weights, folder)
    _check(config, weights, folder)
    return config, weights


def read_json(file: Path) -> dict[str, Any]:
    """A file of a checkpoint that holds an object; SourceInvalid for any other."""
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceInvalid(f"{file}: {error}; a checkpoint folder needs it") from error
    if not isinstance(parsed, dict):
        raise SourceInvalid(f"{file}: a JSON object was expected")
    return parsed


def _shards(folder: Path) -> dict[Path, set[str] | None]:
    """Files to read, with the names the index promises in each (None: take them all)."""
    if not (folder / INDEX).exists():
        return {folder / SINGLE: None}
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise SourceInvalid(f"{folder / INDEX}: no weight_map; write the checkpoint again")
    shards: dict[Path, set[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise SourceInvalid(f"{folder / INDEX}: shard {file!r} of {name} is not a file name in the folder")
        promised = shards.setdefault(folder / file, set())
        assert promised is not None
        promised.add(str(name))
    return shards


def _tie(config: ModelConfig, weights: dict[str, torch.Tensor], folder: Path) -> None:
    if not config.tied or HEAD not in weights or EMBEDDING not in weights:
        return
    head, embedding = weights[HEAD], weights[EMBEDDING]
    same = head.shape == embedding.shape and head.dtype == embedding.dtype
    if not same or not torch.equal(head.view(torch.uint8), embedding.view(torch.uint8)):
        raise TiedWeightsDiffer(
            f"{folder}: {HEAD} is tied to {EMBEDDING} in the config but stored with other bits; fix one of them"
        )
    weights[HEAD] = embedding


def _check(config: ModelConfig, weights: dict[str, torch.Tensor], folder: Path) -> None:
    shapes = config.tensors()
    extra = sorted(set(weights) - set(shapes) - ({HEAD} if config.tied else set()))
    missing = sorted(set(shapes) - set(weights))
    if missing or extra:
        raise LayoutRefused(
            f"{folder}: missing tensors {missing[:4]}, unknown tensors {extra[:4]} for its config; they must fit"
        )
    for name, shape in shapes.items():
        tensor = weights[name]
        if tuple(tensor.shape) != shape or tensor.dtype not in _FLOATS:
            raise LayoutRefused(
                f"{folder}: {name} is {tensor.dtype} {tuple(tensor.shape)}, the config asks for a float {shape}"
            )
