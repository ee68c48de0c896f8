"""From a materialized checkpoint to the live weights of a rank, which are proven, claimed, or refused by name.

The folder's shared lock is held while it is read, so the agent cannot patch it meanwhile; the marker then says which
version was read, and the digest of what arrived in memory says whether that is true. Of several ranks, each reads its own
slices, and none lets go of the folder before all have read.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from syncline.checkpoint import Checkpoint
from syncline.clock import Clock
from syncline.errors import DigestMismatch
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.torch_stores import memory_of_stores
from syncline_agent.reference import tokenizer
from syncline_agent.reference.config import ModelConfig
from syncline_agent.reference.network import Network, network_of
from syncline_agent.reference.parameters import Parameters
from syncline_agent.reference.slicing import slices
from syncline_agent.reference.tokenizer import CharacterTokenizer
from syncline_agent.reference.weights import read_json

CONFIG = "config.json"
NOBODY = nullcontext()


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank, and on what device."""

    device: str = "cpu"
    rank: int = 0
    ranks: int = 1
    expert_parallel: bool = True


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory and what may be claimed of it."""

    config: ModelConfig
    network: Network
    tokenizer: CharacterTokenizer | None
    live: LiveWeights


def load(folder: Path, *, place: Place, clock: Clock, others: AbstractContextManager[object] = NOBODY) -> Loaded:
    """Load, and prove what is held whole. SourceNotReady while the folder holds no version; other errors of its files as
    they are. In `others`, which is left before the folder is let go, other ranks load as well.

    Memory that does not prove is returned all the same: `live` is then out of service and says why, and an agent can
    make it whole.
    """
    checkpoint = Checkpoint.open(folder)
    with checkpoint.reading(), others:
        marker = checkpoint.marker
        assert marker is not None  # `reading` refuses a folder without one
        table, tiling = checkpoint.table, marker.tiling.tiling
        config = ModelConfig.from_hf(read_json(folder / CONFIG))
        held = slices(config, table, rank=place.rank, ranks=place.ranks, expert_parallel=place.expert_parallel)
        parameters = Parameters(held, table, device=place.device)
        parameters.fill(checkpoint.units)
        memory = memory_of_stores(parameters.layout(), tiling, parameters.flat_stores(), loaded=checkpoint.units)
        characters = CharacterTokenizer.load(folder) if (folder / tokenizer.FILE).exists() else None
    live = LiveWeights(table, tiling, memory, clock=clock)
    live.warm_up()
    try:
        live.prove(marker.lineage, marker.view, marker.version, marker.digest)
    except DigestMismatch:
        pass  # `live.error` says it; nothing is served
    return Loaded(config, network_of(config, parameters), characters, live)
