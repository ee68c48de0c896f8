"""What the arm inside SGLang is told beside what every arm is (arm/settings.py), read once from the environment of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

import httpx

from syncline.errors import Rejected
from syncline_agent.arm.settings import ArmSettings, choice, path


class KvPolicy(StrEnum):
    """What keeps keys and values of older weights away from newer ones."""

    FLUSH = "flush"
    """A commit takes running requests back into the queue and empties the cache; theirs is computed anew."""
    KEYED = "keyed"
    """Every request carries an `extra_key` that a commit changes, as the gateway gives it: running requests stand in place, and
    nothing is flushed."""


@dataclass(frozen=True, slots=True)
class SglangSettings:
    """See docs/engines.md for the variables."""

    arm: ArmSettings
    url: str
    """The engine's own HTTP server."""
    key_file: Path | None = None
    """The engine's admin key."""
    kv: KvPolicy = KvPolicy.FLUSH

    @property
    def checkpoint(self) -> Path:
        """The node's checkpoint, which the engine was started on."""
        return self.arm.checkpoint or self.arm.socket.parent / "checkpoint"

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Rejected, naming the variable, for a value that cannot be used."""
        url = environ.get("SYNCLINE_ENGINE_URL") or "http://127.0.0.1:30000"
        try:
            usable = httpx.URL(url).scheme in ("http", "https")
        except httpx.InvalidURL:
            usable = False
        if not usable:
            raise Rejected(f"SYNCLINE_ENGINE_URL={url} is not http://host:port")
        return cls(
            arm=ArmSettings.from_env(environ),
            url=url,
            key_file=path(environ, "SYNCLINE_ENGINE_KEY_FILE"),
            kv=choice(environ, "SYNCLINE_SGLANG_KV", KvPolicy.FLUSH),
        )
