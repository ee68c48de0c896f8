"""What the arm inside SGLang is told, read once from the environment of the engine."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

import httpx

from syncline.errors import Rejected
from syncline_agent.flags import check_socket_path, seconds


class KvPolicy(StrEnum):
    """What keeps keys and values of older weights away from newer ones."""

    FLUSH = "flush"
    """A commit takes running requests back into the queue and empties the cache; theirs is computed anew."""
    KEYED = "keyed"
    """Every request carries an `extra_key` of its version (keys.py): running requests stand in place, nothing is flushed."""


@dataclass(frozen=True, slots=True)
class SglangSettings:
    """See docs/engines.md for the variables."""

    socket: Path
    checkpoint: Path
    """The node's checkpoint, which the engine was started on."""
    url: str
    """The engine's own HTTP server."""
    pool: str = "default"
    pod: str = "pod-0"
    token_file: Path | None = None
    key_file: Path | None = None
    """The engine's admin key."""
    kv: KvPolicy = KvPolicy.FLUSH
    sweep_interval_s: float = 600.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Rejected, naming the variable, for a value that cannot be used."""

        def path(name: str) -> Path | None:
            return Path(environ[name]) if environ.get(name) else None

        try:
            socket = Path(environ["SYNCLINE_ARM_SOCKET"])
            check_socket_path(socket)
        except KeyError:
            raise Rejected("SYNCLINE_ARM_SOCKET is not set; it names the agent's arm.sock") from None
        except ArgumentTypeError as error:
            raise Rejected(f"SYNCLINE_ARM_SOCKET: {error}") from None
        try:
            kv = KvPolicy(environ.get("SYNCLINE_SGLANG_KV") or "flush")
        except ValueError:
            raise Rejected(f"SYNCLINE_SGLANG_KV={environ['SYNCLINE_SGLANG_KV']} is neither flush nor keyed") from None
        try:
            interval = seconds(environ.get("SYNCLINE_SWEEP_INTERVAL") or "600")
        except ArgumentTypeError as error:
            raise Rejected(f"SYNCLINE_SWEEP_INTERVAL: {error}") from None
        url = environ.get("SYNCLINE_ENGINE_URL") or "http://127.0.0.1:30000"
        try:
            usable = httpx.URL(url).scheme in ("http", "https")
        except httpx.InvalidURL:
            usable = False
        if not usable:
            raise Rejected(f"SYNCLINE_ENGINE_URL={url} is not http://host:port")
        return cls(
            socket=socket,
            checkpoint=path("SYNCLINE_CHECKPOINT") or socket.parent / "checkpoint",
            url=url,
            pool=environ.get("SYNCLINE_POOL") or "default",
            pod=environ.get("SYNCLINE_POD") or environ.get("HOSTNAME") or "pod-0",
            token_file=path("SYNCLINE_ARM_TOKEN_FILE"),
            key_file=path("SYNCLINE_ENGINE_KEY_FILE"),
            kv=kv,
            sweep_interval_s=interval,
        )
