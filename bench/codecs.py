"""Bits a change: what `syncline bench codec` prints, with a larger synthetic model. `make picture` draws the output of this."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO

from bench.results import save, variant

from syncline_cli.bench.codec import SHARES, measured
from syncline_cli.output import Output


def main(arguments: Sequence[str] = ()) -> None:
    """Print and save every table."""
    parser = argparse.ArgumentParser(prog="python -m bench codecs", description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 26, help="of the synthetic model")
    given = parser.parse_args(arguments)
    with redirect_stdout(StringIO()) as text:
        output = Output(as_json=False)
        tables, checks = measured(None, SHARES, given.elements, output)
        for table in tables:
            table.show(output)
    trimmed = [line.rstrip() for line in text.getvalue().splitlines()]
    lines = [*trimmed, *(check.line for check in checks)]
    save("codecs", "\n".join(lines), {table.key: table.document() for table in tables}, unlike=variant(parser, given))
