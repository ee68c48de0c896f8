"""How every command speaks: tables for people, one JSON document for machines, one line for an error.

Results go to standard output, everything else to standard error. Exit codes are part of the interface (docs/cli.md).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from syncline import errors

EXIT_CODES: tuple[tuple[type[errors.SynclineError], int], ...] = (
    (errors.Retryable, 3),
    (errors.Corrupt, 4),
    (errors.ChainBroken, 5),
    (errors.Fenced, 6),
    (errors.EngineUncertain, 7),
    (errors.Rejected, 8),
)
"""0 is success, 1 an unexpected failure, 2 a wrong command line, 9 a check that found a difference."""
EXIT_DIFFERENT = 9
PIPE_WIDTH = 160
"""Columns of a table that no terminal shows: wide enough that digests and names stay whole."""


def exit_code(error: errors.SynclineError) -> int:
    """The documented exit code of an error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)


class Output:
    """Where one command's results go."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        self.out = Console(file=sys.stdout, highlight=False, width=width)
        self.err = Console(file=sys.stderr, highlight=False, soft_wrap=True)

    def result(self, document: dict[str, Any] | list[Any]) -> None:
        """The JSON document of `--json`; nothing otherwise."""
        if self.as_json:
            sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")

    def line(self, text: str) -> None:
        """A line for people."""
        if not self.as_json:
            self.out.print(text, markup=False)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
        """A table for people; the last column takes the rest of the line."""
        if self.as_json:
            return
        table = Table(title=title, box=None, pad_edge=False, header_style="bold")
        for name in columns:
            right = rows and all(
                row[columns.index(name)][:1].isdigit() or row[columns.index(name)] in ("", "-") for row in rows
            )
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self.out.print(table)

    def note(self, text: str) -> None:
        """A remark on standard error."""
        self.err.print(text, markup=False)

    def error(self, error: BaseException) -> None:
        """What went wrong, as one line or one JSON document."""
        if self.as_json:
            sys.stdout.write(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}) + "\n")
        self.err.print(f"error: {error}", markup=False, style="red")

    @contextmanager
    def progress(self, what: str) -> Iterator[Progress]:
        """A bar of bytes on standard error; silent when that is no terminal."""
        bar = Progress(
            TextColumn(what),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self.err,
            disable=not sys.stderr.isatty(),
        )
        with bar:
            yield bar


def size(count: int) -> str:
    """Bytes for people: three significant digits, decimal units as networks have them."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def age(seconds: float) -> str:
    """A duration for people."""
    seconds = max(0.0, seconds)
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
