"""What a publish leaves in the store, for every kind of weights and both kinds of base."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from syncline.checkpoint import WeightFolder
from syncline.errors import (
    DigestMismatch,
    FormatInvalid,
    LayoutRefused,
    LineageChanged,
    NonFiniteWeights,
    Rejected,
    TiedWeightsDiffer,
)
from syncline.store.memory import MemoryStore
from syncline.wire.records import pack_digests
from syncline.wire.tiling import Tiling
from syncline_distributor import Bits, NonFinite, Publisher, PublishSettings
from syncline_distributor.bases import MemoryBase
from syncline_distributor.settings import codec_choice
from syncline_distributor.weights import mapping_weights

Make = Callable[..., Publisher]
SMALL = Tiling(64, 256, 4)


@pytest.mark.parametrize("disk", [None, "state"])
def test_every_version_reads_back_bit_for_bit(
    publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any, disk: str | None
) -> None:
    publish, source = publisher(disk=disk), trainer()
    expected = {publish.publish(source.weights, step=0).version: source.weights}
    for step in range(1, 5):
        weights = source.step()
        expected[publish.publish(weights, step=step).version] = weights
    assert [1, 2, 3, 4, 5] == list(expected)
    for version, weights in expected.items():
        assert same_bits(weights, reading.units(store, version))


def test_the_first_version_is_whole_and_the_next_are_deltas(publisher: Make, trainer: Any) -> None:
    publish, source = publisher(), trainer()
    with capture_logs() as said:
        first = publish.publish(source.weights, step=10).manifest
        second = publish.publish(source.step(), step=11, labels={"loss": "low"}).manifest
    assert (1, None, None, 1, 10) == (first.version, first.base, first.parent, first.epoch, first.step)
    assert first.anchor is not None and first.chunks == []
    assert (2, 1, 1, 1, 11) == (second.version, second.base, second.parent, second.epoch, second.step)
    assert second.anchor is None and len(second.chunks) == 1
    assert {"loss": "low"} == second.labels
    assert second.statistics.changed_units == sum(second.statistics.codecs.values()) > 0
    assert second.statistics.payload_bytes == second.chunks[0].size
    assert (
        first.statistics.full_bytes
        == second.statistics.full_bytes
        == sum(b.units.nbytes for b in source.weights.values())
    )
    stored = [line["bytes"] for line in said if line["event"] == "published"]
    assert [first.anchor.size, second.chunks[0].size] == stored


@pytest.mark.parametrize("disk", [None, "disk"])
def test_the_codec_of_the_settings_is_the_codec_of_the_delta(publisher: Make, trainer: Any, disk: str | None) -> None:
    source = trainer()
    publish = publisher(disk=disk, settings=PublishSettings(choice=codec_choice("xor-zstd")))
    publish.publish(source.weights)
    statistics = publish.publish(source.step()).manifest.statistics
    assert {"xor-zstd": statistics.changed_units} == statistics.codecs
    with pytest.raises(FormatInvalid, match="codec 'zip' is not auto or one of raw, sparse"):
        codec_choice("zip")


def test_unchanged_weights_are_still_a_version(publisher: Make, trainer: Any) -> None:
    publish, source = publisher(), trainer()
    first = publish.publish(source.weights)
    again = publish.publish(source.weights)
    assert (2, [], first.manifest.digest) == (again.version, again.manifest.chunks, again.manifest.digest)


def test_many_chunks_in_parallel_lead_to_the_same_bits(
    publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any, pool: ThreadPoolExecutor
) -> None:
    source = trainer(specs={f"{n}.weight": ("BF16", (512, 300)) for n in range(8)})
    publish = publisher(executor=pool, settings=PublishSettings(uploads=2))
    publish.publish(source.weights)
    version = publish.publish(source.step(changes=20_000)).version
    publish.close()
    assert same_bits(source.weights, reading.units(store, version))


@pytest.mark.parametrize("disk", [None, "state"])
def test_other_tensors_shapes_or_dtypes_make_an_anchor_only_version(
    publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any, disk: str | None
) -> None:
    publish, source = publisher(disk=disk), trainer()
    publish.publish(source.weights)
    grown = {**source.weights, "k.new": Bits("BF16", (3,), np.arange(3, dtype=np.uint16))}
    wider = {**grown, "k.new": Bits("BF16", (5,), np.arange(5, dtype=np.uint16))}
    retyped = {**grown, "k.new": Bits("F32", (5,), np.arange(5, dtype=np.uint32))}
    for number, weights in enumerate((grown, wider, retyped, source.weights), 2):
        manifest = publish.publish(weights).manifest
        assert (number, None, number - 1) == (manifest.version, manifest.base, manifest.parent)
        assert same_bits(weights, reading.units(store, number))
    after = publish.publish(source.step()).manifest
    assert (6, 5) == (after.version, after.base)
    assert same_bits(source.weights, reading.units(store, 6))


def test_an_anchor_is_cut_into_shards_that_one_index_names(
    publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    source = trainer()
    publish = publisher(settings=PublishSettings(tiling=SMALL, max_shard_bytes=4000), files={"config.json": b"{}"})
    anchor = publish.publish(source.weights).manifest.anchor
    assert anchor is not None
    names = [f.name for f in anchor.files]
    assert {"config.json", "model.safetensors.index.json"} < set(names)
    assert sum(n.endswith(".safetensors") for n in names) > 1
    assert same_bits(source.weights, reading.units(store, 1))


def test_nan_payloads_and_negative_zero_survive(
    publisher: Make, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    publish = publisher()
    publish.publish({"w": Bits("F32", (4,), np.array([0, 1, 2, 3], np.uint32))})
    odd = {"w": Bits("F32", (4,), np.array([0x8000_0000, 0x7FC0_1234, 0xFF80_0001, 0x7F80_0000], np.uint32))}
    published = publish.publish(odd)
    assert same_bits(odd, reading.units(store, 2))
    assert 3 == published.statistics.nonfinite


def test_refuse_publishes_nothing_that_is_not_finite(publisher: Make) -> None:
    publish = publisher(settings=PublishSettings(tiling=SMALL, nonfinite=NonFinite.REFUSE))
    good = np.ones(8, np.float32)
    bad = np.array([1, np.nan, 1, np.inf, 1, 1, 1, 1], np.float32)
    with pytest.raises(NonFiniteWeights, match="w has 2 NaN or Inf"):
        publish.publish({"w": bad})
    assert publish.head is None
    publish.publish({"w": good})
    with pytest.raises(NonFiniteWeights, match="nothing was published"):
        publish.publish({"w": bad})
    assert 2 == publish.publish({"w": good * 2}).version


def test_a_state_dict_of_torch_tensors_keeps_its_bits(publisher: Make, store: MemoryStore, reading: Any) -> None:
    torch.manual_seed(0)
    state = {
        "bf16": torch.randn(5, 7).to(torch.bfloat16),
        "fp8": torch.randn(4, 8).to(torch.float8_e4m3fn),
        "flags": torch.tensor([True, False]),
        "count": torch.tensor(7),
        "strided": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),
    }
    publish = publisher()
    publish.publish(state)
    state["count"] = torch.tensor(8)
    version = publish.publish(state).version
    found = reading.units(store, version)
    assert np.array_equal(state["bf16"].view(torch.uint16).numpy().reshape(-1), found["bf16"])
    assert np.array_equal(state["fp8"].view(torch.uint8).numpy().reshape(-1), found["fp8"])
    assert [1, 0] == found["flags"].tolist()
    assert [8] == found["count"].tolist()
    assert np.array_equal(state["strided"].contiguous().numpy().reshape(-1).view(np.uint32), found["strided"])


def test_one_storage_under_two_names_is_one_tensor(publisher: Make) -> None:
    embedding = torch.nn.Embedding(8, 4)
    head = torch.nn.Linear(4, 8, bias=False)
    head.weight = embedding.weight
    publish = publisher()
    publish.publish({"lm_head.weight": head.weight, "model.embed_tokens.weight": embedding.weight})
    manifest = publish.publish({"lm_head.weight": head.weight, "model.embed_tokens.weight": embedding.weight}).manifest
    (spec,) = publish.reader.table(manifest).tensors
    assert ("model.embed_tokens.weight", ["lm_head.weight"]) == (spec.name, spec.aliases)


def test_views_of_one_storage_that_differ_are_tensors_of_their_own(publisher: Make) -> None:
    whole = torch.arange(8, dtype=torch.float32)
    publish = publisher()
    manifest = publish.publish({"low": whole[:4], "high": whole[4:], "square": whole[:4].reshape(2, 2)}).manifest
    assert ["high", "low", "square"] == [t.name for t in publish.reader.table(manifest).tensors]


def test_weights_tied_in_the_config_must_have_equal_bits(
    publisher: Make, checkpoint_folder: Any, tmp_path: Path
) -> None:
    one, other = np.ones((4, 2), np.float32), np.zeros((4, 2), np.float32)
    files = {"config.json": json.dumps({"tie_word_embeddings": True}).encode()}
    publish = publisher(files=files)
    with pytest.raises(TiedWeightsDiffer, match="lm_head"):
        publish.publish({"model.embed_tokens.weight": one, "lm_head.weight": other})
    manifest = publish.publish({"model.embed_tokens.weight": one, "lm_head.weight": one.copy()}).manifest
    assert ["model.embed_tokens.weight"] == [t.name for t in publish.reader.table(manifest).tensors]
    bits = {
        n: Bits("F32", a.shape, a.reshape(-1).view(np.uint32))
        for n, a in (("embed_tokens.weight", one), ("lm_head.weight", other))
    }
    folder = checkpoint_folder(tmp_path / "c", bits, files={"config.json": '{"tie_word_embeddings": true}'})
    with pytest.raises(TiedWeightsDiffer, match="lm_head"):
        publish.publish(folder)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("disk", [None, "state"])
def test_a_folder_is_published_with_its_configuration(
    publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any, checkpoint_folder: Any, tmp_path: Path,
    shards: int, disk: str | None,
) -> None:  # fmt: skip
    publish, source = publisher(disk=disk), trainer()
    files = {"config.json": '{"model_type": "tiny"}', "tokenizer.json": "{}", "trainer_state.json": "{}"}
    first = publish.publish(checkpoint_folder(tmp_path / "one", source.weights, shards=shards, files=files))
    second = publish.publish(checkpoint_folder(tmp_path / "two", source.step(), shards=shards, files=files))
    assert first.manifest.anchor is not None
    assert {"config.json", "tokenizer.json", "model.safetensors"} == {f.name for f in first.manifest.anchor.files}
    assert (2, 1) == (second.version, second.manifest.base)
    assert same_bits(source.weights, reading.units(store, 2))
    with WeightFolder.open(tmp_path / "readings" / "read-1") as folder:
        assert {"config.json", "tokenizer.json"} == {p.name for p in folder.companions()}


def test_what_is_no_tensor_is_refused_by_name(publisher: Make) -> None:
    for value in (
        3,
        np.array(["text"]),
        Bits("BF16", (3,), np.zeros(4, np.uint16)),
        torch.zeros(2, dtype=torch.complex128),
    ):
        with pytest.raises(LayoutRefused, match="odd"):
            publisher().publish({"odd": value})


def test_a_parent_may_be_any_version_and_the_base_stays_head(
    publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    publish, source = publisher(), trainer()
    publish.publish(source.weights)
    early = source.step()
    publish.publish(early)
    for _ in range(2):
        publish.publish(source.step())
    back = publish.publish(early, step=2, parent=2).manifest
    assert (5, 2, 4) == (back.version, back.parent, back.base)
    assert same_bits(early, reading.units(store, 5))
    with pytest.raises(Rejected, match="parent 9"):
        publish.publish(early, parent=9)


@pytest.mark.parametrize("disk", [None, "state"])
def test_a_restart_takes_the_next_epoch_as_an_empty_version_and_goes_on(
    publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any, disk: str | None
) -> None:
    source = trainer()
    first = publisher(disk=disk)
    first.publish(source.weights, step=1)
    first.publish(source.step(), step=2)
    second = publisher(disk=disk)
    second.open()
    taken = second.head
    assert taken is not None
    assert (3, 2, 2, 2, 2, []) == (taken.version, taken.epoch, taken.base, taken.parent, taken.step, taken.chunks)
    manifest = second.publish(source.step(), step=3).manifest
    assert (4, 2, 3) == (manifest.version, manifest.epoch, manifest.base)
    assert same_bits(source.weights, reading.units(store, 4))


def test_a_state_directory_of_another_lineage_is_refused_by_name(publisher: Make, trainer: Any, clock: Any) -> None:
    publisher(disk="state").publish(trainer().weights)
    other = MemoryStore(clock)
    publisher(on=other).publish(trainer().weights)
    with pytest.raises(LineageChanged, match="the run name was reused"):
        publisher(on=other, disk="state").open()


def test_a_run_that_was_created_again_stops_its_old_writer(publisher: Make, trainer: Any, store: MemoryStore) -> None:
    old, source = publisher(), trainer()
    old.publish(source.weights)
    for info in list(store.list_after("run/")):
        store.delete(info.key)
    with pytest.raises(LineageChanged, match=r"run\.json is gone"):
        old.publish(source.step())
    publisher().publish(source.weights)
    with pytest.raises(LineageChanged, match="the run name was reused"):
        old.publish(source.step())


def test_a_full_digest_now_and_then_finds_a_base_that_lost_a_bit(
    publisher: Make, trainer: Any, store: MemoryStore, reading: Any, same_bits: Any
) -> None:
    source, base = trainer(), MemoryBase()
    publish = Publisher(
        store,
        "run",
        base=base,
        settings=PublishSettings(tiling=SMALL, verify_every=2),
        random=random.Random(5),
    )
    publish.publish(source.weights)
    publish.publish(source.step())
    base.units(4)[7] ^= np.uint16(1)
    with pytest.raises(DigestMismatch, match=r"e\.embed"):
        publish.publish(source.step())
    version = publish.publish(source.weights).version
    assert same_bits(source.weights, reading.units(store, version))


def test_a_version_of_other_than_one_digest_a_tensor_is_no_base(publisher: Make, trainer: Any) -> None:
    source, base = trainer(), MemoryBase()
    publish = publisher()
    manifest = publish.publish(source.weights).manifest
    weights = mapping_weights(source.weights, files={})
    base.replace(publish.reader, manifest, weights)
    assert manifest == base.manifest
    odd = manifest.model_copy(update={"tensor_digests": pack_digests(manifest.digests()[:-1])})
    with pytest.raises(FormatInvalid, match="has 9 tensor digests for 10 tensors"):
        base.replace(publish.reader, odd, weights)
    assert base.manifest is None
