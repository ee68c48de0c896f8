"""From a materialized checkpoint to live weights that are proven, or refused by name.

The folder's shared lock is held while it is read, so the agent cannot patch it meanwhile; the marker then says which
version was read, and the digest of what arrived in memory says whether that is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from syncline.checkpoint import Checkpoint
from syncline.clock import Clock
from syncline.errors import DigestMismatch
from syncline_agent.arm.live import LiveWeights
from syncline_agent.reference import tokenizer
from syncline_agent.reference.config import ModelConfig
from syncline_agent.reference.tokenizer import CharacterTokenizer
from syncline_agent.reference.torch_memory import memory_of
from syncline_agent.reference.weights import load_weights


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory and what may be claimed of it."""

    config: ModelConfig
    weights: Mapping[str, torch.Tensor]
    tokenizer: CharacterTokenizer | None
    live: LiveWeights


def load(folder: Path, *, device: str, clock: Clock) -> Loaded:
    """Load and prove. SourceNotReady while the folder holds no version; other errors of its files as they are.

    Memory that does not prove is returned all the same: `live` is then out of service and says why, and an agent can
    make it whole.
    """
    checkpoint = Checkpoint.open(folder)
    with checkpoint.reading():
        marker = checkpoint.marker
        assert marker is not None  # `reading` refuses a folder without one
        table, tiling = checkpoint.table, marker.tiling.tiling
        config, weights = load_weights(folder, device=device)
        characters = CharacterTokenizer.load(folder) if (folder / tokenizer.FILE).exists() else None
    live = LiveWeights(table, tiling, memory_of(table, tiling, weights), clock=clock)
    live.warm_up()
    try:
        live.prove(marker.lineage, marker.view, marker.version, marker.digest)
    except DigestMismatch:
        pass  # `live.error` says it; nothing is served
    return Loaded(config, weights, characters, live)
