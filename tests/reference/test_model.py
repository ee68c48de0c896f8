"""The reference decoder over plain tensors: against a forward written a second time, step by step, alone and in a batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from syncline.errors import LayoutRefused, Rejected, SourceInvalid, TiedWeightsDiffer
from syncline_agent.reference.config import EMBEDDING, HEAD
from syncline_agent.reference.model import Decoder, ModelConfig, load_weights, sequence_logits
from syncline_agent.testing.plain_model import logits

CONFIG = ModelConfig(
    vocab=19,
    hidden=32,
    intermediate=48,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    max_positions=64,
    rope_theta=10_000.0,
    tied=True,
)
TOKENS = [[1, 4, 9, 3, 17, 5, 2], [1, 18, 7, 7, 11, 0, 6]]


def make_weights(config: ModelConfig, seed: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(shape, generator=generator) * 0.2 + (1.0 if "norm" in name else 0.0)).bfloat16()
        for name, shape in config.tensors().items()
    }


def write(folder: Path, config: ModelConfig, weights: dict[str, torch.Tensor]) -> None:
    (folder / "config.json").write_text(json.dumps(config.to_hf()))
    save_file(weights, str(folder / "model.safetensors"))


@pytest.mark.parametrize(
    "config",
    [
        replace(CONFIG, layers=1),
        replace(CONFIG, tied=False),
        replace(CONFIG, qkv_bias=False, kv_heads=4),
        replace(CONFIG, qk_norm=True, experts=3, experts_per_token=2, expert_intermediate=16, dense_layers=(0,)),
    ],
)
def test_logits_are_those_of_an_independent_float64_forward(config: ModelConfig) -> None:
    weights = make_weights(config)
    got = sequence_logits(config, weights, torch.tensor(TOKENS)).numpy()
    for row, tokens in enumerate(TOKENS):
        expected = logits(config, {name: tensor.double().numpy() for name, tensor in weights.items()}, tokens)
        np.testing.assert_allclose(got[row], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("prompt", [1, 3, 7])
def test_a_prompt_and_then_one_token_a_step_equal_the_whole_sequence(prompt: int) -> None:
    weights = make_weights(CONFIG)
    decoder = Decoder(CONFIG, weights, slots=4, max_len=16)
    tokens = TOKENS[0]
    steps = [decoder.forward(tokens[:prompt], [2] * prompt, range(prompt))]
    steps += [decoder.forward([tokens[p]], [2], [p]) for p in range(prompt, len(tokens))]
    torch.testing.assert_close(
        torch.cat(steps), sequence_logits(CONFIG, weights, torch.tensor([tokens]))[0], atol=2e-5, rtol=1e-4
    )


def test_a_mixed_batch_gives_each_sequence_what_it_gets_alone() -> None:
    weights = make_weights(CONFIG)
    alone, mixed = Decoder(CONFIG, weights, slots=2, max_len=8), Decoder(CONFIG, weights, slots=3, max_len=16)
    first, second = TOKENS
    expected_first = [alone.forward([t], [0], [p]) for p, t in enumerate(first)]
    expected_second = [alone.forward([t], [1], [p]) for p, t in enumerate(second)]
    mixed.forward(first[:4], [0] * 4, range(4))
    # A whole prompt runs in the same call as one step of another sequence, and in a slot that was used before.
    mixed.forward([5, 5, 5], [2, 2, 2], [0, 1, 2])
    got = mixed.forward([first[4], *second[:6]], [0] + [2] * 6, [4, 0, 1, 2, 3, 4, 5])
    torch.testing.assert_close(got, torch.cat([expected_first[4], *expected_second[:6]]), atol=2e-5, rtol=1e-4)


def test_a_long_prompt_is_attended_in_blocks_without_a_seam() -> None:
    config = replace(CONFIG, max_positions=400)
    weights = make_weights(config)
    tokens = torch.randint(0, config.vocab, (1, 300), generator=torch.Generator().manual_seed(1))
    got = Decoder(config, weights, slots=1).forward(tokens[0].tolist(), [0] * 300, range(300))
    torch.testing.assert_close(got, sequence_logits(config, weights, tokens)[0], atol=5e-5, rtol=1e-4)


def test_bits_patched_in_place_are_the_bits_of_the_next_step() -> None:
    weights = make_weights(CONFIG)
    target = make_weights(CONFIG, seed=4)
    decoder = Decoder(CONFIG, weights, slots=1, max_len=8)
    before = decoder.forward([1, 4], [0, 0], [0, 1])
    for name, tensor in weights.items():
        tensor.view(torch.int16).view(-1).copy_(target[name].view(torch.int16).view(-1))
    after = decoder.forward([1, 4], [0, 0], [0, 1])
    assert not torch.equal(before, after)
    assert torch.equal(Decoder(CONFIG, target, slots=1, max_len=8).forward([1, 4], [0, 0], [0, 1]), after)


def test_a_slot_that_held_non_finite_values_is_clean_for_its_next_sequence() -> None:
    weights = make_weights(CONFIG)
    decoder = Decoder(CONFIG, weights, slots=2, max_len=8)
    expected = decoder.forward([1, 4], [0, 1], [0, 0])
    name = "model.layers.0.self_attn.v_proj.weight"
    kept = weights[name].clone()
    weights[name].fill_(float("nan"))
    decoder.forward([1] * 8, [0] * 8, range(8))
    weights[name].copy_(kept)
    assert torch.equal(expected, decoder.forward([1, 4], [0, 1], [0, 0]))
    assert decoder.forward([5, 6], [0, 1], [1, 1]).isfinite().all()


def test_a_tied_head_is_one_tensor_under_both_names(tmp_path: Path) -> None:
    weights = make_weights(CONFIG)
    write(tmp_path, CONFIG, weights | {HEAD: weights[EMBEDDING].clone()})
    config, loaded = load_weights(tmp_path)
    assert config == CONFIG
    assert loaded[HEAD] is loaded[EMBEDDING]


def test_a_tied_head_stored_with_other_bits_is_refused(tmp_path: Path) -> None:
    weights = make_weights(CONFIG)
    write(tmp_path, CONFIG, weights | {HEAD: weights[EMBEDDING] * 2})
    with pytest.raises(TiedWeightsDiffer, match=r"lm_head\.weight"):
        load_weights(tmp_path)


def test_shards_named_by_an_index_load_as_one_model(tmp_path: Path) -> None:
    weights = make_weights(CONFIG)
    names = sorted(weights)
    weight_map = {}
    for number, shard in enumerate((names[::2], names[1::2])):
        save_file({n: weights[n] for n in shard}, str(tmp_path / f"model-{number}.safetensors"))
        weight_map |= dict.fromkeys(shard, f"model-{number}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    _, loaded = load_weights(tmp_path)
    assert set(weights) == set(loaded)
    assert all(
        torch.equal(weights[n].view(torch.int16), loaded[n].view(torch.int16)) and loaded[n].is_contiguous()
        for n in names
    )


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {EMBEDDING: "model-7.safetensors"}})
    )
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    with pytest.raises(SourceInvalid, match=r"model-7\.safetensors"):
        load_weights(tmp_path)


def test_a_shard_outside_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {EMBEDDING: "../model.safetensors"}})
    )
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    with pytest.raises(SourceInvalid, match="not a file name"):
        load_weights(tmp_path)


@pytest.mark.parametrize("change", ["missing", "unknown", "shape", "integer"])
def test_tensors_that_do_not_fit_the_config_are_refused_by_name(tmp_path: Path, change: str) -> None:
    weights = make_weights(CONFIG)
    name = "model.layers.1.mlp.up_proj.weight"
    if change == "missing":
        del weights[name]
    elif change == "unknown":
        name = "model.layers.2.mlp.up_proj.weight"
        weights[name] = torch.zeros(2, dtype=torch.bfloat16)
    else:
        weights[name] = weights[name][1:].clone() if change == "shape" else weights[name].to(torch.int16)
    write(tmp_path, CONFIG, weights)
    with pytest.raises(LayoutRefused, match=name):
        load_weights(tmp_path)


@pytest.mark.parametrize(
    "field",
    [
        {"hidden_act": "gelu"},
        {"rope_scaling": {"rope_type": "yarn"}},
        {"use_sliding_window": True},
        {"model_type": "gemma"},
    ],
)
def test_a_config_that_would_compute_differently_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(LayoutRefused, match=str(next(iter(field))).split("_")[0]):
        ModelConfig.from_hf(CONFIG.to_hf() | field)


@pytest.mark.parametrize("rows", [([19], [0], [0]), ([1], [1], [0]), ([1], [0], [8]), ([1, 2], [0], [0]), ([], [], [])])
def test_rows_outside_the_decoder_are_refused_before_anything_runs(
    rows: tuple[list[int], list[int], list[int]],
) -> None:
    decoder = Decoder(CONFIG, make_weights(CONFIG), slots=1, max_len=8)
    with pytest.raises(Rejected, match="forward"):
        decoder.forward(*rows)
