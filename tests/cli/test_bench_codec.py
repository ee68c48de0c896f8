"""`syncline bench codec` on little data: what it prints, what it promises, and that it needs no checkout."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from syncline.delta import Delta, scatter, stage_tensor
from syncline.testing import grpo_a
from syncline.wire.chunk import parse
from syncline.wire.tiling import Tiling
from syncline_cli.bench import codec as command
from syncline_cli.bench.figures import (
    BOUND,
    BOUND_HISTORY,
    BOUND_SCALE,
    BOUND_XOR,
    CHOSEN,
    CODECS_SHOWN,
    CONTEXT,
    Encoded,
    Figures,
    measure,
)
from syncline_cli.bench.peers import PEERS
from syncline_cli.bench.quantized import Quantization, e4m3, quantized_view
from syncline_cli.bench.report import Column, Table, checks
from syncline_cli.bench.synthetic import AdamStep, learning_rate
from syncline_cli.bench.views import Tensor, View, float32, grpo_a_views
from syncline_cli.output import Output

Call = Callable[..., Any]
LITTLE = ["--elements", "262144", "--share", "0.02"]


@pytest.fixture(scope="module")
def two_steps() -> list[View]:
    views = grpo_a_views()
    return [next(views), next(views), next(views)]


@pytest.fixture
def no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpo_a, "FOLDER", tmp_path)


def test_a_synthetic_step_is_measured_in_every_format(syncline: Call) -> None:
    ended = syncline("bench", "codec", "--data", "adam", *LITTLE, "--json")
    assert 0 == ended.code, ended.err
    (step,) = ended.document["data"]["adam"]["2 %"]
    assert {*CODECS_SHOWN, *PEERS, BOUND, BOUND_XOR} == set(step["bits"])
    assert 0.02 == pytest.approx(step["share"], rel=0.1)
    bits = step["bits"]
    assert bits[BOUND] < bits[CONTEXT] < bits[BOUND_XOR] < bits["sparse"] < bits["int32 index + value (TRL)"]
    assert bits[CHOSEN] == 8 * sum(step["spent"].values())
    assert [] == ended.document["checks"]


def test_quantized_views_are_measured_at_both_rates(syncline: Call) -> None:
    ended = syncline("bench", "codec", "--data", "adam-quantized", *LITTLE, "--json")
    assert 0 == ended.code, ended.err
    columns = ended.document["data"]["adam-quantized"]
    assert {name for how in Quantization for name in (how.value, f"{how.value}, 8x")} == set(columns)
    for name, (step,) in columns.items():
        assert 0 < step["bits"][BOUND] < step["bits"][CONTEXT], name
        assert 0 < step["bits"][BOUND_SCALE] <= step["bits"][BOUND], name


def test_people_read_bits_and_how_far_from_the_bound_they_are(syncline: Call) -> None:
    ended = syncline("bench", "codec", "--data", "adam", *LITTLE)
    lines = {line.partition("  ")[0]: line.split()[-2:] for line in ended.out.splitlines() if line}
    assert "1.00x" == lines[BOUND][1]
    bits, ratio = float(lines[CONTEXT][0]), float(lines[CONTEXT][1].removesuffix("x"))
    assert bits / ratio == pytest.approx(float(lines[BOUND][0]), rel=0.01)


def test_without_a_checkout_the_real_steps_are_left_out_and_that_is_told(
    syncline: Call, no_checkout: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "Quantization", [Quantization.FP8])
    ended = syncline("bench", "codec", *LITTLE, "--json")
    assert (0, {"adam", "adam-fp32", "adam-quantized"}) == (ended.code, set(ended.document["data"]))
    (dense,) = ended.document["data"]["adam-fp32"]["fp32, 8x"]
    assert dense["changed"] > 0.9 * dense["units"]
    assert dense["by_context"] == dense["changed"]
    assert ended.err.startswith("left out: no base.pack.")


@pytest.mark.parametrize("data", ["grpo-a", "grpo-a-quantized"])
def test_real_steps_that_were_asked_for_and_are_not_here_end_with_8(
    syncline: Call, no_checkout: None, data: str
) -> None:
    ended = syncline("bench", "codec", "--data", data, "--json")
    assert (8, "NotFound") == (ended.code, ended.document["error"]["type"])


def test_a_promise_that_is_not_kept_ends_with_9(
    syncline: Call, monkeypatch: pytest.MonkeyPatch, two_steps: list[View]
) -> None:
    monkeypatch.setattr(command, "grpo_a_views", lambda: iter(two_steps))
    kept = syncline("bench", "codec", "--data", "grpo-a", "--json")
    assert (0, [True] * 3) == (kept.code, [check["kept"] for check in kept.document["checks"]])
    dense = [View(two_steps[0].table, [other(units) for units in two_steps[0].units]) for other in (same, redrawn)]
    monkeypatch.setattr(command, "grpo_a_views", lambda: iter(dense))
    broken = syncline("bench", "codec", "--data", "grpo-a")
    assert 9 == broken.code
    assert 3 == broken.out.count("MISSED")
    assert (
        "bits a change at step 16: 16" in broken.out
        and "share of changes sent by context: 0 (at least 0.95)" in broken.out
    )


def same(units: NDArray[np.uint16]) -> NDArray[np.uint16]:
    return units


def redrawn(units: NDArray[np.uint16]) -> NDArray[np.uint16]:
    return np.random.default_rng(0).integers(0, 1 << 16, units.size, np.uint16)


def test_several_steps_as_one_tell_the_manifest_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    step = Figures(10, 2, {CHOSEN: 8.0, BOUND: 4.0}, {"payloads": 1}, manifest_bytes=1000)
    Table("few", "few", [Column("sixteen", [Figures.together([step] * 16)])]).show(Output(as_json=False))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("manifest")]
    assert "1,000" == line.split()[-1]


def test_context_keeps_its_word_on_step_sixteen() -> None:
    *_, before, after = grpo_a_views()
    encoded = Encoded.between(before, after, codec=None)
    last = Figures(1, encoded.delta.statistics.changed_units, {CHOSEN: 8.0 * encoded.size_bytes})
    assert checks([last])[0].kept
    assert encoded.delta.statistics.changed_units == encoded.delta.statistics.codecs[CONTEXT]


def test_a_table_that_others_pay_for_is_taken_by_those_who_would_not_pay_for_it() -> None:
    before, after = (
        quantized_view(
            {
                spec.name: float32(units).reshape(spec.shape)
                for spec, units in zip(v.table.tensors, v.units, strict=True)
            },
            Quantization.NVFP4,
        )
        for v in islice(grpo_a_views(), 12, 14)  # in step 13 scales move, and half of the changes are of cheap tensors
    )
    chosen = Encoded.between(before, after, codec=None)
    assert chosen.size_bytes <= Encoded.between(before, after, codec=CONTEXT).size_bytes


@pytest.mark.parametrize("how", [*Quantization, "a scale a row"])
def test_quantized_views_of_real_steps_come_back_bit_for_bit(how: str) -> None:
    before, after = (of_matrices(view, how) for view in islice(grpo_a_views(), 12, 14))
    encoded = Encoded.between(before, after, codec=None)
    assert encoded.delta.statistics.codecs.get(CONTEXT, 0) > encoded.delta.statistics.changed_units / 2
    delta = Delta.parse(before.table, Tiling(), [("chunk", data) for data in encoded.chunks])
    for number, (old, new) in enumerate(zip(before.units, after.units, strict=True)):
        live = old.copy()
        scatter(
            before.table.tensors[number], Tiling(), live, stage_tensor(before.table, Tiling(), number, old, [delta])
        )
        assert np.array_equal(new, live)


def of_matrices(view: View, how: str) -> View:
    """The view's first layer, its matrices quantized."""
    named = zip(view.table.tensors, view.units, strict=True)
    weights = {s.name: float32(units).reshape(s.shape) for s, units in named if ".0." in s.name}
    if how in list(Quantization):
        return quantized_view(weights, Quantization(how))
    tensors: dict[str, Tensor] = {}
    for name, values in weights.items():
        rows = values.reshape(-1, values.shape[-1])
        scales = np.maximum(np.abs(rows).max(1, keepdims=True), np.float32(2.0**-100)) / np.float32(448)
        tensors[name] = Tensor("F8_E4M3", values.shape, e4m3(rows / scales))
        tensors[f"{name}_scale"] = Tensor("F32", scales.shape, scales.view(np.uint32))
    return View.of(tensors)


def test_all_that_a_delta_is_made_of_is_counted() -> None:
    old, new = AdamStep.seeded(1 << 18).views(learning_rate(0.02))
    encoded = Encoded.between(old, new, codec=CONTEXT)
    spent = encoded.spent()
    assert sum(map(len, encoded.chunks)) == sum(spent.values()) == encoded.delta.statistics.payload_bytes
    assert spent["tables"] == sum(len(table.data) for data in encoded.chunks for table in parse(data).tables)
    assert all(spent.values())


def test_steps_together_are_the_sum_of_their_bits(two_steps: list[View]) -> None:
    first, second = (measure(*two_steps[at : at + 2]) for at in range(2))
    both = Figures.together([first, second])
    assert both.changed == first.changed + second.changed
    assert both.bits[CONTEXT] == first.bits[CONTEXT] + second.bits[CONTEXT]
    assert both.share == pytest.approx((first.share + second.share) / 2)
    assert BOUND_HISTORY not in both.bits
