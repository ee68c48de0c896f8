"""`python -m bench [name …] [--option …]`: run the named benchmarks, or all of them; options go to a single named one, `--help` too.

Each module of this folder with a `main` is one. Those that need a GPU, and the picture, run only when they are named.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from bench.machine import describe

NOT_BENCHMARKS = ("__main__", "gpu", "gpu_sectors", "machine", "model", "processes", "results")
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
    if not named and {"-h", "--help"}.intersection(options):
        print(f"{(__doc__ or '').partition(chr(10))[0]}\nThere are: {', '.join(names())}")
        return 0
    if options and named != 1:
        print("options are a single benchmark's; name it first", file=sys.stderr)
        return 2
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    if not {"-h", "--help"}.intersection(options):
        print(describe())
    for name in wanted:
        print(f"\n== {name}", flush=True)
        _module(name).main(options)
    return 0


def _module(name: str) -> ModuleType:
    if not name.startswith("gpu_"):
        return import_module(f"bench.{name}")
    # On a GPU's machine, where nothing may be installed, they are run as plain scripts, and import each other as such.
    sys.path.insert(0, str(Path(__file__).parent))
    return import_module(name)


if __name__ == "__main__":
    sys.exit(main())
