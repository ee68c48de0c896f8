"""How a kernel is compiled: at its first use, once a signature, kept on disk where a disk will have it.

That takes a minute or so once an environment, in which nothing else is to be seen, so it is told: to the standard library's log of this
module's name, which `syncline.logs`, the command line or a trainer shows. What comes from the disk is not told.
"""

# pyright: basic
# numba gives its objects no types

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import event as events

Signature = tuple[Any, ...]

INT = types.int64
I32 = types.int32
U8 = types.uint8
U16 = types.uint16
U32 = types.uint32
U64 = types.uint64


def array(unit: Any, *, writable: bool = False) -> Any:
    """Type of a flat array argument. Read-only and unaligned is the weakest claim, so one compilation takes them all.

    Unaligned, because a mapped file aligns its tensors as it likes.
    """
    return types.Array(unit, 1, "C", readonly=not writable, aligned=False)


def compiled(
    function: Callable[..., Any], signature: Callable[[Any], Signature], *, allocates: bool = False
) -> Callable[[np.dtype[Any]], Callable[..., Any]]:
    """The machine code of `function` for a unit width, made at its first use. It releases the GIL and checks no bounds."""

    @cache
    def of(dtype: np.dtype[Any]) -> Callable[..., Any]:
        return compiled_as(_named(function, dtype), signature(numba.from_dtype(dtype)), allocates=allocates)

    return of


@cache
def compiled_as(function: Callable[..., Any], arguments: Signature, *, allocates: bool = False) -> Callable[..., Any]:
    """The machine code of `function` for these argument types, likewise.

    One that makes no arrays is compiled without counting references: the compiler counts them anew wherever a loop hands an array to a
    function, and that may take longer than the function.
    """
    options = {"nogil": True, "error_model": "numpy", "_nrt": allocates}
    with events.install_listener("numba:compile", _Telling(function)):
        try:
            return numba.njit([arguments], cache=True, **options)(function)
        except (RuntimeError, OSError):
            # No place for the cache (a read-only image without a home), or a full disk: only the next start is slower.
            return numba.njit([arguments], **options)(function)


class _Telling(events.TimingListener):
    """Tells that a kernel is compiled. Hears of other threads' too, which have listeners of their own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def notify(self, event: Any) -> None:
        if event.data["dispatcher"].py_func is not self._function:
            return
        super().notify(event)
        if event.is_start:
            _tell_first()
        elif self.done:  # a start may be missed where another thread's listener leaves at that moment
            kernels = self._function.__module__.rpartition(".")[2]
            _log().info("compiled", extra={"about": {"kernels": kernels, "seconds": round(self.duration, 1)}})


@cache
def _tell_first() -> None:
    """Once a process: which others will be needed is not known, only that they take long."""
    _log().info("compiling kernels", extra={"about": {"takes": "a minute or so, once an environment"}})


def _log() -> logging.Logger:
    return logging.getLogger(__name__)


def _named(function: Callable[..., Any], dtype: np.dtype[Any]) -> Callable[..., Any]:
    """The function under a name of its own, and so with cache files of its own.

    numba keeps all variants of one name in one index and numbers their files. Processes that start together with an empty cache
    may give one number to two variants, and then one of them runs the other's machine code, for good and without a word.
    """
    enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
    if odd := [value for value in enclosed if not isinstance(value, (int, np.integer))]:
        # numba keys its cache by what a function encloses; a function has another key in every process, and so is compiled in each
        raise TypeError(
            f"{function.__qualname__} encloses {odd[0]!r}; only integers keep their name from process to process"
        )
    named = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    named.__qualname__ = "_".join([function.__qualname__, dtype.name, *(str(value) for value in enclosed), _sources()])
    named.__module__ = function.__module__
    return named


@cache
def _sources() -> str:
    """Changes with any kernel's source: numba looks only at the file of the function itself, not at what it inlined from others."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
