"""What an arm inside somebody else's engine is told, whichever engine that is: read once from that engine's environment.

Loads nothing: an engine's plugin reads it before the engine has loaded anything itself.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeVar

from syncline.errors import Rejected
from syncline_agent.flags import check_socket_path, seconds

_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """See docs/vllm.md for the variables."""

    socket: Path
    pool: str = "default"
    pod: str = "pod-0"
    token_file: Path | None = None
    checkpoint: Path | None = None
    """The node's checkpoint, where the engine's own settings do not say where it is."""
    sweep_interval_s: float = 600.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Rejected, naming the variable, for a value that cannot be used."""
        if not environ.get("SYNCLINE_ARM_SOCKET"):
            raise Rejected("SYNCLINE_ARM_SOCKET is not set; it names the agent's arm.sock")
        socket = Path(environ["SYNCLINE_ARM_SOCKET"])
        try:
            check_socket_path(socket)
        except ArgumentTypeError as error:
            raise Rejected(f"SYNCLINE_ARM_SOCKET: {error}") from None
        try:
            interval = seconds(environ.get("SYNCLINE_SWEEP_INTERVAL") or "600")
        except ArgumentTypeError as error:
            raise Rejected(f"SYNCLINE_SWEEP_INTERVAL: {error}") from None
        return cls(
            socket=socket,
            pool=environ.get("SYNCLINE_POOL") or "default",
            pod=environ.get("SYNCLINE_POD") or environ.get("HOSTNAME") or "pod-0",
            token_file=path(environ, "SYNCLINE_ARM_TOKEN_FILE"),
            checkpoint=path(environ, "SYNCLINE_CHECKPOINT"),
            sweep_interval_s=interval,
        )


def path(environ: Mapping[str, str], name: str) -> Path | None:
    """A path, where the variable names one."""
    return Path(environ[name]) if environ.get(name) else None


def choice(environ: Mapping[str, str], name: str, usual: _Choice) -> _Choice:
    """One of a few words. Rejected, naming the variable, for another."""
    kind = type(usual)
    try:
        return kind(environ.get(name) or usual)
    except ValueError:
        words = " nor ".join(kind)
        raise Rejected(f"{name}={environ[name]} is neither {words}") from None
