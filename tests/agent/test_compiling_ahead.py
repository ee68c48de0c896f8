"""What the first advance of a node's checkpoint needs is compiled once the checkpoint is there, while an engine loads it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import structlog

from syncline.delta.warming import compile_for
from syncline_agent.nodecheckpoint import Chain, NodeCheckpoint
from syncline_agent.nodefiles import NodeFiles


class Noting(ThreadPoolExecutor):
    """Remembers what it was given to do, and what stood in the folder then."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(2)
        self.compiled: list[tuple[Any, bool]] = []
        self._checkpoint = checkpoint

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        if fn is compile_for:
            self.compiled.append((*args, any(self._checkpoint.glob("*.safetensors"))))
            done: Future[Any] = Future()
            done.set_result(None)
            return done  # it takes seconds, and others show what it does
        return super().submit(fn, *args, **named)


def test_a_join_has_its_dtypes_compiled_as_soon_as_the_checkpoint_is_there(world: Any, tmp_path: Path) -> None:
    world.publish()
    files = NodeFiles(tmp_path / "node")
    with Noting(files.root / "checkpoint") as executor:
        checkpoint = NodeCheckpoint(files, structlog.get_logger(), executor=executor)
        chain = Chain(world.reader.run_record(), world.reader, cast(Any, None))  # a join fetches no chunks
        checkpoint.join(chain, 1)
    assert [({"U16"}, True)] == executor.compiled
