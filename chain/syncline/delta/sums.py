"""Whole-tensor passes: the digest, and values that are no number."""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from syncline.delta.parallel import in_order
from syncline.kernels.digest import digest_units
from syncline.wire import dtypes
from syncline.wire.digest import Digest, seeds, total
from syncline.wire.tensors import TensorSpec

Units = NDArray[np.unsignedinteger]

SLICE_UNITS = 1 << 22
"""Units a task: large enough that a thread's overhead vanishes, small enough that two cores share one tensor."""


def digest_tensor(spec: TensorSpec, flat: Units, *, executor: Executor | None = None) -> Digest:
    """Tensor digest of a flat unit view (wire.digest); independent of slices and threads."""
    seed = seeds(spec.name)
    starts = range(0, flat.size, SLICE_UNITS)
    return total(in_order(executor, lambda at: digest_units(flat[at : at + SLICE_UNITS], seed, start=at), starts))


def count_nonfinite(spec: TensorSpec, flat: Units) -> int:
    """Units that are NaN or Inf; 0 for dtypes that have none, or where a unit is no single value (packed, complex)."""
    mask = dtypes.dtype(spec.dtype).exponent_mask
    if mask == 0:
        return 0
    wanted = flat.dtype.type(mask)
    found = 0
    for at in range(0, flat.size, SLICE_UNITS):
        piece = flat[at : at + SLICE_UNITS]
        found += int(np.count_nonzero((piece & wanted) == wanted))
    return found
