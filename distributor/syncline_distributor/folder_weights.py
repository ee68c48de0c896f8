"""A safetensors folder as a weight source: one tensor in memory at a time, in a buffer that the next one reuses."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from syncline.checkpoint.folder import WeightFolder
from syncline.errors import SourceNotReady
from syncline.wire.tensors import COLUMN_SPLIT, TensorTable, split_axis
from syncline_distributor.weights import UNIT_TYPES, Files
from syncline_distributor.whole import beside_weights


class FolderWeights:
    """An open checkpoint folder. Its files stay open, so that one that vanishes stays readable until `check` tells."""

    def __init__(self, path: Path, *, column_split: tuple[str, ...] = COLUMN_SPLIT) -> None:
        """SourceNotReady while the folder is incomplete; SourceInvalid or TiedWeightsDiffer when it can never be
        read."""
        with _readable(path):
            self._folder = WeightFolder.open(path)
            try:
                self.table: TensorTable = self._folder.table(lambda name, shape: split_axis(name, shape, column_split))
                self._beside = _read_beside(path)
            except BaseException:
                self._folder.close()
                raise
        largest = max((spec.size_bytes for spec in self.table.tensors), default=0)
        self._buffer = np.empty(-(-largest // 8), np.uint64)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.close()

    def units(self, tensor: int) -> NDArray[Any]:
        spec = self.table.tensors[tensor]
        flat = self._buffer.view(UNIT_TYPES[spec.unit_bytes])[: spec.units]
        with _readable(self._folder.path):
            return self._folder.read(spec.name, flat) if flat.size else flat

    def files(self) -> Files:
        return self._beside

    def check(self) -> None:
        self._folder.check_unchanged()

    def close(self) -> None:
        self._folder.close()


@contextmanager
def _readable(path: Path) -> Generator[None]:
    """A file that this process may not read, or whose disk fails, is no reason to hold up the next checkpoint."""
    try:
        yield
    except OSError as error:
        raise SourceNotReady(
            f"{error.filename or path} cannot be read: {error.strerror}; give this process the permission, or look at "
            "the disk. It is tried again"
        ) from error


def _read_beside(path: Path) -> dict[str, bytes | Path]:
    # Read at once, like the table: a folder that vanishes later still gives all that belongs to it.
    try:
        return {n: f if isinstance(f, bytes) else f.read_bytes() for n, f in beside_weights(path).items()}
    except FileNotFoundError as error:
        raise SourceNotReady(f"{error.filename} vanished while {path} was read; the next checkpoint is taken") from None
