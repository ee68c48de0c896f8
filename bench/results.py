"""Where figures go besides the screen: the table as it was printed, and all samples as JSON."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from bench.machine import describe, kind

FOLDER = Path(__file__).parent / "results"


def save(name: str, table: str, samples: Any) -> None:
    """Print the table, and keep it with its machine and its samples under `bench/results/`, named by date and kind of machine."""
    print(table, flush=True)
    stem = f"{date.today().isoformat()}-{kind()}-{name}"
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{stem}.txt").write_text(f"{describe()}\n\n{table}\n", encoding="utf-8")
    raw = {"machine": describe().splitlines(), "samples": samples}
    (FOLDER / f"{stem}.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
