"""Weights and remarks that a careless trainer hands in: published as they are, or refused by name before anything is
stored. Never published as something else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch.testing._internal.two_tensor import TwoTensor

from syncline.chain import ChainReader
from syncline.errors import LayoutRefused, Rejected, SourceInvalid, SourceNotReady
from syncline.store.local import LocalStore
from syncline.store.memory import MemoryStore
from syncline.wire.tensors import TensorTable
from syncline_distributor import Bits, Publisher

Make = Callable[..., Publisher]
UNITS = np.arange(4, dtype=np.uint16)


def freed() -> torch.Tensor:
    """A parameter whose memory was given back, as sharded training does between steps."""
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (dict, "no tensors"),
        (lambda: {"__metadata__": UNITS}, "__metadata__"),
        (lambda: {7: UNITS}, "name is a string"),
        (lambda: {"": UNITS}, "^a tensor has an empty name; give it one$"),
        (lambda: {"\ud800": UNITS}, "cannot be published"),
        (lambda: {"w": UNITS.astype(">u2")}, ">u2"),
        (lambda: {"w": Bits("BF16", (4,), UNITS.astype(">u2"))}, "big-endian"),
        (lambda: {"w": [1, 2]}, "w is a list, .* make it one, or leave it out$"),
        (lambda: {"model": {"w": torch.ones(4)}}, r"model is a dict, .*; pass model.state_dict\(\), flat"),
        (lambda: {"w": torch.eye(4).to_sparse()}, r"laid out as torch.sparse_coo, .*; call .to_dense\(\)"),
        (lambda: {"w": torch.ones(4, dtype=torch.complex128)}, "complex128 has no safetensors dtype; convert it"),
        (lambda: {"w": torch.ones(4, device="meta")}, "no memory behind it"),
        (lambda: {"w": freed(), "x": freed()}, "no memory behind it"),
        (lambda: {"w": TwoTensor(torch.ones(4), torch.zeros(4))}, "no plain tensor"),
        (lambda: {"w": torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)}, "no plain tensor"),
    ],
)
def test_what_is_no_set_of_weights_is_refused_by_name(
    publisher: Make, store: MemoryStore, weights: Callable[[], Any], said: str
) -> None:
    publish = publisher()
    publish.open()
    before = {i.key for i in store.list_after("")}
    with pytest.raises(LayoutRefused, match=said):
        publish.publish(weights())
    assert before == {i.key for i in store.list_after("")}


@pytest.mark.parametrize(
    ("weights", "error", "said"),
    [
        (lambda _: torch.nn.Linear(2, 2), LayoutRefused, r"handed a Linear; pass module.state_dict\(\)"),
        (str, LayoutRefused, r"handed a str; pass a folder as pathlib.Path\(folder\)"),
        (lambda _: [torch.ones(2)], LayoutRefused, "handed a list; pass a state dict"),
        (lambda folder: folder / "nope", SourceInvalid, r"nope does not exist; pass the folder of one checkpoint"),
        (lambda folder: folder / "a-file", SourceInvalid, r"a-file is a file; pass the folder of one checkpoint"),
        (
            lambda folder: folder / "runs",
            SourceInvalid,
            r"but folders that do: .*checkpoint-1, .*checkpoint-2/actor; pass",
        ),
        (lambda folder: folder / "pickled", SourceInvalid, "pytorch_model-00001-of-00002.bin, which is no safetensors"),
    ],
    ids=["module", "text", "list", "missing", "file", "parent", "pickled"],
)
def test_what_is_no_kind_of_weights_is_refused_with_what_to_pass_and_creates_no_run(
    publisher: Make, trainer: Any, checkpoint_folder: Any, store: MemoryStore, tmp_path: Path,
    weights: Callable[[Path], Any], error: type[Exception], said: str,
) -> None:  # fmt: skip
    (tmp_path / "a-file").write_text("x")
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "pytorch_model-00001-of-00002.bin").write_bytes(b"x")
    checkpoint_folder(tmp_path / "runs" / "checkpoint-1", trainer().weights)
    checkpoint_folder(tmp_path / "runs" / "checkpoint-2" / "actor", trainer().weights)
    with pytest.raises(error, match=said):
        publisher().publish(weights(tmp_path))
    assert [] == list(store.list_after(""))


def test_a_folder_that_is_still_being_written_is_not_refused_for_good(publisher: Make, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SourceNotReady, match=r"no .safetensors file yet"):
        publisher().publish(tmp_path)


@pytest.mark.parametrize("files", [None, {"config.json": b"{}"}])
def test_weights_without_their_configuration_are_warned_of_once(
    publisher: Make, trainer: Any, files: dict[str, bytes] | None
) -> None:
    source, publish = trainer(), publisher(files=files)
    with capture_logs() as said:
        for _ in range(3):
            publish.publish(source.step())
    warnings = [line["event"] for line in said if line["log_level"] == "warning"]
    assert [files is None] * len(warnings) == ["Publisher(files=...)" in w for w in warnings]
    assert (files is None) == (1 == len(warnings))


def test_what_publish_gives_back_is_shown_in_a_line(publisher: Make, trainer: Any) -> None:
    source, publish = trainer(), publisher()
    shown = [repr(publish.publish(source.step(), step=step)) for step in (7, 8)]
    size = sum(bits.units.nbytes for bits in source.weights.values())
    assert shown[0].startswith(f"Published(version=1, step=7, all weights, {size} bytes, ")
    assert shown[1].startswith("Published(version=2, step=8, ") and " units changed, " in shown[1]
    assert max(map(len, shown)) < 120


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1 + 2j, 3 + 4j]).conj(),
        torch.tensor([1 + 2j, 3 + 4j]).conj().imag,
        torch.arange(6.0).reshape(2, 3).t(),
        torch.ones(1).expand(5),
        torch.arange(8.0)[2:6],
        torch.nn.Parameter(torch.tensor(3.0)),
    ],
    ids=["conjugated", "negated", "transposed", "expanded", "sliced", "parameter"],
)
def test_a_view_is_published_as_what_it_shows(
    publisher: Make, store: MemoryStore, reading: Any, tensor: torch.Tensor
) -> None:
    publisher().publish({"w": tensor})
    shown = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
    assert shown.tobytes() == reading.units(store, 1)["w"].tobytes()


def test_two_dtypes_over_one_memory_are_not_tied(publisher: Make, store: MemoryStore, reading: Any) -> None:
    memory = torch.zeros(4, dtype=torch.uint8)
    publish = publisher()
    publish.publish({"e4m3": memory.view(torch.float8_e4m3fn), "e5m2": memory.view(torch.float8_e5m2)})
    table = publish.reader.table(publish.reader.manifest(1))
    assert [("e4m3", "F8_E4M3", []), ("e5m2", "F8_E5M2", [])] == [(t.name, t.dtype, t.aliases) for t in table.tensors]
    assert {"e4m3", "e5m2"} == reading.units(store, 1).keys()


@pytest.mark.parametrize(
    "remarks",
    [
        {"step": -1},
        {"step": 1 << 60},
        {"step": 1.5},
        {"parent": "1"},
        {"labels": {"a": 5}},
        {"labels": {"a" * 65: "x"}},
        {"labels": {"a": "x" * 257}},
        {"labels": {"a": "\udcff"}},
    ],
)
def test_remarks_that_no_manifest_holds_are_refused_before_anything_is_stored(
    publisher: Make, trainer: Any, store: MemoryStore, remarks: dict[str, Any]
) -> None:
    publish, source = publisher(), trainer()
    publish.publish(source.weights)
    before = {i.key for i in store.list_after("")}
    with pytest.raises(Rejected):
        publish.publish(source.step(), **remarks)
    assert before == {i.key for i in store.list_after("")}


def test_a_step_may_be_any_kind_of_whole_number(publisher: Make, trainer: Any) -> None:
    publish, source = publisher(), trainer()
    steps = [publish.publish(source.step(), step=n).manifest.step for n in (np.int64(5), torch.tensor(6))]  # type: ignore[arg-type]
    assert [5, 6] == steps


@pytest.mark.parametrize(("bound", "most"), [("bytes", 3000), ("tensors", 49)])
@pytest.mark.parametrize("form", ["mapping", "folder"])
def test_more_tensors_than_a_table_holds_are_refused_before_anything_is_stored(
    publisher: Make,
    store: MemoryStore,
    checkpoint_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    bound: str,
    most: int,
) -> None:
    weights: Any = {f"model.layers.{n}.weight": Bits("BF16", (4,), UNITS.copy()) for n in range(50)}
    if form == "folder":
        weights = checkpoint_folder(tmp_path / "checkpoint", weights)
    if bound == "bytes":
        monkeypatch.setattr(TensorTable, "max_bytes", most)
    else:
        monkeypatch.setattr("syncline.wire.tensors.TENSORS_MAX", most)
    with pytest.raises(LayoutRefused, match=rf"50 tensors .*{most}.*stack small tensors"):
        publisher().publish(weights)
    assert [] == [i.key for i in store.list_after("run/main/")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Path("nothere") / "config.json", "does not exist; give a path that is there, or leave config.json out"),
        (Path("/"), "/ is no file"),
        ("config.json", "is a str; give the file's bytes, or its path as pathlib.Path"),
    ],
    ids=["missing", "folder", "text"],
)
def test_a_file_that_is_to_go_beside_the_weights_and_is_not_there_costs_no_run(
    publisher: Make, store: MemoryStore, given: Any, said: str
) -> None:
    with pytest.raises(SourceInvalid, match=r"^files\['config.json'\]") as refused:
        publisher(files={"config.json": given}).open()
    assert said in str(refused.value)
    assert [] == list(store.list_after(""))


@pytest.mark.parametrize("kind", [str, Path])
def test_a_store_may_be_named_by_its_folder(tmp_path: Path, kind: type) -> None:
    assert 1 == Publisher(kind(tmp_path / "store"), "run").publish({"w": UNITS}).version
    assert [1] == ChainReader(LocalStore(tmp_path / "store"), "run").versions()
