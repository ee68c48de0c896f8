"""The bits in an engine's memory, past everything that guards them: to flip one, or to look."""

from __future__ import annotations

from collections.abc import Sequence

from syncline_agent.arm.host_memory import HostMemory, Units
from syncline_agent.arm.live import LiveWeights


def stores_of(live: LiveWeights) -> Sequence[Units]:
    """What the engine computes with: flat rows of units, by tensor where the view is held whole."""
    memory = live._memory
    assert isinstance(memory, HostMemory)
    return memory._stores
