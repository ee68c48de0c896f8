"""Kill points: named places in publish and apply where a process may die, and a test makes it die.

`reach(name)` costs one dictionary look-up. A name that is not registered here raises, so a new step cannot be added to the code
without the registry (which the kill tests iterate) knowing it. `SYNCLINE_KILL_AT=<name>` (or `<name>#<n>`: at the n-th time) makes the
process kill -9 itself there; tests inside one process install their own hook instead.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

PUBLISH_POINTS: Mapping[str, str] = {
    "publish.epoch_taken": "the empty delta of the new epoch is committed",
    "publish.encoded": "all frames are encoded; their chunks are in the store or on their way, and no manifest names them",
    "publish.chunks_put": "all chunks are in the store, the manifest is not",
    "publish.manifest_put": "the version is committed, head still names its predecessor",
    "publish.head_moved": "head names the version, the publisher's base is still the old one",
    "publish.base_journaled": "the journal of the on-disk base is durable, its files hold old bits",
    "publish.base_patched": "the on-disk base holds the new bits, its marker still names the old version",
    "publish.base_marked": "the on-disk base names the new version, the journal is not removed",
    "publish.anchor_files_put": "an anchor's files are in the store, its manifest is not",
    "publish.anchor_put": "an anchor is committed",
    "publish.skip_put": "a skip delta is committed",
}
APPLY_POINTS: Mapping[str, str] = {
    "apply.planned": "a plan exists, nothing is fetched",
    "apply.fetched": "all chunks are verified files on the node",
    "apply.staged": "every rank holds the staged changes",
    "apply.ready": "every rank is ready and the gate is held, none has written",
    "apply.writing": "the gate waits for the write, no rank was told to begin",
    "apply.resumed": "all ranks have written and steps go on, nothing is read back",
    "apply.scattering": "inside the engine: half of the tensors hold new bits",
    "apply.scattered": "inside the engine: all bits are new, the version is not recorded",
    "apply.committed": "the agent knows that the engine serves the new version",
    "apply.checkpoint_journaled": "the node checkpoint's journal is durable, the files hold old bits",
    "apply.checkpoint_patched": "the node checkpoint's files hold new bits, the marker names the old version",
    "apply.checkpoint_marked": "the marker names the new version, the journal is not removed",
    "apply.materialized": "a checkpoint is downloaded and patched, its marker is not written",
}
POINTS: Mapping[str, str] = {**PUBLISH_POINTS, **APPLY_POINTS}

Hook = Callable[[str], None]


def kill_hook(wanted: str) -> Hook:
    """A hook that kills this process at `<name>`, or at `<name>#<n>` the n-th time. ValueError for an unknown name."""
    name, _, nth = wanted.partition("#")
    if name not in POINTS:
        raise ValueError(f"no kill point is called {name!r}; known: {', '.join(POINTS)}")
    left = int(nth or "1")

    def kill(point: str) -> None:
        nonlocal left
        if point == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return kill


def _kill_from_environment() -> Hook | None:
    wanted = os.environ.get("SYNCLINE_KILL_AT")
    return kill_hook(wanted) if wanted else None


_hook: Hook | None = _kill_from_environment()


def reach(point: str) -> None:
    """Say that execution has come to `point`; dies here when a test asked for it. Raises KeyError for an unregistered name."""
    POINTS[point]
    if _hook is not None:
        _hook(point)


def install_hook(hook: Hook | None) -> None:
    """Replace what happens at every kill point (tests and simulations); None removes it."""
    global _hook
    _hook = hook
