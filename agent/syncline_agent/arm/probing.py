"""Finds an engine's layout by feeding its own loader tensors whose bits spell where they belong.

Before the real load every parameter is loaded a few times with tensors of the checkpoint's names, shapes and dtypes: once
to see what the loader touches, then with the tensor's number, then with each unit's position, as many bits a pass as a
unit has. What lands in the parameters says where every unit goes: fused, stacked, sliced, padded, transposed. It needs
memory for one tensor, and for what the loader leaves alone in parameters that it touches in part: that is put back.
It never decides whether the layout is right: only the digest of what is loaded afterwards proves it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from syncline.errors import LayoutRefused
from syncline.wire.tensors import TensorTable
from syncline_agent.arm.fitting import boxes
from syncline_agent.arm.layout import Block, shape_of
from syncline_agent.arm.reading import (
    CONVERTS,
    ProbedPlace,
    digits_of,
    each,
    forgotten,
    is_within,
    places_of,
    put_aside,
    read_name,
    read_position,
    span_of,
    sum_of,
)
from syncline_agent.arm.spelling import INTEGERS, Load, cut, feed, marked, scattered, spell


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


def probe(table: TensorTable, parameters: Iterable[tuple[str, torch.Tensor]], load: Load) -> Probed:
    """Load `parameters` (and buffers: all that `load` may write to) with tensors that spell their positions. Afterwards
    they hold no weights, but what `load` does not touch is as it was.

    LayoutRefused when the loader does not take such tensors.
    """
    places = places_of(parameters)
    if not places:
        raise LayoutRefused("the engine has no parameters to be probed")
    device = places[0].units.device
    troubles: dict[str, str] = {}
    try:
        with torch.no_grad():
            every, before = places, [sum_of(place) for place in places]
            feed(load, table, device, marked)
            for place, was in zip(places, before, strict=True):
                place.touched = put_aside(place)
                if not place.touched and sum_of(place) != was:
                    troubles[place.name] = CONVERTS
            places = [place for place in places if place.touched]
            for digit in range(digits_of(places, lambda _: len(table.tensors))):
                feed(load, table, device, lambda i, spec, out, d=digit: out.fill_(cut(i + 1, d, out)))
                each(places, troubles, lambda place, d=digit: read_name(place, d, len(table.tensors)))
            for place in places:
                if place.name not in troubles and place.without_name != place.left_alone:
                    troubles[place.name], place.regions = CONVERTS, []
                place.regions = [(code, forgotten(region)) for code, region in place.regions if code]
            most = {8 * s.unit_bytes: 1 for s in table.tensors}
            for spec in table.tensors:
                most[8 * spec.unit_bytes] = max(most[8 * spec.unit_bytes], spec.units)
            for digit in range(digits_of(places, lambda width: most.get(width, 1))):
                feed(load, table, device, lambda i, spec, out, d=digit: spell(out, d))
                each(places, troubles, lambda place, d=digit: read_position(place, d, most))
            probed = _translated(table, places, troubles)
            feed(load, table, device, scattered)
            _check_copies(table, probed, places, troubles)
            for place, was in zip(every, before, strict=True):
                if place.touched:
                    changed = place.left is not None and bool(place.units[place.left[0]].any())
                else:
                    changed = sum_of(place) != was and not is_within(place, places)
                if changed:
                    troubles.setdefault(place.name, CONVERTS)
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
        found.append(flat.view(INTEGERS[store.unit_bytes]))
    return found


def _check_copies(table: TensorTable, probed: Probed, places: list[ProbedPlace], troubles: dict[str, str]) -> None:
    """That the places hold copies of what was loaded last, also where that was in no order."""
    units = {place.name: place.units for place in places}
    of_tensor: dict[int, list[Block]] = {}
    for block in probed.blocks:
        of_tensor.setdefault(block.tensor, []).append(block)
    for tensor, blocks in of_tensor.items():
        spec, lies = table.tensors[tensor], units[probed.stores[blocks[0].store].name]
        told = torch.empty(spec.units, dtype=INTEGERS[spec.unit_bytes], device=lies.device)
        scattered(tensor, spec, told)
        for block in blocks:
            name = probed.stores[block.store].name
            box = tuple(slice(at, at + n) for at, n in zip(block.start, block.size, strict=True))
            there = units[name]
            held = there.as_strided(block.size, block.strides, there.storage_offset() + block.offset)
            if not torch.equal(held, told.reshape(shape_of(spec))[box]):
                troubles.setdefault(name, CONVERTS)


def _translated(table: TensorTable, places: list[ProbedPlace], troubles: dict[str, str]) -> Probed:
    blocks: list[Block] = []
    stores: list[Store] = []
    for place in places:
        units, index = place.units, len(stores)
        mine: list[Block] = []
        try:
            for code, region in place.regions:
                spec = table.tensors[code - 1]
                if 8 * spec.unit_bytes != place.width:
                    raise LayoutRefused(CONVERTS)
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
