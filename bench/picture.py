"""Draws docs/bits-a-change.png from the newest output of `python -m bench codecs`: nothing is measured here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from bench.results import FOLDER

matplotlib.use("Agg")
from matplotlib import pyplot as plt

PICTURE = Path(__file__).parents[1] / "docs" / "bits-a-change.png"
OURS, FIELD, CODECS, BOUNDS, NOBODY = "#c1272d", "#5b6770", "#7a9cc6", "#2b2b2b", "#b08d57"
SMALL, NORMAL = 8.5, 10.0
MOST = 200
"""Bits a change at the top."""

EXPLAINED = (
    "Lines: synthetic Adam-like steps of {:.0f} M elements; dots: sixteen real GRPO steps of {:.1f} M.\n"
    "Red and blue: Syncline's codecs, all chunk bytes; grey: the field's formats; ochre: a format in use nowhere."
)

LINES: Sequence[tuple[str, str, str, str, float]] = (
    # figure, what it is called, colour, line style, factor by which its name is moved
    ("XOR mask, LZ4", "XOR mask + LZ4", FIELD, "-", 0.96),
    ("int32 index + value (TRL)", "int32 index + value (TRL)", FIELD, "-", 1.02),
    ("xor-lz4", "xor-lz4", CODECS, "-", 0.92),
    ("gap16 + value, zstd-1 (grail, PULSE)", "gap16 + value, zstd-1 (grail, PULSE)", FIELD, "-", 1.14),
    ("XOR mask, zstd-1 (Stitch, miles, slime)", "XOR mask, zstd-1 (Stitch, miles, slime)", FIELD, "-", 1.12),
    ("sparse", "sparse", CODECS, "-", 1.0),
    ("xor-zstd", "xor-zstd", CODECS, "-", 0.94),
    ("gap16 + XOR, zstd-1 (in use nowhere)", "gap16 + XOR, zstd-1 (in use nowhere)", NOBODY, "--", 1.0),
    ("bound: position + XOR", "bound of any position + XOR coder", BOUNDS, ":", 1.0),
    ("context", "context", OURS, "-", 1.06),
    ("bound: (context, step)", "bound with the same contexts", BOUNDS, ":", 0.94),
)


def newest() -> tuple[Path, dict[str, Any]]:
    """The output to draw."""
    found = sorted(FOLDER.glob("*-codecs.json"))
    if not found:
        raise SystemExit(f"no output of `python -m bench codecs` in {FOLDER.name}; run that first")
    return found[-1], json.loads(found[-1].read_text(encoding="utf-8"))["samples"]


def main(arguments: Sequence[str] = ()) -> None:
    """Write the picture."""
    argparse.ArgumentParser(prog="python -m bench picture", description=__doc__).parse_args(arguments)
    source, data = newest()
    steps = [step for column in data["adam"].values() for step in column]
    real = data["grpo-a"]["mean of 16"]
    figure, axes = plt.subplots(figsize=(9.6, 6.0), dpi=130)
    shares = [100 * step["share"] for step in steps]
    for name, called, colour, style, moved in LINES:
        bits = [step["bits"][name] / step["changed"] for step in steps]
        ours = name == "context"
        axes.plot(shares, bits, style, color=colour, linewidth=2.6 if ours else 1.3, zorder=3 if ours else 2)
        axes.text(
            shares[-1] * 1.06, bits[-1] * moved, called, color=colour, va="center",
            fontsize=NORMAL if ours else SMALL, fontweight="bold" if ours else "normal",
        )  # fmt: skip
        axes.scatter(
            [100 * step["share"] for step in real], [step["bits"][name] / step["changed"] for step in real],
            s=9, color=colour, alpha=0.5, linewidths=0, zorder=4,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(shares[0] * 0.93, shares[-1] * 1.03)
    axes.set_ylim(5, MOST)
    axes.set_xticks([0.05, 0.1, 0.2, 0.5, 1, 2, 5], ["0.05 %", "0.1 %", "0.2 %", "0.5 %", "1 %", "2 %", "5 %"])
    axes.set_yticks(
        [5, 6, 8, 10, 15, 20, 30, 50, 100, 200], ["5", "6", "8", "10", "15", "20", "30", "50", "100", "200"]
    )
    axes.minorticks_off()
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("BF16 elements that a step changes")
    axes.set_ylabel("bits a changed element, position and value")
    axes.set_title("What a step costs on the wire", loc="left", fontsize=13, fontweight="bold", pad=34)
    explained = EXPLAINED.format(*(max(step["units"] for step in some) / 1e6 for some in (steps, real)))
    axes.text(0, 1.02, explained, transform=axes.transAxes, fontsize=SMALL, color=FIELD)
    figure.subplots_adjust(left=0.075, right=0.73, top=0.88, bottom=0.1)
    figure.savefig(PICTURE, metadata={"Software": None}, pil_kwargs={"optimize": True})
    print(f"{PICTURE.name} drawn from {source.name}")
