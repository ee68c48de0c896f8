"""Writes the trainer's checkpoints as a Hugging Face trainer would: a folder of safetensors that is whole from the moment it exists."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from syncline.errors import AlreadyExists
from syncline_agent.reference.config import ModelConfig
from syncline_agent.reference.tokenizer import CharacterTokenizer

TRAINER_STATE = "trainer_state.json"


def write_checkpoint(
    folder: Path,
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    *,
    tokenizer: CharacterTokenizer,
    step: int,
) -> None:
    """Write model, config, tokenizer and trainer state beside `folder`, then rename; a tied head is left to its embedding.

    A watcher of the parent sees a complete folder or none (the unfinished one's name starts with a dot). An existing
    folder is refused: a published step is never written over.
    """
    if folder.exists():
        raise AlreadyExists(str(folder))
    unfinished = folder.parent / f".{folder.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    model = {name: weights[name].contiguous() for name in config.tensors()}
    save_file(model, str(unfinished / "model.safetensors"), metadata={"format": "pt"})
    for file, content in (("config.json", config.to_hf()), (TRAINER_STATE, {"global_step": step})):
        (unfinished / file).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    tokenizer.save(unfinished)
    for file in unfinished.iterdir():
        file.chmod(0o644)  # the safetensors writer leaves its file to its owner alone; a watcher may be somebody else
        _sync(file)
    _sync(unfinished)
    os.rename(unfinished, folder)  # noqa: PTH104 (Path.rename hides that it is the commit)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
