"""From frames to launches: which of them share a codec table, what that table is, and which frames are coded alike.

A table comes from a sample of each kind's frames, so that the weights are read once. Arrays of rows all the way: a frame is looked at by
itself only where it is one of a sample.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec, lane_shift, lanes_of
from syncline.codecs.context.counts import Counts, Totals
from syncline.codecs.context.fitting import shared_bits
from syncline.codecs.context.sharing import Kind as Sharing
from syncline.codecs.context.sharing import Kinds
from syncline.delta.choice import CodecChoice
from syncline.delta.device.group import Group
from syncline.delta.device.held import Rows
from syncline.kernels.clock import Alphabet
from syncline.wire.tensors import TensorSpec

SAMPLE_FRAMES = 64
"""Frames of a kind that are counted, at most."""
_ROOM = 1.5
"""Words a lane may take, beside what the sample lets expect."""
_SPREAD = 0x9E3779B1
"""Multiples of it are spread evenly."""

Run = tuple[int, Rows]
"""Frames of one unit width: number of the kind that holds them, and their rows there."""
Count = Callable[[int, Rows, Alphabet], Callable[[], Counts]]
"""Begins to look at the units of some frames, before and after; what that gives waits for it."""


@dataclass(slots=True)
class Job:
    """Frames for one codec and one number of lanes, which kernels reach in one way."""

    codec: ContextCodec
    lanes: int
    words: int
    """Expected of a lane, at most."""
    kind: int
    rows: list[Rows]


def jobs_of(
    group: Group, runs: Iterable[Run], choice: CodecChoice, count: Count, *, again: bool
) -> tuple[list[Job], list[Run]]:
    """Launches, and the frames that no kernel takes: the host looks at them. `again`: frames that another table did not suit, of which few
    may not pay for one of their own; nor may those that change nearly everywhere, to bits that the old ones say nothing about.
    """
    specs = {held.tensor: held.spec for held in group.tensors}
    kinds = Kinds()
    of_kind: dict[int, tuple[Sharing, TensorSpec, int, list[Rows]]] = {}
    left: list[Run] = []
    for number, tensor, rows in _by_tensor(group, runs):
        spec = specs[tensor]
        if spec.dtype in ALPHABETS and choice.takes_context:
            shared = kinds.of(spec.dtype, spec.name, ALPHABETS[spec.dtype])
            of_kind.setdefault(id(shared), (shared, spec, number, []))[3].append(rows)
        else:
            left.append((number, rows))
    begun: list[tuple[Sharing, TensorSpec, int, Rows, Rows, Callable[[], Counts]]] = []
    for shared, spec, number, parts in of_kind.values():
        rows = np.concatenate(parts)
        sample = rows[_sample(rows.size)]
        begun.append((shared, spec, number, rows, sample, count(number, sample, shared.alphabet)))
    sampled: list[tuple[Sharing, int, Rows, int, int]] = []
    exact = True
    for shared, spec, number, rows, sample, counted in begun:
        units = group.after.kinds[number].units[sample]
        counts = counted()
        changed, looked_at = int(counts.symbols.sum()), int(units.sum(dtype=np.int64))
        dense = choice.is_dense(changed, looked_at)
        if (again or dense) and not _pays(shared.alphabet, spec, counts, units.tolist(), rows.size):
            left.append((number, rows))
        else:
            shared.counts = counts
            sampled.append((shared, number, rows, changed, looked_at))
            exact = exact and sample.size == rows.size
    kinds.share_tables(exact=exact)
    jobs: dict[tuple[Alphabet, bytes, int, int, int], Job] = {}
    for shared, number, rows, changed, units in sampled:
        _launches(group, shared, number, rows, changed, units, jobs)
    return list(jobs.values()), left


def _launches(
    group: Group,
    shared: Sharing,
    number: int,
    rows: Rows,
    changed: int,
    units: int,
    jobs: dict[tuple[Alphabet, bytes, int, int, int], Job],
) -> None:
    """Put the frames of a kind, of whose sample so many of so many units changed, to those that are coded alike."""
    assert shared.table is not None
    before, after = group.before.kinds[number], group.after.kinds[number]
    codec = ContextCodec(shared.table, shared.alphabet, lane_shift(max(changed, 1), units))
    bits = shared_bits(Totals.of(shared.counts), shared.alphabet) / units
    walks = np.maximum(before.walks[rows], after.walks[rows])
    shapes, which = np.unique(np.stack([after.units[rows], walks]), axis=1, return_inverse=True)
    which = which.reshape(-1)
    firsts = np.full(shapes.shape[1], rows.size)
    np.minimum.at(firsts, which, np.arange(rows.size))
    like: dict[tuple[int, int], list[int]] = {}
    for shape in np.argsort(firsts).tolist():
        size, walk = shapes[:, shape].tolist()
        like.setdefault((lanes_of(size, codec.lane_shift), walk), []).append(shape)
    for (lanes, walk), own in like.items():
        words = max(int(_ROOM * int(shapes[0, shape]) / lanes * bits / 16) + 64 for shape in own)
        launch = (shared.alphabet, shared.table.data, codec.lane_shift, lanes, walk)
        job = jobs.setdefault(launch, Job(codec, lanes, 0, number, []))
        job.words = max(job.words, words)
        job.rows.append(rows[np.isin(which, own)])


def _by_tensor(group: Group, runs: Iterable[Run]) -> Iterator[tuple[int, int, Rows]]:
    """Kind, tensor and rows, of each row of frames of one tensor."""
    for number, rows in runs:
        tensors = group.after.kinds[number].tensors[rows]
        cuts = np.flatnonzero(np.diff(tensors)) + 1
        for own in np.split(rows, cuts):
            if own.size:
                yield number, int(group.after.kinds[number].tensors[own[0]]), own


def _sample(frames: int) -> NDArray[np.int64]:
    """Of each of at most SAMPLE_FRAMES runs one frame, not always the same one: what changes may come back at a distance."""
    run = -(-frames // SAMPLE_FRAMES)
    turn = np.arange(-(-frames // run))
    return np.minimum(turn * run + (turn * _SPREAD >> 16) % run, frames - 1)


def _pays(alphabet: Alphabet, spec: TensorSpec, counts: Counts, sample: Sequence[int], frames: int) -> bool:
    """Whether a table for so many frames, of which these (by their units) were counted, saves more than it takes."""
    each = int(counts.symbols.sum()) // len(sample)
    plain = sum(plain_bytes(units, spec.unit_bytes, each) for units in sample)
    times = frames // len(sample)
    return shared_bits(Totals.of(Counts(counts.units * times, counts.symbols * times)), alphabet) < 8 * plain * times


def plain_bytes(units: int, unit_bytes: int, changed: int) -> int:
    """What the changes of a frame take without any table, about: each a distance and whole new bits; and never more than all units."""
    bits = changed * (8 * unit_bytes + (units // max(changed, 1)).bit_length() + 1)
    return min(bits // 8, units * unit_bytes)
