"""Many regions of one parameter at once, where all its lines count alike: stacked experts by the hundred, say.

Each region that is looked for on a device costs several waits for it. Where every line along the last dimension is known by its
first unit and one step, that is verified for the whole parameter in a few operations, and the regions are looked for on the
host, in one column. It finds what `fitting.refine` finds, or says that lines differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from syncline_agent.arm.fitting import Region, chunk_units, refine

COLUMN_MAX = 1 << 22
"""Lines that are brought to the host."""


def refine_lines(
    digits: torch.Tensor, regions: Sequence[Region], width: int, *, constant: bool
) -> list[list[Region]] | None:
    """Each region's parts, as `fitting.refine` has them; None where lines are not alike, or cut."""
    length = digits.shape[-1]
    whole = all((0, length) == (region.start[-1], region.size[-1]) for region in regions)
    if digits.dim() < 2 or length < 2 or not regions or not whole or digits.numel() // length > COLUMN_MAX:
        return None
    first = digits[..., 0].cpu()
    step = 0
    if constant:
        bases, steps = first.to(torch.int64), torch.zeros_like(first, dtype=torch.int64)
    else:
        bases, steps, step = _counted(digits, first, regions, width)
    if not _alike(digits, bases, steps, 0 if constant else regions[0].bits):
        return None
    column = first.unsqueeze(-1)
    return [
        [
            replace(part, size=(*part.size[:-1], length), steps=(*part.steps[:-1], step))
            for part in refine(column, replace(region, size=(*region.size[:-1], 1)), width, constant=constant)
        ]
        for region in regions
    ]


def _counted(
    digits: torch.Tensor, first: torch.Tensor, regions: Sequence[Region], width: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """What each line begins with and how it grows, as far as it is known with this digit; the growth of all of them."""
    bits = regions[0].bits
    wrap = (1 << (bits + width)) - 1
    bases = torch.zeros(first.shape, dtype=torch.int64)
    inside = torch.zeros(first.shape, dtype=torch.int64)
    for region in regions:
        box = tuple(slice(at, at + size) for at, size in zip(region.start[:-1], region.size[:-1], strict=True))
        low = torch.full((1,) * first.dim(), region.value, dtype=torch.int64)
        for axis, (size, step) in enumerate(
            zip(region.size[:-1], region.steps[:-1] if region.steps else (), strict=False)
        ):
            shape = [1] * first.dim()
            shape[axis] = size
            low = low + (torch.arange(size, dtype=torch.int64) * step).view(shape)
        bases[box] = low & ((1 << bits) - 1)
        inside[box] = 1
    bases |= (first.to(torch.int64) & ((1 << width) - 1)) << bits
    at = (*regions[0].start[:-1], 1)
    known = (regions[0].value + (regions[0].steps[-1] if regions[0].steps else 0)) & ((1 << bits) - 1)
    second = (int(digits[at]) & ((1 << width) - 1)) << bits | known
    step = (second - int(bases[regions[0].start[:-1]])) & wrap
    grown = step - (wrap + 1) if step >> (bits + width - 1) else step
    return bases * inside, inside * grown, step


def _alike(digits: torch.Tensor, bases: torch.Tensor, steps: torch.Tensor, shift: int) -> bool:
    """Whether every unit is what its line's base and step make of it."""
    length = digits.shape[-1]
    bases, steps = bases.to(digits.device), steps.to(digits.device)
    along = torch.arange(length, dtype=torch.int64, device=digits.device)
    rows = max(1, chunk_units(digits.device) // max(1, digits.numel() // digits.shape[0]))
    for low in range(0, digits.shape[0], rows):
        wanted = bases[low : low + rows].unsqueeze(-1) + steps[low : low + rows].unsqueeze(-1) * along
        if not torch.equal(digits[low : low + rows], (wanted >> shift).to(digits.dtype)):
            return False
    return True
