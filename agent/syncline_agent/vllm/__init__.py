"""The arm inside vLLM: a general plugin that vLLM calls in every process it starts.

Off unless SYNCLINE_ARM_SOCKET is set. Where vLLM lacks a hook that the arm needs, or a setting cannot be used, it says so
in one line, and vLLM serves on without Syncline. Importing it loads nothing of vLLM, torch or numba.
"""

from __future__ import annotations

import os


def register() -> None:
    """The entry point of `vllm.general_plugins`; may be called any number of times in a process."""
    if os.environ.get("SYNCLINE_ARM_SOCKET"):
        from syncline_agent.vllm.installing import install

        install(os.environ)
