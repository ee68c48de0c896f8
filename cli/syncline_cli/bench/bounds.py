"""Fewest bits that a coder of some kind can spend on a step, were its tables free: empirical entropies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.kernels.clock import NIBBLES, SIGNED, Alphabet
from syncline_cli.bench.views import Flat, Units, View

Integers = NDArray[np.int64]

AGES = 15
"""Steps since a change beyond which the history tells no two apart."""

_PIECE = 1 << 20


def position_and_flip(steps: Sequence[Flat]) -> float:
    """Bits of any coder that knows how many units change and which XOR values occur, and nothing of the old value."""
    bits = 0.0
    for step in steps:
        nowhere = np.zeros(step.positions.size, np.int64)
        bits += _where(np.array([step.old.size]), np.array([step.positions.size]))
        bits += _what(nowhere, (step.before ^ step.after).astype(np.int64))
    return bits


def context_and_step(steps: Sequence[Flat]) -> float:
    """Bits of any coder with the contexts of `context`: one set of contexts a dtype, exact steps of the ordered units."""
    bits = 0.0
    for step in steps:
        alphabet = ALPHABETS[step.dtype]
        changed = contexts(alphabet, step.before)
        bits += _where(_units_of(alphabet, step.old), np.bincount(changed, minlength=256))
        bits += _what(changed, steps_of(alphabet, step.before, step.after))
    return bits


def nibble_and_step(steps: Sequence[Flat]) -> float:
    """As `context_and_step`, but of packed nibbles each is a unit and a context of its own: sixteen contexts instead of 256."""
    bits = 0.0
    for step in steps:
        if ALPHABETS[step.dtype].order != NIBBLES:
            bits += context_and_step([step])
            continue
        counts = _units_of(ALPHABETS[step.dtype], step.old).reshape(16, 16)
        old, new = (_unpacked(units) for units in (step.before, step.after))
        moved = old != new
        changed = old[moved]
        bits += _where(counts.sum(0) + counts.sum(1), np.bincount(changed, minlength=16))
        bits += _what(changed, _ordered(new[moved], 4) - _ordered(changed, 4))
    return bits


def scale_and_step(old: View, new: View, *, moves: Mapping[int, Integers], kinds: int) -> float:
    """As `context_and_step`, where of some tensors how the scale of each unit moves, a number below `kinds`, belongs to its context."""
    bits = 0.0
    for dtype in sorted({spec.dtype for spec in old.table.tensors}):
        alphabet = ALPHABETS[dtype]
        units = np.zeros(256 * kinds, np.int64)
        changed: list[Integers] = []
        steps: list[Integers] = []
        for at in (at for at, spec in enumerate(old.table.tensors) if spec.dtype == dtype):
            before, after = old.units[at], new.units[at]
            context = contexts(alphabet, before) + 256 * moves.get(at, 0)
            units += np.bincount(context, minlength=256 * kinds)
            where = np.flatnonzero(before != after)
            changed.append(context[where])
            steps.append(steps_of(alphabet, before[where], after[where]))
        of_changed = np.concatenate(changed)
        bits += _where(units, np.bincount(of_changed, minlength=256 * kinds))
        bits += _what(of_changed, np.concatenate(steps))
    return bits


def _unpacked(units: Units) -> Integers:
    return np.concatenate([units & 15, units >> 4]).astype(np.int64)


class History:
    """When each unit last changed, and which way: contexts that a coder would have if both sides remembered."""

    def __init__(self, units: int) -> None:
        self._age = np.full(units, AGES, np.int64)
        self._fell = np.zeros(units, np.int64)

    def bits(self, step: Flat) -> float:
        """As `context_and_step`, with age and direction of the last change in the context; then the step is remembered."""
        alphabet = ALPHABETS[step.dtype]
        context = (contexts(alphabet, step.old) * (AGES + 1) + self._age) * 2 + self._fell
        moves = steps_of(alphabet, step.before, step.after)
        changed = context[step.positions]
        of_context, of_changed = (np.bincount(c, minlength=256 * (AGES + 1) * 2) for c in (context, changed))
        bits = _where(of_context, of_changed) + _what(changed, moves)
        np.minimum(self._age + 1, AGES, out=self._age)
        self._age[step.positions] = 0
        self._fell[step.positions] = moves < 0
        return bits


def _units_of(alphabet: Alphabet, units: Units) -> Integers:
    counts = np.zeros(256, np.int64)
    for at in range(0, units.size, _PIECE):
        counts += np.bincount(contexts(alphabet, units[at : at + _PIECE]), minlength=256)
    return counts


def contexts(alphabet: Alphabet, units: Units) -> Integers:
    """Context of each unit."""
    return (units.astype(np.int64) >> alphabet.shift) & alphabet.mask


def steps_of(alphabet: Alphabet, before: Units, after: Units) -> Integers:
    """How far each unit moved in the order of its dtype; of packed nibbles both moves in one number."""
    old, new = before.astype(np.int64), after.astype(np.int64)
    if alphabet.order == NIBBLES:
        low, high = (_ordered(new >> at & 15, 4) - _ordered(old >> at & 15, 4) for at in (0, 4))
        return low * 64 + high
    if alphabet.order == SIGNED:
        return _ordered(new, alphabet.bits) - _ordered(old, alphabet.bits)
    return new - old


def _ordered(units: Integers, bits: int) -> Integers:
    top = 1 << (bits - 1)
    return np.where(units < top, units, top - 1 - units)


def _where(units: Integers, changed: Integers) -> float:
    """Bits that say which units change, given how many of each context do."""
    parts = (changed, units - changed)
    return _xlogx(units) - sum(_xlogx(part) for part in parts)


def _what(context: Integers, value: Integers) -> float:
    """Bits that say what the values are, given how often each occurs in each context."""
    if not value.size:
        return 0.0
    pairs = (context << 34) + (value - value.min())
    return _xlogx(np.bincount(context)) - _xlogx(np.unique(pairs, return_counts=True)[1])


def _xlogx(counts: Integers) -> float:
    return float((counts * np.log2(np.maximum(counts, 1))).sum())
