"""Finds an engine's layout by feeding its own loader tensors whose bits spell where they belong.

Before the real load every parameter is loaded a few times with tensors of the checkpoint's names, shapes and dtypes: once
to see what the loader touches, then with the tensor's number, then with each unit's position, as many bits a pass as a
unit has. What lands in the parameters says where every unit goes: fused, stacked, sliced, padded, transposed. It needs
memory for one tensor, and for what the loader leaves alone in parameters that it touches in part: that is put back.
It never decides whether the layout is right: only the digest of what is loaded afterwards proves it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch

from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.fitting import REGIONS_MAX, Region, boxes, refine
from syncline_agent.arm.layout import Block, shape_of
from syncline_agent.arm.lines import refine_lines

Load = Callable[[Iterable[tuple[str, torch.Tensor]]], object]

DTYPES = {
    "BOOL": torch.bool,
    "F4": getattr(torch, "float4_e2m1fn_x2", torch.uint8),
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MARK = 0x5555_5555_5555_5555
_MANY = 8
"""Regions of one parameter that are worth looking for at once."""
_SEEN = 64
"""Indices of each dimension."""
_SEEN_WHOLE = 1 << 20
"""Units of a place that is looked at whole."""
_CONVERTS = "the loader converts or computes what it puts there"


@dataclass(frozen=True, slots=True)
class Store:
    """Memory of a parameter as it was when it was probed: a flat row of units."""

    name: str
    pointer: int
    units: int
    unit_bytes: int


@dataclass(frozen=True, slots=True)
class Probed:
    """Where everything went."""

    blocks: list[Block]
    stores: list[Store]
    troubles: Mapping[str, str] = field(default_factory=dict[str, str])
    """Parameters that hold what cannot be said in blocks, and why: converted, shuffled."""


@dataclass(slots=True)
class _Place:
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


def probe(table: TensorTable, parameters: Iterable[tuple[str, torch.Tensor]], load: Load) -> Probed:
    """Load `parameters` (and buffers: all that `load` may write to) with tensors that spell their positions. Afterwards
    they hold no weights, but what `load` does not touch is as it was.

    LayoutRefused when the loader does not take such tensors.
    """
    places = _places(parameters)
    if not places:
        raise LayoutRefused("the engine has no parameters to be probed")
    device = places[0].units.device
    troubles: dict[str, str] = {}
    try:
        with torch.no_grad():
            every, before = places, [_sum(place) for place in places]
            _load(load, table, device, _marked)
            for place, was in zip(places, before, strict=True):
                place.touched = _put_aside(place)
                if not place.touched and _sum(place) != was:
                    troubles[place.name] = _CONVERTS
            places = [place for place in places if place.touched]
            for digit in range(_digits(places, lambda _: len(table.tensors))):
                _load(load, table, device, lambda i, spec, out, d=digit: out.fill_(_cut(i + 1, d, out)))
                _each(places, troubles, lambda place, d=digit: _name(place, d, len(table.tensors)))
            for place in places:
                if place.name not in troubles and place.without_name != place.left_alone:
                    troubles[place.name], place.regions = _CONVERTS, []
                place.regions = [(code, _forgotten(region)) for code, region in place.regions if code]
            most = {8 * s.unit_bytes: 1 for s in table.tensors}
            for spec in table.tensors:
                most[8 * spec.unit_bytes] = max(most[8 * spec.unit_bytes], spec.units)
            for digit in range(_digits(places, lambda width: most.get(width, 1))):
                _load(load, table, device, lambda i, spec, out, d=digit: _spell(out, d))
                _each(places, troubles, lambda place, d=digit: _number(place, d, most))
            probed = _translated(table, places, troubles)
            _load(load, table, device, _scattered)
            _check_copies(table, probed, places, troubles)
            for place, was in zip(every, before, strict=True):
                if place.touched:
                    changed = place.left is not None and bool(place.units[place.left[0]].any())
                else:
                    changed = _sum(place) != was and not _within(place, places)
                if changed:
                    troubles.setdefault(place.name, _CONVERTS)
    finally:
        for place in places:
            if place.left is not None:
                where, what = place.left
                place.units[where] = what
    return Probed([b for b in probed.blocks if probed.stores[b.store].name not in troubles], probed.stores, troubles)


def attach(probed: Probed, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor | None]:
    """The probed stores in memory that `tensors` live in now, as flat integers; None for one that is gone."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors if not t.is_meta}
    found: list[torch.Tensor | None] = []
    starts = sorted(storages)
    for store in probed.stores:
        nbytes = store.units * store.unit_bytes
        place = bisect_right(starts, store.pointer) - 1
        start = starts[max(place, 0)] if starts else 0
        storage = storages.get(start)
        if place < 0 or storage is None or store.pointer + nbytes > start + storage.nbytes():
            found.append(None)
            continue
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device)
        flat = flat.set_(storage, store.pointer - start, (nbytes,), (1,))
        found.append(flat.view(_INTEGERS[store.unit_bytes]))
    return found


