"""How the scale of each quantized unit moves in a step: what a coder of codes would know that had the new scales first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.wire.tensors import TensorSpec
from syncline_cli.bench.bounds import steps_of
from syncline_cli.bench.quantized import FP8_BLOCK
from syncline_cli.bench.views import View

Integers = NDArray[np.int64]

MOVES = 67
"""Stands still, or a step of so many bits up or down."""
_FP8_SCALE, _FP4_SCALE = "_scale_inv", "_scale"


def moves_of_scales(old: View, new: View) -> dict[int, Integers]:
    """By tensor of codes, for each of its units: the move of its block's scale, 0 to MOVES - 1."""
    number = {spec.name: at for at, spec in enumerate(old.table.tensors)}
    found: dict[int, Integers] = {}
    for at, spec in enumerate(old.table.tensors):
        for ending in (_FP8_SCALE, _FP4_SCALE):
            if (scale := number.get(spec.name + ending)) is not None:
                found[at] = _spread(spec, old.table.tensors[scale], _moves(old, new, scale))
    return found


def _moves(old: View, new: View, tensor: int) -> Integers:
    alphabet = ALPHABETS[old.table.tensors[tensor].dtype]
    step = steps_of(alphabet, old.units[tensor], new.units[tensor])
    bits = np.frexp(np.abs(step).astype(np.float64))[1]
    return np.sign(step) * bits + MOVES // 2


def _spread(codes: TensorSpec, scale: TensorSpec, moves: Integers) -> Integers:
    """A scale's value for each unit that it scales."""
    (rows, columns), by_block = codes.shape, moves.reshape(scale.shape)
    if codes.dtype == "F4":
        units = columns // 2  # two codes in each
        return by_block.repeat(units // scale.shape[1], 1).reshape(-1)
    return by_block.repeat(FP8_BLOCK, 0)[:rows].repeat(FP8_BLOCK, 1)[:, :columns].reshape(-1)
