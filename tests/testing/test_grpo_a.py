"""The shipped recording: exact, complete, small enough for git."""

from __future__ import annotations

import hashlib
from math import prod
from pathlib import Path

import numpy as np

from syncline.testing import grpo_a


def test_both_recorded_files_come_back_byte_for_byte(tmp_path: Path) -> None:
    grpo_a.write_original_files(tmp_path)
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in tmp_path.iterdir()}
    expected = {
        "base.safetensors": "09cfa357717bf1c531d0adba185aff126e13a61da6a52c50e757fd261438147f",
        "steps.safetensors": "59a0afefe1c67b21b5ab992327a9ff8b2f099b869502bfb313bda2d245f96075",
    }
    assert expected == found


def test_every_view_differs_from_the_one_before_exactly_where_the_step_says() -> None:
    before = grpo_a.base()
    names, seen = list(before), 0
    for view, step in zip(grpo_a.steps(), grpo_a.changes(), strict=True):
        assert names == list(view)
        flat, flat_before = ([v[name].reshape(-1) for name in grpo_a.order()] for v in (view, before))
        changed = np.flatnonzero(np.concatenate(flat) != np.concatenate(flat_before))
        assert np.array_equal(step.positions, changed)
        assert np.array_equal(step.bits, np.concatenate(flat)[changed])
        before, seen = view, step.number
    assert grpo_a.STEPS == seen


def test_a_view_once_given_out_never_changes() -> None:
    views = grpo_a.steps()
    first = next(views)
    kept = {name: bits.copy() for name, bits in first.items()}
    next(views)
    assert all(np.array_equal(kept[name], first[name]) for name in kept)


def test_the_config_fits_the_shapes() -> None:
    config, shapes = grpo_a.config(), {name: bits.shape for name, bits in grpo_a.base().items()}
    hidden, kv = config["hidden_size"], config["num_key_value_heads"] * config["head_dim"]
    assert hidden == config["num_attention_heads"] * config["head_dim"]
    assert (config["vocab_size"], hidden) == shapes["model.embed_tokens.weight"]
    last = f"model.layers.{config['num_hidden_layers'] - 1}."
    assert (kv, hidden) == shapes[last + "self_attn.k_proj.weight"]
    assert (config["intermediate_size"], hidden) == shapes[last + "mlp.up_proj.weight"]
    assert f"model.layers.{config['num_hidden_layers']}.input_layernorm.weight" not in shapes
    assert "lm_head.weight" not in shapes
    assert config["tie_word_embeddings"]


def test_order_names_every_tensor_once_with_its_shape() -> None:
    view = grpo_a.base()
    assert {name: bits.shape for name, bits in view.items()} == grpo_a.order()
    assert 5_647_616 == sum(prod(shape) for shape in grpo_a.order().values())


def test_no_part_is_larger_than_git_hosts_like() -> None:
    parts = list(grpo_a.FOLDER.glob("*.pack.*"))
    assert parts
    assert max(part.stat().st_size for part in parts) <= 5_000_000
