"""The frames that a delta changes as columns, an entry a frame: what is done with all of them is done by array operations.

It owns their order, and knows neither tables nor codecs; `parsed` fills it from chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Frames by tensor and index, ascending, each once."""

    tensors: Column
    indices: Column
    """In the tensor's grid."""
    changed: Column
    """Units that differ from the base."""
    codecs: Column
    """Number of the codec, among those of the delta."""
    buffers: Column
    """Number of the buffer that holds the payload, likewise."""
    starts: Column
    """First byte of the payload there."""
    sizes: Column
    """Its bytes."""

    @classmethod
    def none(cls) -> Self:
        return cls(*(np.empty(0, np.int64) for _ in fields(cls)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """One behind the other, in whatever order the parts have."""
        if len(parts) == 1:
            return parts[0]
        columns = ([getattr(part, field.name) for part in parts] for field in fields(cls))
        return cls(*(np.concatenate(column) for column in columns)) if parts else cls.none()

    @property
    def count(self) -> int:
        return self.tensors.size

    def at(self, places: Column | slice) -> Self:
        """The frames at these places."""
        return type(self)(*(getattr(self, field.name)[places] for field in fields(self)))

    def ordered(self) -> Self:
        """By tensor and index. What is there twice stands side by side, the earlier first."""
        steps = np.diff(self.tensors)
        if bool(((steps > 0) | ((steps == 0) & (np.diff(self.indices) >= 0))).all()):
            return self
        return self.at(np.lexsort((self.indices, self.tensors)))

    def twice(self) -> int | None:
        """Place of a frame that is there a second time, where the order is kept."""
        same = (np.diff(self.tensors) == 0) & (np.diff(self.indices) == 0)
        return int(same.argmax()) + 1 if bool(same.any()) else None

    def of_tensor(self, tensor: int) -> slice:
        """Places of its frames."""
        low, high = np.searchsorted(self.tensors, [tensor, tensor + 1]).tolist()
        return slice(low, high)
