"""Weights as real checkpoints store them: stacked experts, scales of every grain and spelling, quantized embeddings and heads,
matrices that are not all stored in one way. Against a forward written a second time, and changed in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from syncline.errors import LayoutRefused
from syncline.testing.weight_run import WeightRun
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.layout import Layout
from syncline_agent.arm.probing import probe
from syncline_agent.arm.torch_stores import host_units
from syncline_agent.reference.config import ModelConfig
from syncline_agent.reference.slicing import slices
from syncline_agent.testing.plain_model import Model, logits, model, stacked, values
from syncline_agent.testing.threaded_ranks import TOKENS, Following, Rank, ranks_of, together

DENSE = ModelConfig(
    vocab=19,
    hidden=32,
    intermediate=64,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=16,
    max_positions=64,
    tied=False,
    weight_block=(16, 16),
)
TIED = replace(DENSE, tied=True)
MOE = replace(DENSE, qkv_bias=False, qk_norm=True, experts=4, experts_per_token=2, expert_intermediate=48)
WIDE = replace(MOE, expert_intermediate=64)
HEADS = {"lm_head.weight": "FP8", "embed_tokens.weight": "NVFP4"}
MIXED = {"k_proj.weight": "FP8", "v_proj.weight": "NVFP4", "up_proj.weight": "F32"}
EXPERTS = {"experts.2.gate_proj.weight": "FP8", "experts.1.down_proj.weight": "F32"}
MODELS: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "a scale a tensor": (DENSE, {"kind": "FP8", "grain": "tensor", "spelled": "weight_scale"}),
    "a scale a tensor, inv": (DENSE, {"kind": "FP8", "grain": "tensor"}),
    "a scale a row": (DENSE, {"kind": "FP8", "grain": "row", "spelled": "weight_scale", "scales": "BF16"}),
    "a scale a row, as a column": (DENSE, {"kind": "FP8", "grain": "column of rows", "spelled": "weight_scale"}),
    "a scale a block, not inv": (DENSE, {"kind": "FP8", "spelled": "weight_scale"}),
    "experts of a scale a tensor": (MOE, {"kind": "FP8", "grain": "tensor", "spelled": "weight_scale"}),
    "experts of a scale a row": (MOE, {"kind": "FP8", "grain": "column of rows", "spelled": "weight_scale"}),
    "nvfp4 packed": (DENSE, {"kind": "NVFP4 packed"}),
    "experts of nvfp4 packed": (MOE, {"kind": "NVFP4 packed"}),
    "quantized embedding and head": (DENSE, {"others": HEADS}),
    "embedding and head tied in fp8": (TIED, {"others": {"embed_tokens.weight": "FP8"}}),
    "embedding and head tied in nvfp4": (TIED, {"others": {"embed_tokens.weight": "NVFP4"}}),
    "attention and mlp of several formats": (DENSE, {"others": MIXED}),
    "experts of several formats": (MOE, {"others": EXPERTS}),
}
STACKED: dict[str, tuple[ModelConfig, dict[str, Any], bool]] = {
    "stacked": (MOE, {}, False),
    "stacked and turned": (MOE, {}, True),
    "stacked in fp8": (MOE, {"kind": "FP8", "scales": "BF16"}, False),
    "stacked and turned in fp8": (WIDE, {"kind": "FP8"}, True),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def made(name: str) -> Model:
    if name in STACKED:
        config, how, turned = STACKED[name]
        return stacked(model(config, **how), turned=turned)
    config, how = MODELS[name]
    return model(config, **how)


@pytest.mark.parametrize("name", [*MODELS, *STACKED])
def test_logits_are_those_of_a_forward_written_a_second_time(name: str) -> None:
    config, how, *_ = MODELS.get(name) or STACKED[name]
    plain = model(config, **how)
    expected = logits(config, values(config, plain.bits), TOKENS)
    np.testing.assert_allclose(Rank(made(name)).logits(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "ways"),
    [(name, 2) for name in (*MODELS, *STACKED)]
    + [(name, 1) for name in ("stacked", "stacked and turned in fp8", "experts of several formats")],
)
def test_deltas_are_followed_in_place_and_all_ranks_hold_the_published_digest(
    name: str, ways: int, run_of: Callable[[Model], WeightRun]
) -> None:
    check_follows(made(name), run_of, ways)


def check_follows(of: Model, run_of: Callable[[Model], WeightRun], ways: int, *, expert_parallel: bool = True) -> None:
    """Over a commit of two versions and its undo, all is as in an engine that starts from what was published."""
    run = run_of(of)
    ranks = ranks_of(of, ways, expert_parallel=expert_parallel)
    np.testing.assert_allclose(together(ranks)[-1], Rank(of).logits(), atol=1e-4, rtol=1e-4)
    following = Following(run, of, ranks)
    following.commit(1, 3)
    fresh = ranks_of(replace(of, bits=run.weights(3)), ways, expert_parallel=expert_parallel)
    assert [rank.bits() for rank in fresh] == [rank.bits() for rank in ranks]
    np.testing.assert_array_equal(together(fresh)[0], together(ranks)[0])
    following.undo(1)
    before = ranks_of(of, ways, expert_parallel=expert_parallel)
    assert [rank.bits() for rank in before] == [rank.bits() for rank in ranks]


@pytest.mark.parametrize(
    ("kind", "spelled"),
    [
        ("BF16", lambda of: of),
        ("FP8", lambda of: of),
        ("NVFP4", lambda of: of),
        ("BF16", stacked),
        ("FP8", stacked),
        ("BF16", lambda of: stacked(of, turned=True)),
    ],
    ids=["bf16", "fp8", "nvfp4", "stacked", "stacked in fp8", "stacked and turned"],
)
def test_experts_that_are_cut_follow_as_those_that_are_dealt_out(
    kind: str, spelled: Callable[[Model], Model], run_of: Callable[[Model], WeightRun]
) -> None:
    check_follows(spelled(model(WIDE, kind=kind)), run_of, 2, expert_parallel=False)


def test_ranks_hold_whole_experts_or_a_part_of_each() -> None:
    of = model(WIDE)
    dealt, cut = (ranks_of(of, 2, expert_parallel=dealt)[1].parameters for dealt in (True, False))
    name = "model.layers.0.mlp.experts.gate_up_proj.weight"
    assert ([2, 128, 32], [4, 64, 32]) == (list(dealt[name].shape), list(cut[name].shape))
    assert ((2, 2), (0, 4)) == tuple((p.slices.first_expert, p.slices.experts) for p in (dealt, cut))


def test_experts_need_not_be_a_multiple_of_the_ranks_where_they_are_cut(run_of: Callable[[Model], WeightRun]) -> None:
    of = model(replace(MOE, experts=3))
    with pytest.raises(LayoutRefused, match="3 experts are not a multiple of 2 ranks"):
        slices(of.config, of.table, ranks=2)
    check_follows(of, run_of, 2, expert_parallel=False)


@pytest.mark.parametrize("dealt", [True, False])
def test_a_stack_that_lies_as_it_is_stored_is_one_block_a_rank(dealt: bool) -> None:
    of = stacked(model(WIDE))
    index = of.table.index["model.layers.0.mlp.experts.gate_up_proj"]
    blocks = [b for b in ranks_of(of, 2, expert_parallel=dealt)[1].parameters.slices.blocks() if b.tensor == index]
    expected = [((2, 0, 0), (2, 128, 32))] if dealt else [((e, r, 0), (1, 32, 32)) for e in range(4) for r in (32, 96)]
    assert expected == [(block.start, block.size) for block in blocks]


SCALES = {
    "fp8 block": (model(DENSE, kind="FP8"), "q_proj.weight_scale_inv"),
    "fp8 row": (made("a scale a row"), "v_proj.weight_scale"),
    "fp8 tensor": (made("a scale a tensor"), "up_proj.weight_scale"),
    "fp8 stack": (made("stacked in fp8"), "experts.gate_up_proj_scale_inv"),
    "fp8 head": (made("quantized embedding and head"), "lm_head.weight_scale_inv"),
    "nvfp4 sixteenth": (model(DENSE, kind="NVFP4"), "k_proj.weight_scale"),
    "nvfp4 tensor": (model(DENSE, kind="NVFP4"), "down_proj.weight_scale_2"),
    "nvfp4 packed tensor": (made("nvfp4 packed"), "o_proj.weight_global_scale"),
    "nvfp4 embedding": (made("quantized embedding and head"), "embed_tokens.weight_scale_2"),
}


@pytest.mark.parametrize("name", SCALES)
def test_a_scale_that_changes_alone_changes_what_is_computed_in_place(
    name: str, run_of: Callable[[Model], WeightRun]
) -> None:
    of, ending = SCALES[name]
    run = run_of(of)
    changed = run.copy(3)
    for scale in (changed[tensor] for tensor in changed if tensor.endswith(ending)):
        scale ^= np.array(1 << (5 if scale.itemsize == 1 else 8 * scale.itemsize - 8), scale.dtype)
    assert 4 == run.add(changed)
    ranks = ranks_of(replace(of, bits=run.weights(3)), 2)
    now = together(ranks)[0]
    following = Following(run, replace(of, bits=run.weights(3)), ranks, version=3)
    following.commit(3, 4)
    found = together(ranks)[0]
    assert not np.allclose(now, found, atol=1e-3)
    np.testing.assert_array_equal(together(ranks_of(replace(of, bits=run.weights(4)), 2))[0], found)


@pytest.mark.parametrize(
    "name", ["stacked", "stacked and turned", "stacked and turned in fp8", "experts of several formats"]
)
def test_probing_finds_the_layout_that_the_loader_says(name: str) -> None:
    of = made(name)
    rank = ranks_of(of, 2)[-1]
    stores = dict(zip(rank.parameters.slices.parameters, rank.parameters.stores, strict=True))
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

    def load(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        spelled = {n: t.reshape(-1).view(integers[t.element_size()]).clone() for n, t in tensors}
        rank.parameters.fill(lambda n: host_units(spelled[n]))

    found = probe(of.table, stores.items(), load)
    assert {} == found.troubles
    assert rank.parameters.layout().bands == Layout.of(of.table, found.blocks).bands


def without(of: Model, *endings: str) -> TensorTable:
    return TensorTable(tensors=[spec for spec in of.table.tensors if not spec.name.endswith(endings)])


def shaped(of: Model, ending: str, shape: list[int]) -> TensorTable:
    return TensorTable(
        tensors=[
            spec.model_copy(update={"shape": shape}) if spec.name.endswith(ending) else spec
            for spec in of.table.tensors
        ]
    )


@pytest.mark.parametrize(
    ("name", "change", "ways", "says"),
    [
        (
            "stacked",
            lambda of: without(of, "experts.down_proj"),
            1,
            r"down_proj is missing; the config asks for \[4, 96",
        ),
        ("stacked", lambda of: shaped(of, "gate_up_proj", [4, 90, 32]), 1, r"gate_up_proj is \[4, 90, 32\]"),
        ("stacked", lambda of: shaped(of, "gate_up_proj", [4, 32, 96]), 1, "last two dimensions turned around"),
        (
            "stacked in fp8",
            lambda of: without(of, "gate_up_proj_scale_inv"),
            1,
            "gate_up_proj is F8_E4M3 without the scales",
        ),
        ("a scale a row", lambda of: shaped(of, "q_proj.weight_scale", [63]), 1, r"asks for \[64\]"),
        ("a scale a tensor", lambda of: shaped(of, "q_proj.weight_scale", [2, 3]), 1, "q_proj.weight_scale is F32"),
        ("quantized embedding and head", lambda of: without(of, "lm_head.weight_scale_inv"), 1, "lm_head.weight is F8"),
        ("quantized embedding and head", lambda of: without(of, "embed_tokens.weight"), 1, "missing tensors"),
    ],
)
def test_what_cannot_be_widened_is_refused_by_name(
    name: str, change: Callable[[Model], TensorTable], ways: int, says: str
) -> None:
    of = made(name)
    with pytest.raises(LayoutRefused, match=says):
        slices(of.config, change(of), ranks=ways)


def test_scales_of_activations_and_of_caches_are_held_and_followed(run_of: Callable[[Model], WeightRun]) -> None:
    plain = model(DENSE, kind="FP8", grain="tensor", spelled="weight_scale")
    more = {
        f"model.layers.0.self_attn.{name}": np.array([0x3F800000], "<u4")
        for name in ("k_proj.k_scale", "v_proj.v_scale", "q_proj.input_scale")
    }
    specs = [*plain.table.tensors, *(TensorSpec(name=name, dtype="F32", shape=[1], axis=0) for name in more)]
    table = TensorTable(tensors=sorted(specs, key=lambda spec: spec.name))
    of = replace(plain, table=table, bits={**plain.bits, **more})
    np.testing.assert_allclose(Rank(plain).logits(), Rank(of).logits(), atol=1e-5)
    check_follows(of, run_of, 2)


def test_experts_whose_blocks_would_be_cut_are_refused_by_name() -> None:
    of = model(MOE, kind="FP8")
    with pytest.raises(LayoutRefused, match="2 ranks would cut rows 0 to 24, which are no whole blocks of 16"):
        slices(of.config, of.table, ranks=2, expert_parallel=False)
