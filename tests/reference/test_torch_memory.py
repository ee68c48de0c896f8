"""Torch weights as an arm's memory: the same bits, shared where the host can see them, and refused where they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from syncline.errors import LayoutRefused
from syncline.testing.tables import TILING
from syncline.testing.weight_run import WeightRun
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.arm.live import LiveWeights
from syncline_agent.engine import DeltaFiles, StageRequest
from syncline_agent.reference.torch_memory import memory_of

TORCH = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "BOOL": torch.bool,
    "I64": torch.int64,
}
TABLE = TensorTable(
    tensors=[
        TensorSpec(name="a.down_proj.weight", dtype="BF16", shape=[33, 64], axis=1, aliases=["z.tied"]),
        TensorSpec(name="b", dtype="F8_E4M3", shape=[300], axis=0),
        TensorSpec(name="c", dtype="I64", shape=[70], axis=0),
        TensorSpec(name="d", dtype="F32", shape=[], axis=0),
        TensorSpec(name="e", dtype="BOOL", shape=[9], axis=0),
    ]
)


@pytest.fixture
def run(tmp_path: Path) -> WeightRun:
    draw = np.random.default_rng(2)
    first = {s.name: np.frombuffer(draw.bytes(s.size_bytes), f"<u{s.unit_bytes}").copy() for s in TABLE.tensors}
    first["e"] &= 1
    run = WeightRun(tmp_path / "node", TABLE, first)
    run.step()
    run.step()
    return run


def tensors(run: WeightRun, version: int) -> dict[str, torch.Tensor]:
    held: dict[str, torch.Tensor] = {}
    for spec in TABLE.tensors:
        raw = torch.frombuffer(bytearray(run.weights(version)[spec.name].tobytes()), dtype=torch.uint8)
        held[spec.name] = raw.view(TORCH[spec.dtype]).view(spec.shape)
    held["z.tied"] = held["a.down_proj.weight"]
    return held


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_a_commit_changes_the_very_tensors_and_an_undo_changes_them_back(run: WeightRun) -> None:
    held = tensors(run, 1)
    live = LiveWeights(TABLE, TILING.tiling, memory_of(TABLE, TILING.tiling, held))
    live.prove(run.lineage, "main", 1, run.digest(1))
    live.stage(
        StageRequest(
            run.lineage,
            "main",
            1,
            run.digest(1),
            3,
            run.digest(3),
            run.table_file,
            run.tiling.tiling,
            [DeltaFiles(v, run.digest(v), run.delta(v - 1, v)) for v in (2, 3)],
        )
    )
    live.ready(3)
    live.scatter(3)
    live.confirm(3)
    assert {s.name: run.weights(3)[s.name].tobytes() for s in TABLE.tensors} == {
        s.name: bits(held[s.name]) for s in TABLE.tensors
    }
    assert live.sweep(slice_units=100).proven
    held["b"].view(torch.uint8)[7] ^= 1
    with pytest.raises(Exception, match="live bits of b"):
        live.sweep(slice_units=100)
    held["b"].view(torch.uint8)[7] ^= 1
    live.ready_undo(1)
    live.scatter(1)
    live.confirm(1)
    assert live.sweep().proven
    assert run.weights(1)["c"].tobytes() == bits(held["c"])


def test_a_read_back_reads_the_tensor_itself(run: WeightRun) -> None:
    held = tensors(run, 1)
    memory = memory_of(TABLE, TILING.tiling, held)
    live = LiveWeights(TABLE, TILING.tiling, memory)
    live.prove(run.lineage, "main", 1, run.digest(1))
    place = int(np.flatnonzero(run.weights(1)["c"] != run.weights(2)["c"])[0])
    request = StageRequest(
        run.lineage,
        "main",
        1,
        run.digest(1),
        2,
        run.digest(2),
        run.table_file,
        run.tiling.tiling,
        [DeltaFiles(2, run.digest(2), run.delta(1, 2))],
    )
    live.stage(request)
    live.ready(2)
    live.scatter(2)
    held["c"][place] ^= 4
    with pytest.raises(Exception, match="reads back wrong in c"):
        live.confirm(2)


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [
        ("b", None, "no tensor b"),
        ("d", lambda t: t.double(), r"d is torch\.float64"),
        ("a.down_proj.weight", lambda t: t.view(64, 33), r"\[64, 33\]"),
        ("a.down_proj.weight", lambda t: t.t().contiguous().t(), "a.down_proj.weight"),
        ("z.tied", lambda t: t.clone(), "a second time"),
        ("new", lambda _: torch.zeros(1), "a tensor new"),
    ],
)
def test_weights_that_are_not_the_table_s_are_refused_by_name(
    run: WeightRun, name: str, make: Callable[[torch.Tensor], torch.Tensor] | None, says: str
) -> None:
    held = tensors(run, 1)
    if make is None:
        del held[name]
    else:
        held[name] = make(held.get(name, torch.zeros(0)))
    with pytest.raises(LayoutRefused, match=says):
        memory_of(TABLE, TILING.tiling, held)
