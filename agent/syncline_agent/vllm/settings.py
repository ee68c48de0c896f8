"""What the arm inside vLLM is told, read once from the environment of the engine."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from syncline.errors import Rejected
from syncline_agent.flags import check_socket_path, seconds


class KvPolicy(StrEnum):
    """What keeps keys and values of older weights away from newer ones."""

    SALT = "salt"
    """Each version has its own name in the prefix cache; older entries age out."""
    RESET = "reset"
    """Each commit empties the prefix cache, and requests in flight compute theirs anew."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """See docs/vllm.md for the variables."""

    socket: Path
    pool: str = "default"
    pod: str = "pod-0"
    token_file: Path | None = None
    checkpoint: Path | None = None
    """The node's checkpoint, if vLLM's `--model` is another path to it."""
    kv: KvPolicy = KvPolicy.SALT
    plain_linear: bool = True
    """On the CPU: keep linear weights as they were loaded instead of packing them."""
    sweep_interval_s: float = 600.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Rejected, naming the variable, for a value that cannot be used."""

        def path(name: str) -> Path | None:
            return Path(environ[name]) if environ.get(name) else None

        socket = Path(environ["SYNCLINE_ARM_SOCKET"])
        try:
            check_socket_path(socket)
        except ArgumentTypeError as error:
            raise Rejected(f"SYNCLINE_ARM_SOCKET: {error}") from None
        try:
            kv = KvPolicy(environ.get("SYNCLINE_VLLM_KV") or "salt")
        except ValueError:
            raise Rejected(f"SYNCLINE_VLLM_KV={environ['SYNCLINE_VLLM_KV']} is neither salt nor reset") from None
        linear = environ.get("SYNCLINE_VLLM_CPU_LINEAR") or "plain"
        if linear not in ("plain", "packed"):
            raise Rejected(f"SYNCLINE_VLLM_CPU_LINEAR={linear} is neither plain nor packed")
        try:
            interval = seconds(environ.get("SYNCLINE_SWEEP_INTERVAL") or "600")
        except ArgumentTypeError as error:
            raise Rejected(f"SYNCLINE_SWEEP_INTERVAL: {error}") from None
        return cls(
            socket=socket,
            pool=environ.get("SYNCLINE_POOL") or "default",
            pod=environ.get("SYNCLINE_POD") or environ.get("HOSTNAME") or "pod-0",
            token_file=path("SYNCLINE_ARM_TOKEN_FILE"),
            checkpoint=path("SYNCLINE_CHECKPOINT"),
            kv=kv,
            plain_linear=linear == "plain",
            sweep_interval_s=interval,
        )
