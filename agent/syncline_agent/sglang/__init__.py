"""The arm inside SGLang, on every tensor-parallel rank, in the scheduler's own process.

Two doors lead in: SGLang's plugin framework (`register`, an entry point of `sglang.srt.plugins`), which arms a rank while its
model is loaded, and a custom weight loader (`loader.arm`), which arms a server that runs. Off unless SYNCLINE_ARM_SOCKET is set;
what keeps a rank from being armed is told to the agent, and SGLang serves on. Importing it loads nothing of SGLang, torch or numba.
"""

from __future__ import annotations

import os


def register() -> None:
    """The entry point of `sglang.srt.plugins`; may be called any number of times in a process."""
    if os.environ.get("SYNCLINE_ARM_SOCKET"):
        from syncline_agent.sglang.installing import install

        install(os.environ)
