"""What an engine's own checksums prove, and what they do not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from syncline.checkpoint import Checkpoint
from syncline.testing.weight_run import WeightRun
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.reload.proof import candidates, unproven

LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": [70, 16],
    f"{LAYER}.self_attn.q_proj.weight": [32, 16],
    f"{LAYER}.self_attn.k_proj.weight": [8, 16],
    f"{LAYER}.self_attn.v_proj.weight": [8, 16],
    f"{LAYER}.self_attn.o_proj.weight": [16, 32],
    f"{LAYER}.mlp.experts.0.gate_proj.weight": [12, 16],
    f"{LAYER}.mlp.experts.0.up_proj.weight": [12, 16],
    f"{LAYER}.mlp.experts.0.down_proj.weight": [16, 12],
    f"{LAYER}.mlp.experts.1.gate_proj.weight": [12, 16],
    f"{LAYER}.mlp.experts.1.up_proj.weight": [12, 16],
    f"{LAYER}.mlp.experts.1.down_proj.weight": [16, 12],
    "model.norm.weight": [16],
}
ALIASES = {"model.embed_tokens.weight": ["lm_head.weight"]}
Parameters = dict[str, NDArray[Any]]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    table = TensorTable(
        tensors=[
            TensorSpec(name=name, dtype="BF16", shape=shape, axis=0, aliases=ALIASES.get(name, []))
            for name, shape in sorted(SHAPES.items())
        ]
    )
    rng = np.random.default_rng(1)
    first = {t.name: rng.integers(0, 2**16, t.units, dtype=np.uint16) for t in table.tensors}
    run = WeightRun(tmp_path / "run", table, first)
    return run.checkpoint(tmp_path / "checkpoint", 1)


def tensor(checkpoint: Checkpoint, name: str) -> NDArray[Any]:
    return np.array(checkpoint.units(name)).reshape(SHAPES[name])


def loaded(checkpoint: Checkpoint, rank: int = 0, ranks: int = 1) -> Parameters:
    """Parameters as an engine of `ranks` tensor-parallel ranks holds them, fused, stacked, sliced and padded."""

    def some(*names: str) -> list[NDArray[Any]]:
        return [tensor(checkpoint, f"{LAYER}.{name}.weight") for name in names]

    def rows(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([np.split(part, ranks)[rank] for part in parts])

    def columns(part: NDArray[Any]) -> NDArray[Any]:
        return np.split(part, ranks, axis=1)[rank]

    embed = tensor(checkpoint, "model.embed_tokens.weight")
    return {
        "model.embed_tokens.weight": np.pad(embed, ((0, 58), (0, 0))) if ranks == 1 else rows([embed]),
        f"{LAYER}.self_attn.qkv_proj.weight": rows(some("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
        f"{LAYER}.self_attn.o_proj.weight": columns(some("self_attn.o_proj")[0]),
        f"{LAYER}.mlp.experts.w13_weight": np.stack(
            [rows(some(f"mlp.experts.{e}.gate_proj", f"mlp.experts.{e}.up_proj")) for e in (0, 1)]
        ),
        f"{LAYER}.mlp.experts.w2_weight": np.stack([columns(some(f"mlp.experts.{e}.down_proj")[0]) for e in (0, 1)]),
        "model.norm.weight": tensor(checkpoint, "model.norm.weight"),
    }


def said(ranks: Sequence[Parameters]) -> dict[str, str]:
    return {
        f"dp0:pp0:pcp0:tp{rank}:{name}": hashlib.sha256(np.ascontiguousarray(units).tobytes()).hexdigest()
        for rank, parameters in enumerate(ranks)
        for name, units in parameters.items()
    }


def verdict(checkpoint: Checkpoint, checks: dict[str, str]) -> str | None:
    return unproven(checks, candidates(checks, checkpoint), checkpoint.table)


@pytest.mark.parametrize("ranks", [1, 2])
def test_fused_stacked_sliced_and_padded_parameters_prove_a_checkpoint(checkpoint: Checkpoint, ranks: int) -> None:
    assert None is verdict(checkpoint, said([loaded(checkpoint, rank, ranks) for rank in range(ranks)]))


def test_a_tied_head_is_the_embedding(checkpoint: Checkpoint) -> None:
    parameters = loaded(checkpoint)
    parameters["lm_head.weight"] = tensor(checkpoint, "model.embed_tokens.weight")
    assert None is verdict(checkpoint, said([parameters]))


@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", f"{LAYER}.self_attn.qkv_proj.weight", f"{LAYER}.mlp.experts.w13_weight"]
)
def test_one_wrong_bit_is_not_proven_and_its_parameter_named(checkpoint: Checkpoint, name: str) -> None:
    parameters = loaded(checkpoint)
    parameters[name].reshape(-1)[7] ^= 1
    assert f"dp0:pp0:pcp0:tp0:{name}" in (verdict(checkpoint, said([parameters])) or "")


def test_a_tensor_that_no_parameter_holds_is_named(checkpoint: Checkpoint) -> None:
    parameters = loaded(checkpoint)
    del parameters[f"{LAYER}.self_attn.o_proj.weight"]
    assert f"{LAYER}.self_attn.o_proj.weight" in (verdict(checkpoint, said([parameters])) or "")


def test_a_slice_that_no_rank_holds_is_missed(checkpoint: Checkpoint) -> None:
    ranks = [loaded(checkpoint, rank, 2) for rank in (0, 1)]
    del ranks[1][f"{LAYER}.self_attn.o_proj.weight"]
    assert f"{LAYER}.self_attn.o_proj.weight" in (verdict(checkpoint, said(ranks)) or "")


def test_two_ranks_that_hold_the_same_slice_prove_nothing(checkpoint: Checkpoint) -> None:
    assert verdict(checkpoint, said([loaded(checkpoint, 0, 2), loaded(checkpoint, 0, 2)])) is not None


def test_a_parameter_of_unknown_making_is_named(checkpoint: Checkpoint) -> None:
    parameters = loaded(checkpoint)
    parameters[f"{LAYER}.self_attn.kv_b_proj.derived"] = np.zeros(4, np.uint16)
    assert "kv_b_proj.derived" in (verdict(checkpoint, said([parameters])) or "")


def test_a_rank_of_a_number_that_no_engine_has_is_not_counted_up_to(checkpoint: Checkpoint) -> None:
    parameters = loaded(checkpoint)
    missing = parameters.pop(f"{LAYER}.self_attn.o_proj.weight")
    norm = hashlib.sha256(parameters["model.norm.weight"].tobytes()).hexdigest()
    checks = said([parameters]) | {"dp0:pp0:pcp0:tp99999999999:model.norm.weight": norm}
    assert missing.size
    assert verdict(checkpoint, checks) is not None
