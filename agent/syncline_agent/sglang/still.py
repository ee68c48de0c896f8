"""Live memory that is looked for before it is read or written: parameters that an engine has moved since they were mapped are
refused by name, and never written where nobody reads.

SGLang moves parameters when it wakes from sleep, ends a weight update of packed weights, or offloads. This looks at addresses only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from syncline.errors import LayoutRefused
from syncline_agent.arm.guarded import GuardedMemory
from syncline_agent.arm.memory import Memory


@dataclass(frozen=True, slots=True)
class _Place:
    path: str
    held: Mapping[str, torch.Tensor | None]
    name: str
    address: int | None


class Still(GuardedMemory):
    """Of a model whose parameters must be where they were when this was made."""

    def __init__(self, memory: Memory, model: torch.nn.Module) -> None:
        super().__init__(memory)
        # By the modules' own tables, in which an engine also puts new parameters: a look at all takes part of a pause.
        self._places = [
            _Place(f"{path}.{name}" if path else name, module._parameters, name, _address(parameter))
            for path, module in model.named_modules()
            for name, parameter in module._parameters.items()
        ]

    def check(self) -> None:
        """LayoutRefused, naming one, when a parameter is gone or lies elsewhere."""
        for place in self._places:
            if _address(place.held.get(place.name)) != place.address:
                raise LayoutRefused(
                    f"the engine moved {place.path} since its layout was found; start it again from the node checkpoint"
                )

    @contextmanager
    def _touching(self) -> Iterator[None]:
        self.check()
        yield


def _address(parameter: torch.Tensor | None) -> int | None:
    return None if parameter is None or parameter.is_meta else parameter.data_ptr()
