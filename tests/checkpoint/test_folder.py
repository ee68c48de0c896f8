"""Folders that a trainer writes: complete, incomplete, broken, tied, and changing under the reader's hands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from syncline.checkpoint import WeightFolder, header_bytes, table_of_folder
from syncline.errors import SourceInvalid, SourceNotReady, TiedWeightsDiffer

Tensors = dict[str, tuple[str, list[int], bytes]]

LAYERS: Tensors = {
    "model.layers.0.self_attn.o_proj.weight": ("BF16", [2, 4], bytes(range(16))),
    "model.layers.0.self_attn.q_proj.weight": ("BF16", [4, 2], bytes(range(16, 32))),
    "model.norm.weight": ("F32", [2], bytes(8)),
}
EMBED: Tensors = {"model.embed_tokens.weight": ("BF16", [3, 2], bytes(range(12)))}
HEAD: Tensors = {"lm_head.weight": ("BF16", [3, 2], bytes(range(12)))}


def write_file(path: Path, tensors: Tensors) -> None:
    header = header_bytes((name, dtype, shape) for name, (dtype, shape, _) in tensors.items())
    path.write_bytes(header + b"".join(data for _, _, data in tensors.values()))


def write_single(folder: Path, tensors: Tensors, config: object = None) -> Path:
    folder.mkdir(exist_ok=True)
    write_file(folder / "model.safetensors", tensors)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_sharded(folder: Path, *shards: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards):
        name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        write_file(folder / name, tensors)
        weight_map.update(dict.fromkeys(tensors, name))
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def contents(path: Path) -> dict[str, bytes]:
    with WeightFolder.open(path) as folder:
        return {name: folder.read(name).tobytes() for name in folder.tensors}


def test_one_file_and_shards_hold_the_same(tmp_path: Path):
    expected = {name: data for name, (_, _, data) in {**LAYERS, **EMBED}.items()}
    assert expected == contents(write_single(tmp_path / "one", {**LAYERS, **EMBED}))
    assert expected == contents(write_sharded(tmp_path / "two", LAYERS, EMBED))


def test_any_single_safetensors_file_serves(tmp_path: Path):
    write_file(tmp_path / "weights.safetensors", EMBED)
    assert {"model.embed_tokens.weight"} == contents(tmp_path).keys()


def test_a_tensor_is_read_into_a_buffer_of_the_callers(tmp_path: Path):
    with WeightFolder.open(write_single(tmp_path, EMBED)) as folder:
        out = np.zeros(6, np.uint16)
        assert folder.read("model.embed_tokens.weight", out) is out
    assert bytes(range(12)) == out.tobytes()


def test_empty_and_0d_tensors_are_read(tmp_path: Path):
    found = contents(write_single(tmp_path, {"a": ("BF16", [0, 3], b""), "b": ("I64", [], bytes(range(8)))}))
    assert {"a": b"", "b": bytes(range(8))} == found


def test_the_table_is_sorted_and_cuts_output_projections_by_columns(tmp_path: Path):
    table = table_of_folder(write_sharded(tmp_path, EMBED, LAYERS))
    assert [
        ("model.embed_tokens.weight", "BF16", [3, 2], 0),
        ("model.layers.0.self_attn.o_proj.weight", "BF16", [2, 4], 1),
        ("model.layers.0.self_attn.q_proj.weight", "BF16", [4, 2], 0),
        ("model.norm.weight", "F32", [2], 0),
    ] == [(t.name, t.dtype, t.shape, t.axis) for t in table.tensors]
    rows = table_of_folder(tmp_path, axis=lambda name, shape: 0)
    assert {0} == {t.axis for t in rows.tensors}


@pytest.mark.parametrize("config", [{"tie_word_embeddings": True}, {"text_config": {"tie_word_embeddings": True}}])
def test_tied_weights_that_are_stored_twice_become_one_tensor(tmp_path: Path, config: object):
    table = table_of_folder(write_single(tmp_path, {**EMBED, **HEAD, **LAYERS}, config))
    assert {"model.embed_tokens.weight": ["lm_head.weight"]} == {t.name: t.aliases for t in table.tensors if t.aliases}
    assert "lm_head.weight" not in [t.name for t in table.tensors]


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"tie_word_embeddings": False},
        {"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}},
    ],
)
def test_equal_weights_that_no_config_ties_stay_two_tensors(tmp_path: Path, config: object):
    table = table_of_folder(write_single(tmp_path, {**EMBED, **HEAD}, config))
    assert ["lm_head.weight", "model.embed_tokens.weight"] == [t.name for t in table.tensors]


def test_tied_weights_with_different_bits_are_refused_by_name(tmp_path: Path):
    head: Tensors = {"lm_head.weight": ("BF16", [3, 2], bytes(range(11)) + b"\xff")}
    folder = write_single(tmp_path, {**EMBED, **head}, {"tie_word_embeddings": True})
    with pytest.raises(TiedWeightsDiffer, match=r"model\.embed_tokens\.weight and lm_head\.weight"):
        table_of_folder(folder)


def test_tied_weights_of_different_shapes_are_refused_by_name(tmp_path: Path):
    head: Tensors = {"lm_head.weight": ("BF16", [2, 3], bytes(range(12)))}
    folder = write_single(tmp_path, {**EMBED, **head}, {"tie_word_embeddings": True})
    with pytest.raises(TiedWeightsDiffer, match=r"lm_head\.weight"):
        table_of_folder(folder)


def test_tied_weights_that_are_stored_once_are_one_tensor_without_aliases(tmp_path: Path):
    table = table_of_folder(write_single(tmp_path, EMBED, {"tie_word_embeddings": True}))
    assert [[]] == [t.aliases for t in table.tensors]


def test_a_config_that_is_no_json_is_refused(tmp_path: Path):
    write_single(tmp_path, EMBED)
    (tmp_path / "config.json").write_text("{tie")
    with pytest.raises(SourceInvalid, match=r"config\.json is not JSON"):
        table_of_folder(tmp_path)


def test_companions_are_what_makes_a_folder_servable(tmp_path: Path):
    write_sharded(tmp_path, EMBED)
    for name in ("config.json", "tokenizer.json", "merges.txt", "spiece.model", "chat_template.jinja"):
        (tmp_path / name).write_text("{}")
    for name in ("optimizer.pt", "trainer_state.json", "rng_state.pth", ".hidden.json", "training_args.bin"):
        (tmp_path / name).write_text("{}")
    with WeightFolder.open(tmp_path) as folder:
        names = [p.name for p in folder.companions()]
    assert ["chat_template.jinja", "config.json", "merges.txt", "spiece.model", "tokenizer.json"] == names


def test_a_folder_without_weights_or_with_shards_and_no_index_is_not_ready(tmp_path: Path):
    with pytest.raises(SourceNotReady, match=r"no \.safetensors file yet"):
        WeightFolder.open(tmp_path)
    write_sharded(tmp_path, EMBED, LAYERS)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(SourceNotReady, match="2 shards and no"):
        WeightFolder.open(tmp_path)


@pytest.mark.parametrize("left", [0, 5, 60, -1])
def test_a_shard_that_is_still_growing_is_not_ready(tmp_path: Path, left: int):
    write_sharded(tmp_path, EMBED, LAYERS)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:left])
    with pytest.raises(SourceNotReady, match="model-00002-of-00002"):
        WeightFolder.open(tmp_path)


def test_an_index_that_is_still_growing_is_not_ready(tmp_path: Path):
    write_sharded(tmp_path, EMBED)
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(index.read_bytes()[:-3])
    with pytest.raises(SourceNotReady, match=r"index\.json is not whole JSON"):
        WeightFolder.open(tmp_path)


def test_a_missing_shard_is_refused_by_name(tmp_path: Path):
    write_sharded(tmp_path, EMBED, LAYERS)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(SourceInvalid, match=r"model-00002-of-00002\.safetensors is missing"):
        WeightFolder.open(tmp_path)


def test_a_folder_that_vanished_is_refused_by_name(tmp_path: Path):
    with pytest.raises(SourceInvalid, match="gone vanished"):
        WeightFolder.open(tmp_path / "gone")


def test_an_index_that_lies_is_refused(tmp_path: Path):
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    write_sharded(tmp_path, EMBED, LAYERS)
    right = dict.fromkeys(EMBED, one) | dict.fromkeys(LAYERS, two)
    for wrong, says in (
        (right | {"model.norm.weight": one}, f"in {one}; it is in {two}"),
        (right | {"model.other.weight": one}, "it is in no shard"),
        ({n: f for n, f in right.items() if n != "model.norm.weight"}, "which the index does not name"),
        (right | {"x": "../elsewhere.safetensors"}, "no .safetensors file beside it"),
        (right | {"x": "optimizer.pt"}, "no .safetensors file beside it"),
        ({}, "has no weight_map"),
    ):
        write_index(tmp_path, wrong)
        with pytest.raises(SourceInvalid, match=says):
            WeightFolder.open(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path):
    write_sharded(tmp_path, {**EMBED, **HEAD}, {**EMBED, **LAYERS})
    with pytest.raises(SourceInvalid, match=r"stored in model-00001-of-00002\.safetensors and again in model-00002"):
        WeightFolder.open(tmp_path)


def test_one_file_beside_an_index_is_refused(tmp_path: Path):
    write_sharded(tmp_path, EMBED)
    write_file(tmp_path / "model.safetensors", EMBED)
    with pytest.raises(SourceInvalid, match="remove the one that is not meant"):
        WeightFolder.open(tmp_path)


def test_a_file_without_tensors_is_refused(tmp_path: Path):
    with pytest.raises(SourceInvalid, match="holds no tensors"):
        WeightFolder.open(write_single(tmp_path, {}))


def test_a_folder_that_is_removed_while_open_stays_readable_and_is_told(tmp_path: Path):
    path = write_single(tmp_path / "checkpoint-7", EMBED)
    with WeightFolder.open(path) as folder:
        folder.check_unchanged()
        shutil.rmtree(path)
        assert bytes(range(12)) == folder.read("model.embed_tokens.weight").tobytes()
        with pytest.raises(SourceInvalid, match=r"model\.safetensors was removed while it was read"):
            folder.check_unchanged()


def test_a_file_that_is_cut_while_open_is_not_ready(tmp_path: Path):
    with WeightFolder.open(write_single(tmp_path, EMBED)) as folder:
        file = tmp_path / "model.safetensors"
        with file.open("r+b") as opened:
            opened.truncate(file.stat().st_size - 4)
        with pytest.raises(SourceNotReady, match="became shorter"):
            folder.read("model.embed_tokens.weight")
        with pytest.raises(SourceNotReady, match="changed while it was read"):
            folder.check_unchanged()


def test_a_file_that_is_replaced_while_open_is_told(tmp_path: Path):
    with WeightFolder.open(write_single(tmp_path, EMBED)) as folder:
        write_file(tmp_path / "new", {"model.embed_tokens.weight": ("BF16", [3, 2], bytes(12))})
        (tmp_path / "new").replace(tmp_path / "model.safetensors")
        assert bytes(range(12)) == folder.read("model.embed_tokens.weight").tobytes()
        with pytest.raises(SourceNotReady, match="changed while it was read"):
            folder.check_unchanged()
