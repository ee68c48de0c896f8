"""`python -m bench [name …] [--option …]`: run the named benchmarks, or all of them; options go to a single named one.

Each module of this folder with a `main` is one. Those that need a GPU, and the picture, run only when they are named.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from bench.machine import describe

NOT_BENCHMARKS = ("__main__", "machine", "model", "processes", "results")
ONLY_NAMED = ("picture", "gpu_")
"""Beginnings of names."""


def names() -> list[str]:
    """Every benchmark in this folder."""
    found = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(name for name in found if name not in NOT_BENCHMARKS)


def main() -> int:
    """Exit code: 0, or 2 when a name is unknown."""
    arguments = sys.argv[1:]
    named = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    everything = [name for name in names() if not name.startswith(ONLY_NAMED)]
    wanted, options = arguments[:named] or everything, arguments[named:]
    if options and named != 1:
        print("options are a single benchmark's; name it first", file=sys.stderr)
        return 2
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    print(describe())
    for name in wanted:
        print(f"\n== {name}", flush=True)
        import_module(f"bench.{name}").main(*([options] if options else []))
    return 0


if __name__ == "__main__":
    sys.exit(main())
