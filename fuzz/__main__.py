"""`python -m fuzz TARGET [libFuzzer arguments]`: run a target under atheris, from its corpus."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# atheris is installed by `make fuzz` alone

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["syncline"]):
    import fuzz.uncompiled  # noqa: F401 before the loops are imported
    from fuzz.targets import TARGETS


def main() -> None:
    """Fuzz until told otherwise."""
    name, *arguments = sys.argv[1:] or ["", ""]
    if name not in TARGETS:
        sys.exit(f"python -m fuzz TARGET [libFuzzer arguments]; TARGET is one of {', '.join(TARGETS)}")
    found = Path(".fuzz") / name
    found.mkdir(parents=True, exist_ok=True)
    corpus = Path(__file__).parent / "corpus" / name
    atheris.Setup(["fuzz", str(found), str(corpus), f"-artifact_prefix={found}/", *arguments], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
