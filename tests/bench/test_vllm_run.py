"""What vLLM's benchmark makes and reckons: checkpoints that can be followed, pauses, and lines that say what came of a case."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.vllm_run.case import pauses
from bench.vllm_run.models import BLOCK, Model, Shape
from bench.vllm_run.report import report

from syncline_distributor.folder_weights import FolderWeights


@pytest.mark.parametrize("experts", [0, 2])
@pytest.mark.parametrize("fp8", [False, True])
def test_a_step_changes_a_hundredth_of_every_weight_and_leaves_a_checkpoint_of_the_same_tensors(
    tmp_path: Path, experts: int, fp8: bool
) -> None:
    model = Model(Shape(256, 128, 1, 2, 1, vocab=512, experts=experts, fp8=fp8), "cpu")
    model.write(tmp_path / "1")
    model.step()
    model.write(tmp_path / "2")
    with FolderWeights(tmp_path / "1") as first, FolderWeights(tmp_path / "2") as second:
        assert first.table == second.table
        specs, number = first.table.tensors, first.table.index
        matrix = f"model.layers.0.mlp.{'experts.1.' if experts else ''}down_proj.weight"
        assert ("F8_E4M3" if fp8 else "BF16", [256, 128]) == (specs[number[matrix]].dtype, specs[number[matrix]].shape)
        assert fp8 == (f"{matrix}_scale_inv" in number)
        if fp8:
            assert [256 // BLOCK, 1] == specs[number[f"{matrix}_scale_inv"]].shape
        for name in (matrix, "lm_head.weight", "model.embed_tokens.weight"):
            before, after = first.units(number[name]), second.units(number[name])
            assert 0.006 < float((before != after).mean()) < 0.014


def test_an_fp8_checkpoint_names_what_is_not_quantized_as_published_ones_do() -> None:
    config = Shape(256, 128, 1, 2, 1, vocab=512, experts=2, fp8=True).config()
    assert ["lm_head", "model.layers.0.mlp.gate"] == config["quantization_config"]["modules_to_not_convert"]


def test_a_pause_is_the_longest_gap_of_a_stream_around_a_commit_less_its_median_gap() -> None:
    steady = [0.01 * n for n in range(300)]
    held = [at if at < 2.0 else at + 0.05 for at in steady]
    late = [[5.0, 9.0]]  # its gap begins long after
    found = pauses([[steady], [held[:100], held[100:]], late], seen=2.1)
    assert [0.0, 0.05] == pytest.approx(found)


def test_a_report_says_what_a_case_came_to_also_where_it_failed() -> None:
    commit = {
        "apply_path": "delta",
        "digest_equal": True,
        "pauses": [0.002, 0.004],
        "gate_pause_seconds": 0.003,
        "stage_seconds": 0.5,
        "extra_bytes": 70e6,
        "changed": 1234,
    }
    told = report(
        {
            "bf16": {
                "weights_bytes": 1.5e9,
                "ranks": 2,
                "compiled_alike": {"tokens": [True, False]},
                "changes": [{**commit, "version": 2}, {**commit, "version": 3, "digest_equal": False}],
                "commits": [commit, {**commit, "apply_path": "undo", "stage_seconds": None, "digest_equal": False}],
                "equal_to_fresh": {"3": {"tokens": [True, True, False]}},
                "reloads": 0,
                "again_as_before": True,
            },
            "fp8": {
                "weights_bytes": 1.0,
                "refused": ["layout refused: why"],
                "failed": "Traceback\nValueError: gone\n",
            },
            "sleep": {
                "weights_bytes": 1.0,
                "wake_seconds": 0.03,
                "woken_path": "delta",
                "woken_digest_equal": True,
                "served_without_weights": ["error"],
                "healing": [("healed", 1), ("committed", 3)],
                "healed_seconds": 1.25,
                "healed_digest_equal": True,
            },
            "moe was not prepared": "Traceback\nOSError: full",
        }
    )
    assert "1 by delta, 1 with the digest of live memory equal: gate 3.00 ms; streams half 3.0 ms" in told
    assert "1 by undo, 0 with the digest of live memory equal" in told
    assert "at most 70 MB of device memory beside the weights for 1,234 changes" in told
    assert "version 3: as a vLLM started on it draws: tokens 2 of 3" in told
    assert "gone back to draws as before, bit for bit: True" in told
    assert "refused: layout refused: why" in told
    assert "failed: ValueError: gone" in told
    assert "1.50 GB of weights on 2 ranks" in told
    assert "versions 2 by delta, 3 by delta; digest of live memory equal 1 of 2" in told
    assert "first delta: staged in 0.5 s, gate 3.0 ms" in told
    assert "threw the weights away requests ended with ['error']" in told
    assert "then: healed version 1, committed version 3, in 1.2 s; digest of live memory equal: True" in told
    assert "draw alike: tokens 1 of 2" in told
    assert "moe was not prepared: OSError: full" in told
