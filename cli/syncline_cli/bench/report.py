"""What was measured as tables for people and as one document for machines; and whether the codec keeps its word on grpo-a."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from syncline_cli.bench.figures import BOUND, CHOSEN, Figures
from syncline_cli.output import Output

LAST_STEP_MOST, MEAN_MOST, BY_CONTEXT_LEAST = 6.60, 6.50, 0.95
"""What `context` promises on grpo-a: bits a change at step 16 and in the mean of all sixteen, and the share of changes it takes."""


@dataclass(frozen=True, slots=True)
class Column:
    """Steps that stand in one column; bits a change are the mean of theirs."""

    name: str
    steps: Sequence[Figures]

    @property
    def changed(self) -> int:
        return sum(step.changed for step in self.steps) // len(self.steps)

    def mean(self, values: Sequence[float]) -> float:
        """Of one value a step."""
        return sum(values) / len(self.steps)

    def cells(self, name: str) -> str:
        """Bits a change of a format, and how many times the bound that is; empty where it was not measured."""
        if any(name not in step.bits for step in self.steps):
            return ""
        bits = self.mean([step.a_change(name) for step in self.steps])
        ratio = self.mean([step.to_bound(name) for step in self.steps])
        return f"{bits:.2f} {ratio:.2f}x"


@dataclass(frozen=True, slots=True)
class Table:
    """One kind of data."""

    key: str
    title: str
    columns: Sequence[Column]

    def show(self, output: Output) -> None:
        """Bits a change of every format, with what else tells how to read them."""

        def row(name: str, cell: Any) -> list[str]:
            return [name, *(cell(column) for column in self.columns)]

        def part(name: str) -> list[str]:
            return row(
                f"  of it {name}", lambda c: f"{c.mean([8 * s.spent[name] / max(s.changed, 1) for s in c.steps]):.2f}"
            )

        first = self.columns[0].steps[0]
        rows = [
            row("units changed", lambda c: f"{c.mean([s.share for s in c.steps]):.3%}"),
            row("changes", lambda c: f"{c.changed:,}"),
        ]
        for name in dict.fromkeys(name for column in self.columns for name in column.steps[0].bits):
            rows.append(row(name, lambda c, name=name: c.cells(name)))
            if name == CHOSEN:
                rows += [part(spent) for spent in first.spent]
        rows += [
            row("changes sent by context", lambda c: f"{sum(s.by_context for s in c.steps) / max(sum(s.changed for s in c.steps), 1):.1%}"),
            row("manifest of a step, bytes beside the chunks", lambda c: f"{c.mean([s.manifest_bytes / s.steps for s in c.steps]):,.0f}"),
        ]  # fmt: skip
        output.table(["bits a change", *(column.name for column in self.columns)], rows, title=self.title)
        output.line(f"x: times the {BOUND}")
        output.line("")

    def document(self) -> dict[str, Any]:
        """Everything measured."""
        return {column.name: [{**asdict(s), "share": s.share} for s in column.steps] for column in self.columns}


@dataclass(frozen=True, slots=True)
class Check:
    """One promise."""

    what: str
    measured: float
    limit: float
    upward: bool
    """Whether more is better: the limit is then the least."""

    @property
    def kept(self) -> bool:
        return self.measured >= self.limit if self.upward else self.measured <= self.limit

    @property
    def line(self) -> str:
        bound = "at least" if self.upward else "at most"
        return f"{self.what}: {self.measured:.4g} ({bound} {self.limit:g}): {'met' if self.kept else 'MISSED'}"


def checks(steps: Sequence[Figures]) -> list[Check]:
    """Of the sixteen steps of grpo-a."""
    last = steps[-1].a_change(CHOSEN)
    mean = sum(step.a_change(CHOSEN) for step in steps) / len(steps)
    taken = sum(step.by_context for step in steps) / sum(step.changed for step in steps)
    return [
        Check("bits a change at step 16", last, LAST_STEP_MOST, upward=False),
        Check("bits a change, mean of 16 steps", mean, MEAN_MOST, upward=False),
        Check("share of changes sent by context", taken, BY_CONTEXT_LEAST, upward=True),
    ]
