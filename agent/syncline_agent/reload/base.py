"""The port of an engine that reloads: what one kind's routes do, in the words of a reload. vllm.py and sglang.py adapt.

An adapter only calls routes and says what their answers mean. It never reads a checkpoint and remembers no version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from syncline.errors import EngineUnavailable
from syncline.versions import Policy
from syncline_agent.reload.routes import Answer


class Reloading(Protocol):
    """One kind of engine. Calls come in the order check, pause, load, resume; the others at any time.

    What is raised where: EngineUnavailable when nothing was changed, LayoutRefused when nothing was changed and
    repeating cannot help, EngineUncertain when weights or caches may be of two versions.
    """

    @property
    def kind(self) -> str:
        """vllm or sglang."""
        ...

    @property
    def unprovable(self) -> str | None:
        """Why this kind's weights can never be proven from outside; None where `checks` may do it."""
        ...

    def stamp(self) -> str:
        """The weight version that the engine says it serves."""
        ...

    def check(self) -> None:
        """LayoutRefused, by name, for an engine that the routes would reach only in part."""
        ...

    def pause(self, policy: Policy) -> None:
        """Return when no forward step runs, and none begins before `resume`; requests in flight as `policy` says."""
        ...

    def load(self, folder: str, stamp: str) -> None:
        """Load the weights in `folder`, drop every cache that older weights filled, and serve under `stamp`."""
        ...

    def resume(self) -> None:
        """Steps go on."""
        ...

    def checks(self) -> Mapping[str, str] | None:
        """Checksums of the weights in the engine's memory, by rank and parameter; None where it gives none."""
        ...


def done(answer: Answer, what: str) -> Answer:
    """The answer of a call that must succeed and changes no weights. EngineUnavailable when it did not."""
    if not answer.ok:
        raise EngineUnavailable(f"the engine did not {what}: {answer.said}")
    return answer
