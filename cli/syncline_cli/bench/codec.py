"""`syncline bench codec`: bits a change of every codec, with the field's formats and the entropy bounds beside them.

Grpo-a's steps are real and only a checkout has them; the rest is made from seeds and runs anywhere. It fails (exit code 9) when the
codec does not keep on grpo-a what it promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import pairwise
from typing import Annotated

import typer

from syncline.errors import NotFound
from syncline_cli.bench import bounds
from syncline_cli.bench.figures import Figures, measure
from syncline_cli.bench.quantized import Quantization, quantized_view
from syncline_cli.bench.report import Check, Column, Table, checks
from syncline_cli.bench.synthetic import AdamStep, fp32_view, learning_rate
from syncline_cli.bench.views import View, float32, grpo_a_views
from syncline_cli.output import EXIT_DIFFERENT, Output

SHARES = (0.0005, 0.001, 0.003, 0.01, 0.02, 0.05)
RATE_SHARE = 0.01
"""Of the BF16 view: names the rate; what a step of that rate changes of other views is told."""
FASTER = 8
"""A second rate for other views: 0.085 % of NVFP4's bytes."""

app = typer.Typer(no_args_is_help=True, help="Measure what the codecs reach.")


class Data(StrEnum):
    """What is encoded."""

    GRPO_A = "grpo-a"
    ADAM = "adam"
    ADAM_FP32 = "adam-fp32"
    GRPO_A_QUANTIZED = "grpo-a-quantized"
    ADAM_QUANTIZED = "adam-quantized"


REAL = (Data.GRPO_A, Data.GRPO_A_QUANTIZED)


@app.callback()
def bench() -> None:
    """Measure what the codecs reach."""


@app.command()
def codec(
    data: Annotated[
        list[Data] | None,
        typer.Option("--data", help="What to encode, once or more often; default: everything that is here."),
    ] = None,
    share: Annotated[
        list[float] | None,
        typer.Option("--share", min=1e-6, max=0.5, help="Of the BF16 elements that a synthetic step changes."),
    ] = None,
    elements: Annotated[
        int, typer.Option("--elements", min=1 << 13, help="Of the synthetic model; 20 bytes of memory each.")
    ] = 1 << 24,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Bits a change of every codec, all chunk bytes counted, beside the field's formats and entropy bounds."""
    output = Output(as_json=as_json)
    tables, promises = measured(data, share or SHARES, elements, output)
    for table in tables:
        table.show(output)
    for promise in promises:
        output.line(promise.line)
    output.result(
        {
            "data": {table.key: table.document() for table in tables},
            "checks": [{"what": p.what, "measured": p.measured, "limit": p.limit, "kept": p.kept} for p in promises],
        }
    )
    if not all(promise.kept for promise in promises):
        raise typer.Exit(EXIT_DIFFERENT)


def measured(
    data: list[Data] | None, shares: tuple[float, ...] | list[float], elements: int, output: Output
) -> tuple[list[Table], list[Check]]:
    """The tables, and the promises where grpo-a is among them. NotFound where it was asked for and is not here."""
    wanted = list(Data) if data is None else list(dict.fromkeys(data))
    real: list[View] = []
    if set(REAL) & set(wanted):
        try:
            real = list(grpo_a_views())
        except NotFound as error:
            if data is not None:
                raise
            output.note(f"left out: {error}")
            wanted = [one for one in wanted if one not in REAL]
    makers: dict[Data, Callable[[], Table]] = {
        Data.GRPO_A: lambda: _grpo_a(real, output),
        Data.ADAM: lambda: _adam(shares, elements, output),
        Data.ADAM_FP32: lambda: _adam_fp32(elements, output),
        Data.GRPO_A_QUANTIZED: lambda: _grpo_a_quantized(real, output),
        Data.ADAM_QUANTIZED: lambda: _adam_quantized(elements, output),
    }
    tables = [makers[one]() for one in wanted]
    promises = [check for table in tables if table.key == Data.GRPO_A for check in checks(table.columns[0].steps)]
    return tables, promises


def _grpo_a(views: list[View], output: Output) -> Table:
    history = bounds.History(views[0].table.units)
    steps: list[Figures] = []
    with output.count("steps of grpo-a", len(views) - 1) as done:
        for old, new in pairwise(views):
            steps.append(measure(old, new, history=history))
            done()
    title = "grpo-a: sixteen real GRPO steps of 5.6 M BF16 elements"
    return Table(Data.GRPO_A, title, [Column("mean of 16", steps), Column("step 16", steps[-1:])])


def _adam(shares: tuple[float, ...] | list[float], elements: int, output: Output) -> Table:
    step = AdamStep.seeded(elements)
    columns: list[Column] = []
    with output.count("synthetic steps", len(shares)) as done:
        for share in shares:
            columns.append(Column(f"{100 * share:g} %", [measure(*step.views(learning_rate(share)))]))
            done()
    title = f"adam: normal masters moved by normal updates, {step.elements / 1e6:.1f} M BF16 elements, by share changed"
    return Table(Data.ADAM, title, columns)


def _adam_fp32(elements: int, output: Output) -> Table:
    step = AdamStep.seeded(elements)
    rate = learning_rate(RATE_SHARE)
    columns: list[Column] = []
    with output.count("synthetic steps of FP32", 2) as done:
        for times in (1, FASTER):
            views = fp32_view(step.masters), fp32_view(step.after(times * rate))
            columns.append(Column("fp32" if times == 1 else f"fp32, {times}x", [measure(*views)]))
            done()
    title = (
        f"adam-fp32: the masters themselves, {step.elements / 1e6:.1f} M FP32 elements, at the rate that changes "
        f"{RATE_SHARE:.0%} of BF16, and at {FASTER} times that"
    )
    return Table(Data.ADAM_FP32, title, columns)


def _grpo_a_quantized(views: list[View], output: Output) -> Table:
    columns: list[Column] = []
    with output.count("quantized views of grpo-a", len(Quantization)) as done:
        for how in Quantization:
            steps = [measure(old, new) for old, new in pairwise(_quantized(views, how))]
            columns.append(Column(how.value, [Figures.together(steps)]))
            done()
    title = "grpo-a-quantized: from grpo-a's BF16 view (its masters were not kept), 16 steps as one"
    return Table(Data.GRPO_A_QUANTIZED, title, columns)


def _quantized(views: list[View], how: Quantization) -> Iterator[View]:
    for view in views:
        specs = zip(view.table.tensors, view.units, strict=True)
        yield quantized_view({spec.name: float32(units).reshape(spec.shape) for spec, units in specs}, how)


def _adam_quantized(elements: int, output: Output) -> Table:
    step = AdamStep.seeded(elements)
    rate = learning_rate(RATE_SHARE)
    columns: list[Column] = []
    with output.count("quantized synthetic steps", 2 * len(Quantization)) as done:
        for how in Quantization:
            old = quantized_view(step.masters, how)
            for times in (1, FASTER):
                new = quantized_view(step.after(times * rate), how)
                columns.append(Column(how.value if times == 1 else f"{how.value}, {times}x", [measure(old, new)]))
                done()
    title = (
        f"adam-quantized: FP32 masters, {step.elements / 1e6:.1f} M elements, at the rate that changes "
        f"{RATE_SHARE:.0%} of BF16, and at {FASTER} times that"
    )
    return Table(Data.ADAM_QUANTIZED, title, columns)
