"""Bits a change: what `syncline bench codec` prints, with a larger synthetic model. `make picture` draws the output of this."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO

from bench.results import save, variant

from syncline_cli.bench.codec import SHARES, Data, measured
from syncline_cli.output import Output


def main(arguments: Sequence[str] = ()) -> None:
    """Print and save every table."""
    parser = argparse.ArgumentParser(prog="python -m bench codecs", description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 26, help="of the synthetic model")
    parser.add_argument(
        "--data", nargs="+", choices=[str(one) for one in Data], help="some of what is encoded; else all that is here"
    )
    given = parser.parse_args(arguments)
    with redirect_stdout(StringIO()) as text:
        output = Output(as_json=False)
        tables, checks = measured(given.data and [Data(name) for name in given.data], SHARES, given.elements, output)
        for table in tables:
            table.show(output)
    trimmed = [line.rstrip() for line in text.getvalue().splitlines()]
    lines = [*trimmed, *(check.line for check in checks)]
    save("codecs", "\n".join(lines), {table.key: table.document() for table in tables}, unlike=variant(parser, given))