def span_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Units from the first of a tensor to its last."""
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def _places(parameters: Iterable[tuple[str, torch.Tensor]]) -> list[_Place]:
    places: dict[tuple[object, ...], _Place] = {}
    for name, tensor in parameters:
        if tensor.is_meta or tensor.numel() == 0 or tensor.element_size() not in _INTEGERS:
            continue
        plain = tensor.detach()
        units = (plain if plain.dim() else plain.reshape(1)).view(_INTEGERS[plain.element_size()])
        key = (units.data_ptr(), units.dtype, units.shape, units.stride())
        region = Region((0,) * units.dim(), tuple(units.shape))
        places.setdefault(key, _Place(name, units, [(0, region)]))
    return list(places.values())


def _load(
    load: Load, table: TensorTable, device: torch.device, write: Callable[[int, TensorSpec, torch.Tensor], object]
) -> None:
    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for index, spec in enumerate(table.tensors):
            out = torch.empty(spec.units, dtype=_INTEGERS[spec.unit_bytes], device=device)
            write(index, spec, out)
            kind = DTYPES.get(spec.dtype)
            if kind is None:
                raise LayoutRefused(f"tensor {spec.name} is {spec.dtype}, which torch has no type for")
            yield spec.name, out.view(kind).reshape(shape_of(spec) if spec.shape else ())

    try:
        load(tensors())
    except LayoutRefused:
        raise
    except Exception as error:
        raise LayoutRefused(
            f"the engine's loader does not take tensors that spell their positions ({type(error).__name__}: {error})"
        ) from error


def _marked(index: int, spec: TensorSpec, out: torch.Tensor) -> None:
    out.fill_(_cut(_MARK, 0, out))


def _scattered(index: int, spec: TensorSpec, out: torch.Tensor) -> None:
    """Bits of either sign and any size, in no order."""
    numbers = torch.arange(out.numel(), dtype=torch.int64, device=out.device) * -0x61C8864680B583EB + index * 0x2545F491
    out.copy_(numbers >> 24)


def _check_copies(table: TensorTable, probed: Probed, places: list[_Place], troubles: dict[str, str]) -> None:
    """That the places hold copies of what was loaded last, also where that was in no order."""
    units = {place.name: place.units for place in places}
    of_tensor: dict[int, list[Block]] = {}
    for block in probed.blocks:
        of_tensor.setdefault(block.tensor, []).append(block)
    for tensor, blocks in of_tensor.items():
        spec, lies = table.tensors[tensor], units[probed.stores[blocks[0].store].name]
        told = torch.empty(spec.units, dtype=_INTEGERS[spec.unit_bytes], device=lies.device)
        _scattered(tensor, spec, told)
        for block in blocks:
            name = probed.stores[block.store].name
            box = tuple(slice(at, at + n) for at, n in zip(block.start, block.size, strict=True))
            there = units[name]
            held = there.as_strided(block.size, block.strides, there.storage_offset() + block.offset)
            if not torch.equal(held, told.reshape(shape_of(spec))[box]):
                troubles.setdefault(name, _CONVERTS)


def _cut(number: int, digit: int, out: torch.Tensor) -> int:
    """A digit of the number, as wide as the units of `out`, as their signed integer."""
    width = 8 * out.element_size()
    low = number >> (digit * width) & ((1 << width) - 1)
    return low - (1 << width) if low >> (width - 1) else low


def _spell(out: torch.Tensor, digit: int) -> None:
    """Digit `digit` of each unit's position: the lowest counts up and begins anew, a higher one stays for a run."""
    width = 8 * out.element_size()
    if width > 16:
        torch.arange(out.numel(), dtype=out.dtype, device=out.device, out=out)
        return
    runs, run = -(-out.numel() // (1 << width)), 1 << width
    if digit == 0:
        line = torch.arange(min(run, out.numel()), dtype=torch.int64, device=out.device).to(out.dtype)
        lines = line.expand(runs, -1)
    else:
        numbers = torch.arange(runs, dtype=torch.int64, device=out.device) >> (width * (digit - 1))
        lines = numbers.to(out.dtype).unsqueeze(1).expand(-1, min(run, out.numel()))
    whole = out.numel() // run * run
    if whole:
        out[:whole].view(-1, run).copy_(lines[: whole // run])
    if whole < out.numel():
        out[whole:].copy_(lines[-1][: out.numel() - whole])


def _digits(places: list[_Place], highest: Callable[[int], int]) -> int:
    """Passes until numbers up to the highest are told, for the narrowest units."""
    return max((-(-highest(place.width).bit_length() // place.width) for place in places), default=0)


def _sum(place: _Place) -> int:
    """Of units all over it: enough to see whether a loader wrote anything at all."""
    if place.units.numel() <= _SEEN_WHOLE:
        return int(
            (place.units.reshape(-1).long() * torch.arange(1, place.units.numel() + 1, device=place.units.device)).sum()
        )
    some = place.units[tuple(slice(None, None, max(1, size // _SEEN)) for size in place.units.shape)]
    return int(some.sum(dtype=torch.int64))


def _within(place: _Place, others: list[_Place]) -> bool:
    """Whether it is another look at memory that one of the others is."""
    low, high = _extent(place)
    return any(first <= low and high <= end for first, end in map(_extent, others))


def _extent(place: _Place) -> tuple[int, int]:
    units = place.units
    start = units.data_ptr()
    return start, start + span_of(units.shape, units.stride()) * units.element_size()


def _put_aside(place: _Place) -> bool:
    """Whether the loader copies to it at all; then what it leaves alone is put aside, and all of it is zero."""
    mine = place.units == _cut(_MARK, 0, place.units)
    if not bool(mine.any()):
        return False
    if not bool(mine.all()):
        where = ~mine
        place.left = where, place.units[where].clone()
    place.units.zero_()
    return True


def _each(places: list[_Place], troubles: dict[str, str], step: Callable[[_Place], None]) -> None:
    for place in places:
        if place.name in troubles:
            continue
        try:
            step(place)
        except LayoutRefused as error:
            troubles[place.name] = str(error)
            place.regions = []


def _name(place: _Place, digit: int, tensors: int) -> None:
    """Refine by a digit of the tensors' numbers."""
    if digit * place.width >= max(1, tensors.bit_length()):
        return
    found: list[tuple[int, Region]] = []
    known = [_forgotten(region) for _, region in place.regions]
    for (code, _), parts in zip(place.regions, _refined(place, known, constant=True), strict=True):
        found += [(code | part.value << (digit * place.width), part) for part in parts]
        _check_few(found)
    last = (digit + 1) * place.width >= tensors.bit_length()
    strange = [code for code, _ in found if code > tensors]
    if last and strange:
        raise LayoutRefused(_CONVERTS)
    place.regions = found


def _number(place: _Place, digit: int, most: Mapping[int, int]) -> None:
    """Refine by a digit of the positions."""
    if digit * place.width >= max(1, most.get(place.width, 1).bit_length()):
        return
    found: list[tuple[int, Region]] = []
    known = [region for _, region in place.regions]
    for (code, _), parts in zip(place.regions, _refined(place, known, constant=False), strict=True):
        found += [(code, part) for part in parts]
        _check_few(found)
    place.regions = found


def _refined(place: _Place, regions: list[Region], *, constant: bool) -> Iterator[list[Region]]:
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


def _forgotten(region: Region) -> Region:
    """The region without what is known of its numbers."""
    return replace(region, value=0, steps=(), bits=0)


def _translated(table: TensorTable, places: list[_Place], troubles: dict[str, str]) -> Probed:
    blocks: list[Block] = []
    stores: list[Store] = []
    for place in places:
        units, index = place.units, len(stores)
        mine: list[Block] = []
        try:
            for code, region in place.regions:
                spec = table.tensors[code - 1]
                if 8 * spec.unit_bytes != place.width:
                    raise LayoutRefused(_CONVERTS)
                for box in boxes(region, shape_of(spec), units.stride()):
                    mine.append(Block(code - 1, box.start, box.size, index, box.offset, box.strides))
        except LayoutRefused as error:
            troubles[place.name] = str(error)
            continue
        if not mine:
            continue
        stores.append(Store(place.name, units.data_ptr(), span_of(units.shape, units.stride()), units.element_size()))
        blocks += mine
    return Probed(blocks, stores, troubles)
