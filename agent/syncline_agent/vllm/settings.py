"""What the arm inside vLLM is told beside what every arm is (arm/settings.py), read once from the environment of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from syncline_agent.arm.settings import ArmSettings, choice


class KvPolicy(StrEnum):
    """What keeps keys and values of older weights away from newer ones."""

    SALT = "salt"
    """Each version has its own name in the prefix cache; older entries age out."""
    SESSIONS = "sessions"
    """The same, but what a gateway names as a session's keeps its name across versions."""
    RESET = "reset"
    """Each commit empties the prefix cache, and requests in flight compute theirs anew."""


class CpuLinear(StrEnum):
    """What becomes of linear weights on the CPU."""

    PLAIN = "plain"
    """They stay as they were loaded."""
    PACKED = "packed"
    """vLLM packs them: faster, and not to be changed in place."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """See docs/vllm.md for the variables."""

    arm: ArmSettings
    kv: KvPolicy = KvPolicy.SALT
    cpu_linear: CpuLinear = CpuLinear.PLAIN

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Rejected, naming the variable, for a value that cannot be used."""
        return cls(
            arm=ArmSettings.from_env(environ),
            kv=choice(environ, "SYNCLINE_VLLM_KV", KvPolicy.SALT),
            cpu_linear=choice(environ, "SYNCLINE_VLLM_CPU_LINEAR", CpuLinear.PLAIN),
        )
