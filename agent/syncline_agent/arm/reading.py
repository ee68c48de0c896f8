"""A parameter that is probed: what of it the loader touches, and what the bits that lie in it say.

Refines, digit by digit, which tensor and which of its units lie where; says CONVERTS of what is no copy. Writes to a
parameter only to put aside what the loader leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from syncline.errors import LayoutRefused
from syncline_agent.arm.fitting import REGIONS_MAX, Region, refine
from syncline_agent.arm.lines import refine_lines
from syncline_agent.arm.spelling import INTEGERS, MARK, cut

_MANY = 8
"""Regions of one parameter that are worth looking for at once."""
_SEEN = 64
"""Indices of each dimension."""
_SEEN_WHOLE = 1 << 20
"""Units of a place that is looked at whole."""
CONVERTS = "the loader converts or computes what it puts there"


@dataclass(slots=True)
class ProbedPlace:
    """A parameter under probing."""

    name: str
    units: torch.Tensor
    regions: list[tuple[int, Region]]
    """What is known of each: the number of the tensor, and where its units are."""
    touched: bool = False
    left: tuple[torch.Tensor, torch.Tensor] | None = None
    """What the loader leaves alone: where, and what it was."""

    @property
    def width(self) -> int:
        return 8 * self.units.element_size()

    @property
    def without_name(self) -> int:
        """Units in which no tensor's number was found."""
        return sum(prod(region.size) for code, region in self.regions if not code)

    @property
    def left_alone(self) -> int:
        return 0 if self.left is None else int(self.left[1].numel())


def span_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Units from the first of a tensor to its last."""
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def places_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> list[ProbedPlace]:
    """Every piece of memory once, however many names it has."""
    places: dict[tuple[object, ...], ProbedPlace] = {}
    for name, tensor in parameters:
        if tensor.is_meta or tensor.numel() == 0 or tensor.element_size() not in INTEGERS:
            continue
        plain = tensor.detach()
        units = (plain if plain.dim() else plain.reshape(1)).view(INTEGERS[plain.element_size()])
        key = (units.data_ptr(), units.dtype, units.shape, units.stride())
        region = Region((0,) * units.dim(), tuple(units.shape))
        places.setdefault(key, ProbedPlace(name, units, [(0, region)]))
    return list(places.values())


def digits_of(places: list[ProbedPlace], highest: Callable[[int], int]) -> int:
    """Passes until numbers up to the highest are told, for the narrowest units."""
    return max((-(-highest(place.width).bit_length() // place.width) for place in places), default=0)


def sum_of(place: ProbedPlace) -> int:
    """Of units all over it: enough to see whether a loader wrote anything at all."""
    if place.units.numel() <= _SEEN_WHOLE:
        return int(
            (place.units.reshape(-1).long() * torch.arange(1, place.units.numel() + 1, device=place.units.device)).sum()
        )
    some = place.units[tuple(slice(None, None, max(1, size // _SEEN)) for size in place.units.shape)]
    return int(some.sum(dtype=torch.int64))


def is_within(place: ProbedPlace, others: list[ProbedPlace]) -> bool:
    """Whether it is another look at memory that one of the others is."""
    low, high = _extent(place)
    return any(first <= low and high <= end for first, end in map(_extent, others))


def _extent(place: ProbedPlace) -> tuple[int, int]:
    units = place.units
    start = units.data_ptr()
    return start, start + span_of(units.shape, units.stride()) * units.element_size()


def put_aside(place: ProbedPlace) -> bool:
    """Whether the loader copies to it at all; then what it leaves alone is put aside, and all of it is zero."""
    mine = place.units == cut(MARK, 0, place.units)
    if not bool(mine.any()):
        return False
    if not bool(mine.all()):
        where = ~mine
        place.left = where, place.units[where].clone()
    place.units.zero_()
    return True


def each(places: list[ProbedPlace], troubles: dict[str, str], step: Callable[[ProbedPlace], None]) -> None:
    """Do a step for each place that is not in trouble; one that refuses it is from then on."""
    for place in places:
        if place.name in troubles:
            continue
        try:
            step(place)
        except LayoutRefused as error:
            troubles[place.name] = str(error)
            place.regions = []


def read_name(place: ProbedPlace, digit: int, tensors: int) -> None:
    """Refine by a digit of the tensors' numbers."""
    if digit * place.width >= max(1, tensors.bit_length()):
        return
    found: list[tuple[int, Region]] = []
    known = [forgotten(region) for _, region in place.regions]
    for (code, _), parts in zip(place.regions, _refined(place, known, constant=True), strict=True):
        found += [(code | part.value << (digit * place.width), part) for part in parts]
        _check_few(found)
    last = (digit + 1) * place.width >= tensors.bit_length()
    strange = [code for code, _ in found if code > tensors]
    if last and strange:
        raise LayoutRefused(CONVERTS)
    place.regions = found


def read_position(place: ProbedPlace, digit: int, most: Mapping[int, int]) -> None:
    """Refine by a digit of the positions."""
    if digit * place.width >= max(1, most.get(place.width, 1).bit_length()):
        return
    found: list[tuple[int, Region]] = []
    known = [region for _, region in place.regions]
    for (code, _), parts in zip(place.regions, _refined(place, known, constant=False), strict=True):
        found += [(code, part) for part in parts]
        _check_few(found)
    place.regions = found


def _refined(place: ProbedPlace, regions: list[Region], *, constant: bool) -> Iterator[list[Region]]:
    """The parts of each region, with one digit more."""
    many = len(regions) >= _MANY or (constant and place.units.dim() > 2)
    at_once = refine_lines(place.units, regions, place.width, constant=constant) if many else None
    if at_once is not None:
        yield from at_once
        return
    for region in regions:
        yield refine(place.units, region, place.width, constant=constant)


def _check_few(found: list[tuple[int, Region]]) -> None:
    if len(found) > REGIONS_MAX:
        raise LayoutRefused(f"more than {REGIONS_MAX} pieces that do not lie in rows; its order is no layout")


def forgotten(region: Region) -> Region:
    """The region without what is known of its numbers."""
    return replace(region, value=0, steps=(), bits=0)
