"""Weights over the sleep of their engine: while it sleeps nobody reads or writes them, and when it wakes they are swept before
anything is computed with them.

An address that stands for nothing ends the process that reads it, so taking memory away waits for those who read. Whether the
weights are still the version's after a sleep is never taken for granted: `live` says it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from structlog.typing import FilteringBoundLogger

from syncline.errors import DigestMismatch, EngineUnavailable
from syncline_agent.arm.guarded import GuardedMemory
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.memory import Memory


class SleepingMemory(GuardedMemory):
    """The same as what it is around while the engine is awake; asleep, EngineUnavailable."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._change = threading.Condition()
        self._readers = 0
        self._away: str | None = None

    def take_away(self, why: str) -> None:
        """Return when nobody reads any more; from now on nobody does."""
        with self._change:
            self._away = why
            self._change.wait_for(lambda: self._readers == 0)

    def give_back(self) -> None:
        """The memory is where it was, whatever it holds."""
        with self._change:
            self._away = None

    @contextmanager
    def _touching(self) -> Iterator[None]:
        with self._change:
            if self._away is not None:
                raise EngineUnavailable(f"{self._away}; nothing was read or written")
            self._readers += 1
        try:
            yield
        finally:
            with self._change:
                self._readers -= 1
                self._change.notify_all()


class Sleeper:
    """A rank's weights, put to sleep and woken by the engine around them. Its calls come from the thread that computes."""

    def __init__(
        self,
        live: LiveWeights,
        memory: SleepingMemory,
        rest: Callable[[], Sequence[torch.Tensor]],
        *,
        log: FilteringBoundLogger,
    ) -> None:
        """`live` has this `memory`; `rest` is what else the model computes with: constants that no checkpoint has."""
        self._live, self._memory, self._rest, self._log = live, memory, rest, log
        self._saved: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

    def fall_asleep(self, why: str, *, lost: bool) -> None:
        """The memory goes away; `lost`: what it holds, too. Then the constants are kept on the host."""
        self._memory.take_away(why)
        if lost:
            self._saved = [(tensor, tensor.to("cpu", copy=True)) for tensor in self._rest()]
        self._log.info("the arm stands back", reason=why)

    def wake(self) -> None:
        """The memory is there again. On return the weights are proven to be the version's, or out of service."""
        for tensor, kept in self._saved:
            tensor.copy_(kept)
        self._saved = ()
        self._live.unsettle("the weights were away and were not swept since")
        self._memory.give_back()
        try:
            self._log.info("weights are back", version=self._live.sweep().version)
        except DigestMismatch as error:
            self._log.error("weights are back and are others", reason=str(error))
        except Exception:  # a device without room for sums: the next sweep decides, until then nothing is served
            self._log.exception("weights are back and could not be swept")
