"""Memory between a publisher and its process: what was freed is given back to the system, and garbage is collected less often meanwhile.

The C library keeps what a publish or a skip delta used in pieces, and the next one would come on top of what the last one left. A full
collection of Python's garbage looks at everything that a trainer holds, a tenth of a second and more, in which no other thread runs.
Owns no memory itself.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 200_000
"""Objects beyond those let go of, after which garbage is collected all the same, whoever makes them: 700 is usual."""
_counting = threading.Lock()
_inside = 0
_found = (0, 0, 0)
"""Before."""


def give_back() -> None:
    """Does nothing where the C library cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Garbage is collected after SELDOM objects, as long as a block lasts. The setting is the process's: blocks are counted, and the last
    one to leave puts back what was found, unless somebody else set it meanwhile."""
    global _inside, _found
    with _counting:
        _inside += 1
        if _inside == 1:
            _found = gc.get_threshold()
            if 0 < _found[0] < SELDOM:  # 0: never
                gc.set_threshold(SELDOM, *_found[1:])
    try:
        yield
    finally:
        with _counting:
            _inside -= 1
            if _inside == 0 and gc.get_threshold() == (SELDOM, *_found[1:]):
                gc.set_threshold(*_found)
