"""What the demo shows: one line a step as it happens, and the table at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from syncline.wire.records import Statistics
from syncline_cli.output import Output, size

HEADER = (
    f"{'step':>4} {'ver':>4} {'reward':>7} {'changed':>8} {'payload':>9} {'of full':>8} {'bits/chg':>8} "
    f"{'sync':>7} {'pause':>8} {'lag':>5} {'logp diff':>9}"
)


@dataclass(slots=True)
class Row:
    """A step: what the trainer saw, what was published, when it was served everywhere."""

    step: int
    reward: float
    changed_share: float
    difference: float
    lag: float
    mixed: int
    written: float
    version: int | None = None
    statistics: Statistics | None = None
    sync_seconds: float | None = None
    """From the checkpoint's completion to the slower engine's serving it."""
    pause_seconds: float | None = None


def line(row: Row) -> str:
    """A step in one line."""
    stats = row.statistics
    payload, share, bits = "-", "-", "-"
    if stats is not None and stats.changed_units:
        payload = size(stats.payload_bytes)
        share = f"1/{stats.full_bytes / stats.payload_bytes:.0f}"
        bits = f"{8 * stats.payload_bytes / stats.changed_units:.2f}"
    sync = "-" if row.sync_seconds is None else f"{row.sync_seconds:.2f} s"
    pause = "-" if row.pause_seconds is None else f"{1000 * row.pause_seconds:.2f} ms"
    return (
        f"{row.step:>4} {row.version or '-':>4} {row.reward:>7.3f} {100 * row.changed_share:>6.2f} % {payload:>9} {share:>8} {bits:>8} "
        f"{sync:>7} {pause:>8} {row.lag:>5.2f} {row.difference:>9.1e}"
    )


def fifths(rows: Sequence[Row]) -> tuple[float, float]:
    """Mean reward of the first and of the last fifth of the steps."""
    part = max(1, len(rows) // 5)
    return sum(r.reward for r in rows[:part]) / part, sum(r.reward for r in rows[-part:]) / part


def summary(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The closing table."""
    published = [r for r in rows if r.statistics is not None]
    changed = sum(r.statistics.changed_units for r in published if r.statistics)
    payload = sum(r.statistics.payload_bytes for r in published if r.statistics)
    full = sum(r.statistics.full_bytes for r in published if r.statistics)
    syncs = sorted(r.sync_seconds for r in rows if r.sync_seconds is not None)
    pauses = sorted(r.pause_seconds for r in rows if r.pause_seconds is not None)
    first, last = fifths(rows)
    return [
        ("optimizer steps", str(len(rows))),
        ("mean reward, first fifth -> last fifth", f"{first:.3f} -> {last:.3f}"),
        ("changed elements a step", f"{100 * sum(r.changed_share for r in rows) / len(rows):.2f} %"),
        ("payload of all steps", f"{size(payload)}, 1/{full / max(1, payload):.0f} of whole checkpoints"),
        ("bits a changed element", f"{8 * payload / max(1, changed):.2f}"),
        ("checkpoint written -> served by both", f"median {_median(syncs):.2f} s" if syncs else "-"),
        (
            "pause of an engine",
            f"median {1000 * _median(pauses):.2f} ms, worst {1000 * pauses[-1]:.2f} ms" if pauses else "-",
        ),
        ("versions behind the trainer, mean of tokens", f"{sum(r.lag for r in rows) / len(rows):.2f}"),
        ("answers that crossed a commit", str(sum(r.mixed for r in rows))),
        ("largest log-probability difference", f"{max(r.difference for r in rows):.1e}"),
    ]


def show_proof(output: Output, digests: Mapping[str, Any]) -> None:
    """The digests that must all be one."""
    output.table(["digest of", "value"], [[k, str(v)] for k, v in digests.items()], title="Proof")


def _median(values: Sequence[float]) -> float:
    return values[len(values) // 2]
