"""Where figures go besides the screen: the table as it was printed, and all samples as JSON.

Only a run of the default size is named like the results that the documents quote: another says in its name how it differs.
"""

from __future__ import annotations

import json
import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Collection
from datetime import date
from pathlib import Path
from typing import Any

from bench.machine import describe, kind

FOLDER = Path(__file__).parent / "results"


def variant(parser: ArgumentParser, given: Namespace, *, beside: Collection[str] = ()) -> str:
    """What tells a run from one of the default size, for `save`; options `beside` change no figure. Empty for a default one."""
    words = [
        f"{name}-{value}"
        for name, value in sorted(vars(given).items())
        if name not in beside and value != parser.get_default(name)
    ]
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower()).strip("-")


def save(name: str, table: str, samples: Any, *, unlike: str = "", folder: Path = FOLDER) -> None:
    """Print the table and the machine's load, and keep both with the machine and the samples, named by date, kind of machine and how the
    run was `unlike` the default one."""
    table += f"\n\nload average of the last five minutes when done: {os.getloadavg()[1]:.1f}"
    print(table, flush=True)
    stem = "-".join([date.today().isoformat(), kind(), name, *([unlike] if unlike else [])])
    folder.mkdir(exist_ok=True)
    (folder / f"{stem}.txt").write_text(f"{describe()}\n\n{table}\n", encoding="utf-8")
    raw = {"machine": describe().splitlines(), "samples": samples}
    (folder / f"{stem}.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
