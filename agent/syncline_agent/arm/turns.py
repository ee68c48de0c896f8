"""Short turns of Python's interpreter, and no collection of its garbage, while an arm works beside an engine's loop.

A loop that launches kernels gives the interpreter away with every launch, and a thread that has taken it keeps it for a switch interval
of five milliseconds: many times what a launch takes. A full collection keeps it for as long as it takes to look at everything that an
engine holds, a tenth of a second and more, and the objects of a delta bring one about at every second stage. Both settings belong to
the whole process, so who asks is counted for the whole process, and the last one to leave puts back what was found. Where somebody else
set the interval or began to collect meanwhile, theirs stays; a collector that somebody else stopped meanwhile cannot be told from ours.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TURN_S = 1e-4
_counting = threading.Lock()
_inside = 0
_found_s = 0.0
_uncollected = 0
_collected = False
"""Before."""


@contextmanager
def short_turns() -> Iterator[None]:
    """Whoever waits for the interpreter gets it within TURN_S, as long as the block lasts."""
    _enter()
    try:
        yield
    finally:
        _leave()


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection begins by itself. For blocks that let go of nearly all that they make, and make no circles."""
    global _uncollected, _collected
    with _counting:
        _uncollected += 1
        if _uncollected == 1:
            _collected = gc.isenabled()
            gc.disable()
    try:
        yield
    finally:
        with _counting:
            _uncollected -= 1
            if _uncollected == 0 and _collected:
                gc.enable()


def settle() -> None:
    """What stands by now stays, and no later collection looks at it: an engine's modules, weights and frames are most of what there is.
    For the process of an engine, once it is loaded; vLLM does the same for its own."""
    gc.collect()
    gc.freeze()


def _enter() -> None:
    global _inside, _found_s
    with _counting:
        _inside += 1
        if _inside == 1:
            _found_s = sys.getswitchinterval()
            sys.setswitchinterval(min(TURN_S, _found_s))


def _leave() -> None:
    global _inside
    with _counting:
        _inside -= 1
        if _inside == 0 and abs(sys.getswitchinterval() - min(TURN_S, _found_s)) < 1e-6:
            sys.setswitchinterval(_found_s)
