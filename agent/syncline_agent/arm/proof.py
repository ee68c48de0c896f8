"""Whether what the ranks of an island hold is, together, one view: whose band counts, which are copies, what they sum to.

Pure. It says who differs from whom; what is done about it is decided by who asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from syncline.errors import DigestMismatch, LayoutRefused, ProtocolViolation
from syncline.wire import dtypes
from syncline.wire.digest import Digest
from syncline.wire.tensors import TensorTable

LANES = np.dtype("<u8")


class NamedBand(NamedTuple):
    """Units [low, high) of one axis of a tensor, whole in every other. A tuple: there may be a hundred thousand."""

    tensor: str
    axis: int
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.tensor}, indices {self.low} to {self.high - 1} of axis {self.axis}"


class _Place(NamedTuple):
    """A band of a rank, by its number in what the rank holds."""

    rank: int
    number: int


class Shares:
    """Who counts for what. Of equal bands the lowest rank's does; every other is a copy of it."""

    def __init__(self, holds: Sequence[Sequence[NamedBand] | None]) -> None:
        """What each rank holds; None is the view whole. LayoutRefused, by name, for bands of one tensor that are neither
        equal nor apart along one axis, and for an island that mixes whole and parts."""
        self._holds = holds
        self._counted: list[list[int]] = [[] for _ in holds]
        self._copies: list[tuple[_Place, _Place]] = []
        whole = [rank for rank, held in enumerate(holds) if held is None]
        self.is_whole = bool(whole)
        """Every rank holds all of it, and can say by itself what that is."""
        if whole:
            parts = [rank for rank, held in enumerate(holds) if held]  # who holds nothing was refused, and says so
            if parts:
                raise LayoutRefused(f"rank {whole[0]} holds the view whole, rank {parts[0]} parts of it")
            return
        self._share(holds)

    def _share(self, holds: Sequence[Sequence[NamedBand] | None]) -> None:
        owners: dict[NamedBand, _Place] = {}
        of_tensor: dict[str, list[NamedBand]] = {}
        for rank, held in enumerate(holds):
            for number, band in enumerate(held or ()):
                if band.low >= band.high:
                    raise LayoutRefused(f"rank {rank} holds nothing of {band}")
                place = _Place(rank, number)
                owner = owners.setdefault(band, place)
                if owner is place:
                    self._counted[rank].append(number)
                    of_tensor.setdefault(band.tensor, []).append(band)
                elif owner.rank == rank:
                    raise LayoutRefused(f"rank {rank} names {band} twice")
                else:
                    self._copies.append((owner, place))
        for bands in of_tensor.values():
            bands.sort()
            for one, next_one in pairwise(bands):
                if one.axis != next_one.axis or next_one.low < one.high:
                    ranks = owners[one].rank, owners[next_one].rank
                    raise LayoutRefused(
                        f"rank {ranks[0]} holds {one}, rank {ranks[1]} {next_one}: neither the same nor apart"
                    )

    def total(self, digests: Sequence[Sequence[str] | None]) -> Digest:
        """The sum of what counts. `digests` are those of each rank's bands, in hex, in the order in which it holds them.
        DigestMismatch, naming tensor, band and ranks, when a copy differs from what counts."""
        told: list[Sequence[str]] = []
        for rank, (held, said) in enumerate(zip(self._holds, digests, strict=True)):
            if held is None or said is None or len(held) != len(said):
                raise ProtocolViolation(
                    f"rank {rank} told {len(said or ())} digests of the {len(held or ())} bands that it holds"
                )
            told.append(said)
        for owner, copy in self._copies:
            if told[owner.rank][owner.number] != told[copy.rank][copy.number]:
                held = self._holds[owner.rank]
                assert held is not None
                raise DigestMismatch(
                    f"rank {copy.rank} has other bits than rank {owner.rank} of {held[owner.number]}; a checkpoint"
                    " makes them equal"
                )
        counted = "".join(told[rank][number] for rank, numbers in enumerate(self._counted) for number in numbers)
        lanes = np.frombuffer(bytes.fromhex(counted), LANES).reshape(-1, 2).sum(axis=0, dtype=LANES)
        return Digest(int(lanes[0]), int(lanes[1]))

    def unlike(self, table: TensorTable) -> str | None:
        """What of the table's tensors no rank holds, or who holds something else, in words; None when all is held."""
        if self.is_whole:
            return None
        names = {spec.name for spec in table.tensors}
        for rank, held in enumerate(self._holds):
            strange = next((band.tensor for band in held or () if band.tensor not in names), None)
            if strange is not None:
                return f"rank {rank} holds {strange}, which the version has not"
        missing = self._missing(table)
        return None if missing is None else f"no rank holds {missing}"

    def _missing(self, table: TensorTable) -> str | None:
        held: dict[str, list[tuple[int, int, int]]] = {}
        for rank, numbers in enumerate(self._counted):
            for number in numbers:
                band = (self._holds[rank] or ())[number]
                held.setdefault(band.tensor, []).append((band.axis, band.low, band.high))
        for spec in table.tensors:
            bands = sorted(held.get(spec.name, []))
            if spec.units and not bands:
                return spec.name
            at = 0
            for axis, low, high in [
                *bands,
                *((axis, dtypes.unit_shape(spec.dtype, spec.shape)[axis], 0) for axis, _, _ in bands[:1]),
            ]:
                if low != at:
                    return str(NamedBand(spec.name, axis, at, low))
                at = high
        return None
