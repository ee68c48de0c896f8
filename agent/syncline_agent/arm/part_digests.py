"""What changes add to the digests of parts, as columns: of a delta there are as many as frames, and few are ever looked at by themselves.

It only holds and sums up. An object is made of a digest when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from syncline.delta.device.parts import Sums, summed
from syncline.wire.digest import Digest


class PartDigests(Mapping[int, Mapping[int, Digest]]):
    """By tensor, ascending, and by part (memory.Changes.digests)."""

    def __init__(self, tensors: NDArray[np.int64], parts: NDArray[np.int64], sums: Sums) -> None:
        """An entry a part, each once, in any order."""
        order = np.argsort(tensors, kind="stable")
        self._tensors, self._parts, self._sums = tensors[order], parts[order], sums[order]

    @classmethod
    def of(
        cls,
        rows: Iterable[tuple[NDArray[np.int64], NDArray[np.int64], Sums]],
        strewn: Iterable[tuple[int, int, Digest]],
    ) -> Self:
        """From columns, and from single entries."""
        each = list(strewn)
        places = np.array([(tensor, part) for tensor, part, _ in each], np.int64).reshape(-1, 2)
        lanes = np.array([(digest.lane1, digest.lane2) for *_, digest in each], np.uint64).reshape(-1, 2)
        tensors, parts, sums = zip((places[:, 0], places[:, 1], lanes), *rows, strict=True)
        return cls(np.concatenate(tensors), np.concatenate(parts), np.concatenate(sums))

    @cached_property
    def sums(self) -> Mapping[int, Digest]:
        """Of all parts of a tensor."""
        return summed(self._tensors, self._sums)

    def __getitem__(self, tensor: int) -> Mapping[int, Digest]:
        low, high = np.searchsorted(self._tensors, [tensor, tensor + 1]).tolist()
        if low == high:
            raise KeyError(tensor)
        lanes = self._sums[low:high].tolist()
        return {part: Digest(*own) for part, own in zip(self._parts[low:high].tolist(), lanes, strict=True)}

    def __iter__(self) -> Iterator[int]:
        return iter(self.sums)

    def __len__(self) -> int:
        return len(self.sums)
