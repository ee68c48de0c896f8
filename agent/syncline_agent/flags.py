"""Types of command-line flags: what cannot be used is refused while arguments are read, by the flag's name.

For the agent and the reference engine. Raises what argparse turns into a message and status 2; knows no settings.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path

PORT_MAX = 65_535
SOCKET_PATH_MAX = 107
"""Bytes of a Unix socket's path: the kernel's 108 with the zero that ends it."""


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """An integer from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least or (most is not None and value > most):
            span = f"at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{value} is out of bounds; it is {span}")
        return value

    return parse


def port(text: str) -> int:
    """A TCP port; 0 takes a free one."""
    return whole(0, PORT_MAX)(text)


def seconds(text: str) -> float:
    """A span of time above nought."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} seconds cannot be waited; it is above 0")
    return value


def yes_or_no(text: str) -> bool:
    """A switch that has a variable in the environment, too."""
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither yes nor no")
    return text == "yes"


def socket_path(text: str) -> Path:
    """A path that a Unix socket can have."""
    check_socket_path(Path(text))
    return Path(text)


def check_socket_path(path: Path) -> None:
    """ArgumentTypeError when the path is too long for a Unix socket."""
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_MAX:
        raise argparse.ArgumentTypeError(
            f"{path} has {size} bytes, a Unix socket's path has at most {SOCKET_PATH_MAX}; take a shorter one"
        )
