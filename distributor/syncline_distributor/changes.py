"""The tensors of a step, one after another: what each changes against the base, and what its digest is then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from syncline.delta import SPAN_BYTES, CodecChoice, DeltaEncoder, EncodedDelta, digest_tensor
from syncline.errors import DigestMismatch
from syncline.wire.digest import Digest
from syncline.wire.records import ChunkRef
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling
from syncline_distributor.weights import WeightSource


@dataclass(frozen=True, slots=True)
class Change:
    """What a step makes of one tensor."""

    digest: Digest
    """Of the new weights."""
    nonfinite: int
    """NaN or Inf among the changed values."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be encoded, and where to."""

    table: TensorTable
    tiling: Tiling
    choice: CodecChoice
    nonce: Callable[[], bytes]
    """16 random bytes a chunk."""
    sink: Callable[[ChunkRef, bytes], None]
    """Takes each chunk once it is complete."""


class StepEncoder(Protocol):
    """Encodes a step against a base."""

    def changes(self, source: WeightSource, before: Sequence[Digest], *, verify: bool) -> Iterator[Change]:
        """Take all tensors, whose digests in the base are `before`. Gives the change of each in the table's order, once it is known: what
        is encoded by then may be any part of the step. With `verify` the digests are looked at, not believed: DigestMismatch."""
        ...

    def finish(self) -> EncodedDelta:
        """Close the last chunk, once all changes were given."""
        ...


class HoldsUnits(Protocol):
    """The part of a base that a step looks at."""

    def units(self, tensor: int) -> NDArray[Any]: ...


class HostStep:
    """Weights in this process's memory, or in files that it maps."""

    def __init__(
        self, base: HoldsUnits, step: Step, *, executor: Executor | None = None, span_bytes: int = SPAN_BYTES
    ) -> None:
        self._base = base
        self._table = step.table
        self._encoder = DeltaEncoder(
            step.table,
            step.tiling,
            choice=step.choice,
            nonce=step.nonce,
            sink=step.sink,
            executor=executor,
            span_bytes=span_bytes,
        )
        self._executor = executor

    def changes(self, source: WeightSource, before: Sequence[Digest], *, verify: bool) -> Iterator[Change]:
        for tensor, spec in enumerate(self._table.tensors):
            new = source.units(tensor)
            change = self._encoder.add(tensor, self._base.units(tensor), new)
            after = before[tensor] + change.digest_change
            if verify and digest_tensor(spec, new, executor=self._executor) != after:
                raise damaged(spec)
            yield Change(after, change.nonfinite)

    def finish(self) -> EncodedDelta:
        return self._encoder.finish()


def damaged(spec: TensorSpec) -> DigestMismatch:
    """The base does not hold what it should."""
    return DigestMismatch(
        f"{spec.name}: the running digest is not that of the weights; the base was damaged and is dropped, publish again"
    )
