"""Short turns of Python's interpreter while an arm works beside an engine's loop.

A loop that launches kernels gives the interpreter away with every launch, and a thread that has taken it keeps it for a switch interval
of five milliseconds: many times what a launch takes. The interval belongs to the whole process, so who asks for short turns is counted
for the whole process, and the last one to leave puts back what was found. Where somebody else changed it meanwhile, theirs stays.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TURN_S = 1e-4
_counting = threading.Lock()
_inside = 0
_found_s = 0.0


@contextmanager
def short_turns() -> Iterator[None]:
    """Whoever waits for the interpreter gets it within TURN_S, as long as the block lasts."""
    _enter()
    try:
        yield
    finally:
        _leave()


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
