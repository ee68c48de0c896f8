"""Kernels compiled before they are needed: those of a commit, which requests wait for, and the usual ones of the first delta.

Live weights are read at most. What a delta needs beyond the usual is compiled while it is staged, and nothing waits for that.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import LANE_SHIFT_USUAL, lanes_of
from syncline.codecs.context.lanes import place_lanes
from syncline.codecs.context.table import CONTEXTS, ZONE_BITS_MIN
from syncline.delta.device.held import HeldFrames, Kind
from syncline.delta.warming import compile_reading
from syncline.kernels.clock import VALUE_BITS, Alphabet
from syncline.kernels.gpu.arrange import arrange
from syncline.kernels.gpu.batch import CodedFrames, DeviceTable, Staged, Walk
from syncline.kernels.gpu.decode import decode
from syncline.kernels.gpu.digest import change_digest, sweep
from syncline.kernels.gpu.scatter import missing, scatter
from syncline.wire.tensors import TensorTable

_DECODERS = 8
"""Of a unit width: the ways of decoding that most of its units need."""
_SHIFTS = (LANE_SHIFT_USUAL, LANE_SHIFT_USUAL + 1)
"""Of lanes: a step that changes about one percent lies between the two."""


def warm_up(table: TensorTable, held: HeldFrames) -> None:
    """Queued on the current stream."""
    compile_reading()
    none = np.empty(0, np.int64)
    place_lanes(np.empty(0, np.uint8), none, none, 1)
    for kind in held.kinds:
        for walk in sorted(set(kind.walks.tolist())):
            row = _least(kind, kind.walks == walk)
            batch, places = kind.launch(row)
            nothing = Staged.empty(torch.zeros_like(batch.units), 0, batch.anchor.dtype)
            arrange(nothing)
            change_digest(batch, nothing, places)
            scatter(batch, nothing)
            missing(batch, nothing, nothing.new)
            sweep(batch, places)
        if kind.anchor.is_cuda:  # elsewhere nothing is compiled
            for alphabet, lanes, walk in _usual(table, kind):
                _decode_nothing(kind, alphabet, lanes, walk)


def _least(kind: Kind, among: np.ndarray) -> np.ndarray:
    """The smallest of these frames."""
    rows = np.flatnonzero(among)
    return rows[[int(kind.units[rows].argmin())]]


def _usual(table: TensorTable, kind: Kind) -> Iterator[tuple[Alphabet, int, Walk]]:
    units: Counter[tuple[str, int, int]] = Counter()
    shapes, counts = np.unique(np.stack([kind.tensors, kind.units, kind.walks]), axis=1, return_counts=True)
    for (tensor, size, walk), count in zip(shapes.T.tolist(), counts.tolist(), strict=True):
        dtype = table.tensors[tensor].dtype
        if dtype in ALPHABETS:
            for lanes in {lanes_of(size, shift) for shift in _SHIFTS}:
                units[dtype, lanes, walk] += size * count
    for (dtype, lanes, walk), _ in units.most_common(_DECODERS):
        yield ALPHABETS[dtype], lanes, Walk(walk)


def _decode_nothing(kind: Kind, alphabet: Alphabet, lanes: int, walk: Walk) -> None:
    batch, _ = kind.launch(_least(kind, kind.walks == walk))
    device = batch.device
    # The coarsest clock is the usual one: the smallest weights have contexts in which nearly every unit changes.
    table = DeviceTable.of(alphabet, ZONE_BITS_MIN, [1] * CONTEXTS, [[(0, 1 << VALUE_BITS)]], [0] * CONTEXTS, device)
    none = torch.zeros(lanes, dtype=torch.int64, device=device)
    changed = torch.zeros_like(batch.units)
    coded = CodedFrames(
        alphabet, table, lanes, changed, torch.zeros(2, dtype=torch.uint8, device=device), none, none.to(torch.int32)
    )
    decode(batch, coded, Staged.empty(changed, 0, batch.anchor.dtype))
