"""How every command speaks: tables for people, one JSON document for machines, one line for an error.

Results go to standard output, everything else to standard error. Exit codes are part of the interface (docs/cli.md).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

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
EXIT_FAULT = 1
EXIT_DIFFERENT = 9
PIPE_WIDTH = 160
"""Columns of a table that no terminal shows: wide enough that digests and names stay whole."""
LAST_COLUMN_LEAST = 16
"""A terminal too narrow for a table wraps its lines; the last column is never squeezed below this."""


def exit_code(error: errors.SynclineError) -> int:
    """The documented exit code of an error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), EXIT_FAULT)


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
            sys.stdout.flush()

    def line(self, text: str) -> None:
        """A line for people."""
        if not self.as_json:
            self.out.print(Text(printable(text)), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
        """A table for people; the last column takes the rest of the line. Nothing for no rows."""
        if self.as_json or not rows:
            return
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for at, name in enumerate(columns):
            right = all(row[at][:1].isdigit() or row[at] in ("", "-") for row in rows)
            last = at == len(columns) - 1
            table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=not last)
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        natural = sum(max(len(name), *(len(row[at]) for row in rows)) + 2 for at, name in enumerate(columns[:-1]))
        # The terminal wraps the lines of a table that is too wide for it: uglier than cells cut short, but nothing is lost.
        width = max(self.out.width, natural + LAST_COLUMN_LEAST)
        Console(file=sys.stdout, highlight=False, width=width).print(table, crop=False)

    def note(self, text: str) -> None:
        """A remark on standard error."""
        self.err.print(Text(printable(text)))

    def error(self, error: BaseException, advice: str = "") -> None:
        """What went wrong, as one line; with `--json` also as the JSON document."""
        text = f"{error}; {advice}" if advice else str(error)
        self.result({"error": {"type": type(error).__name__, "message": text}})
        self.err.print(Text(printable(f"error: {text}"), style="red"))

    @contextmanager
    def transfer(self, what: str) -> Iterator[Callable[[str, int, int], None]]:
        """A bar of bytes on standard error, moved by the library's progress calls; silent when that is no terminal."""
        with self._bar(DownloadColumn(binary_units=True), TransferSpeedColumn()) as bar:
            task = bar.add_task(what, total=None)

            def progress(phase: str, done: int, total: int) -> None:
                # Only fetching counts bytes; the other phases name the version that they are at.
                counted = (done, total) if phase == "fetch" else (None, None)
                bar.update(task, completed=counted[0], total=counted[1], description=f"{what}: {phase}")

            yield progress

    @contextmanager
    def count(self, what: str, total: int) -> Iterator[Callable[[], None]]:
        """A bar of `total` things on standard error; what is yielded moves it by one."""
        with self._bar(MofNCompleteColumn()) as bar:
            task = bar.add_task(what, total=total)
            yield lambda: bar.advance(task)

    def _bar(self, *columns: ProgressColumn) -> Progress:
        return Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *columns,
            TimeRemainingColumn(),
            console=self.err,
            transient=True,
            disable=not sys.stderr.isatty(),
        )


def printable(text: str) -> str:
    """Text of a stranger (labels, reasons, names) without what would steer a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text.replace("\n", " "))


def size(count: int) -> str:
    """Bytes for people: three significant digits, decimal units as networks have them."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def counted(number: int, thing: str) -> str:
    """A number of things in words."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def age(seconds: float) -> str:
    """A duration for people."""
    seconds = max(0.0, seconds)
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
