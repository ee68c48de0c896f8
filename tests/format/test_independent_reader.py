"""Weights that the real publisher wrote, read by a program that knows only FORMAT.md.

An error that writer and reader share cannot be seen from inside the library; here the two have no line in common.
"""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from syncline.clock import ManualClock
from syncline.delta import Delta
from syncline.errors import FormatInvalid
from syncline.kernels import reference
from syncline.store.local import LocalStore
from syncline.testing import grpo_a
from syncline.wire import dtypes
from syncline.wire.chunk import Chunk, CodecTable, EncodedFrame, Frames, Section, pack
from syncline.wire.digest import seeds
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling, grid
from syncline_distributor import Bits, Publisher

FOLDER = Path(__file__).resolve().parent
CODECS = ("raw", "sparse", "xor-zstd", "xor-lz4", "context")
DEFAULT = "context"
View = dict[str, NDArray[np.uint16]]


@pytest.fixture(scope="module")
def views() -> list[View]:
    """The real weights before training, after steps 1 and 2, and after step 16."""
    steps = grpo_a.steps()
    first = list(islice(steps, 2))
    last = first[-1]
    for view in steps:
        last = view
    return [grpo_a.base(), *first, last]


def publisher(folder: Path, seed: int = 0) -> Publisher:
    return Publisher(LocalStore(folder), "grpo-a", clock=ManualClock(), random=random.Random(seed))


def weights(view: View) -> dict[str, Bits]:
    return {name: Bits("BF16", bits.shape, bits.reshape(-1)) for name, bits in view.items()}


def stored(path: Path) -> dict[str, bytes]:
    """Every tensor of a safetensors file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    offsets = {name: entry["data_offsets"] for name, entry in json.loads(data[8:start]).items()}
    return {name: data[start + low : start + high] for name, (low, high) in offsets.items()}


def truth(view: View) -> dict[str, bytes]:
    return {name: bits.tobytes() for name, bits in view.items()}


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != DEFAULT])
def test_real_steps_read_back_bit_for_bit_through_each_codec(
    codec: str,
    views: list[View],
    tmp_path: Path,
    scripts: Callable[[str], ModuleType],
    reads: Callable[..., dict[str, Any]],
) -> None:
    store, out = tmp_path / "store", tmp_path / "out.safetensors"
    with scripts("make_golden").encoding_with(codec):
        publishing = publisher(store)
        published = [publishing.publish(weights(view)) for view in (views[0], views[1], views[3])]

    assert [[], [codec], [codec]] == [list(each.statistics.codecs) for each in published]
    told = reads(store, "grpo-a", out=out)
    assert ["anchor 1", "delta 1 to 2", "delta 2 to 3"] == told["path"]
    assert published[-1].manifest.digest == told["digest"]
    assert truth(views[3]) == stored(out)


def test_real_steps_read_back_where_every_chunk_mixes_codecs_and_two_writers_took_turns(
    views: list[View],
    tmp_path: Path,
    scripts: Callable[[str], ModuleType],
    reads: Callable[..., dict[str, Any]],
) -> None:
    store, out = tmp_path / "store", tmp_path / "out.safetensors"
    with scripts("make_golden").encoding_with(*CODECS):
        publisher(store).publish(weights(views[0]))
        second = publisher(store, seed=1)
        mixed = [second.publish(weights(view)) for view in views[1:]]

    assert [set(CODECS)] * 3 == [set(each.statistics.codecs) for each in mixed]
    for version, view in zip((1, 3, 5), (views[0], views[1], views[3]), strict=True):
        told = reads(store, "grpo-a", "--version", str(version), out=out)
        assert version == told["version"]
        assert truth(view) == stored(out)


def test_real_steps_read_back_with_the_codecs_that_the_writer_chooses(
    views: list[View], tmp_path: Path, reads: Callable[..., dict[str, Any]]
) -> None:
    store, out = tmp_path / "store", tmp_path / "out.safetensors"
    publishing = publisher(store)
    published = [publishing.publish(weights(view)) for view in views[:3]]

    assert [[]] + [[DEFAULT]] * 2 == [list(each.statistics.codecs) for each in published]
    told = reads(store, "grpo-a", "--audit", out=out)
    assert 3 == told["version"] == told["objects"]["version"]
    assert truth(views[2]) == stored(out)


def test_a_layer_reads_back_after_all_sixteen_real_steps(tmp_path: Path, reads: Callable[..., dict[str, Any]]) -> None:
    """One of eight layers, and what stands outside of them: the whole model would take a minute."""
    store, out = tmp_path / "store", tmp_path / "out.safetensors"
    publishing = publisher(store)
    view: View = {}
    for view in chain([grpo_a.base()], grpo_a.steps()):
        view = {name: bits for name, bits in view.items() if ".layers." not in name or ".layers.3." in name}
        publishing.publish(weights(view))

    told = reads(store, "grpo-a", out=out)
    assert ["anchor 1", *(f"delta {base} to {base + 1}" for base in range(1, 17))] == told["path"]
    assert truth(view) == stored(out)


def test_the_reader_refuses_a_chunk_with_one_bit_flipped_and_names_it(
    views: list[View], tmp_path: Path, isolated: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    publishing = publisher(tmp_path / "store")
    publishing.publish(weights(views[0]))
    chunk = publishing.publish(weights(views[1])).manifest.chunks[0]
    key = f"grpo-a/main/chunks/{chunk.blake3}"
    path = tmp_path / "store" / key
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    done = isolated(FOLDER / "reader.py", tmp_path / "store", "grpo-a")
    assert 1 == done.returncode
    assert f"refused: {key}: has another BLAKE3 than the manifest says\n" == done.stderr


# --- that it is independent -------------------------------------------------------------------------------------------


def test_the_reader_s_python_cannot_import_syncline(
    isolated: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = isolated("-c", "import syncline")
    assert 1 == done.returncode
    assert "No module named 'syncline'" in done.stderr


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def test_the_reader_imports_four_packages_and_its_own_parts() -> None:
    parts = sorted(FOLDER.glob("reader*.py"))
    names = {name for part in parts for name in imported(part)} - sys.stdlib_module_names
    assert {"blake3", "lz4", "numpy", "zstandard"} == names - {part.stem for part in parts}


# --- what the store above cannot reach --------------------------------------------------------------------------------


@given(
    shape=st.lists(st.integers(0, 40), max_size=4),
    axis=st.integers(0, 3),
    dtype=st.sampled_from(sorted(dtypes.DTYPES)),
    sizes=st.tuples(st.integers(1, 40), st.integers(0, 300)),
    ways=st.sampled_from((1, 2, 4, 8, 16, 32, 64)),
)
def test_both_cut_a_tensor_into_the_same_frames(
    shape: list[int],
    axis: int,
    dtype: str,
    sizes: tuple[int, int],
    ways: int,
    scripts: Callable[[str], ModuleType],
) -> None:
    least, more = sizes
    most = 2 * least - 1 + more
    axis %= max(1, len(shape))
    bits = scripts("reader_bits")
    entry = {"name": "t", "dtype": dtype, "shape": shape, "axis": axis}
    tiling = {"min_units": least, "max_units": most, "ways": ways}
    try:
        units = dtypes.unit_shape(dtype, shape)
    except FormatInvalid:
        with pytest.raises(scripts("reader_records").Refused):
            bits.cut("table", entry, tiling)
        return
    theirs = bits.cut("table", entry, tiling)
    ours = grid(units, axis if len(units) == max(1, len(shape)) else 0, Tiling(least, most, ways))
    assert ours.count == theirs.bands * theirs.pieces
    cuts = [(frame.base, frame.stride, frame.length, frame.runs) for frame in map(ours.frame, range(ours.count))]
    assert cuts == [(*theirs.frame(index), theirs.outer) for index in range(ours.count)]
    covered = [
        base + run * stride + at for base, stride, length, runs in cuts for run in range(runs) for at in range(length)
    ]
    assert list(range(ours.units)) == sorted(covered)
    assert all(runs * length <= most for _, _, length, runs in cuts)


@given(
    name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    width=st.sampled_from((1, 2, 4, 8)),
    count=st.integers(0, 40),
    start=st.sampled_from((0, 1, 2**31 - 3, 2**32 - 5, 2**33 + 7, 2**52)),
    seed=st.integers(0, 2**32 - 1),
)
def test_both_digest_the_same_units_to_the_same_lanes_also_beyond_four_billion(
    name: str, width: int, count: int, start: int, seed: int, scripts: Callable[[str], ModuleType]
) -> None:
    data = random.Random(seed).randbytes(count * width)
    bits = scripts("reader_bits")
    first = start * (2 if width == 8 else 1)
    ours = reference.digest_units(np.frombuffer(data, f"<u{width}"), seeds(name), start=start).to_bytes()
    for by_word in (True, False):
        one, two = bits.digest(name, data, width, by_word, first)
        assert ours == one.to_bytes(8, "little") + two.to_bytes(8, "little")


@pytest.mark.parametrize("codec", [1, 4, 99], ids=["raw", "xor-lz4", "unknown"])
def test_both_refuse_a_chunk_with_a_table_of_a_codec_that_has_none(
    codec: int, scripts: Callable[[str], ModuleType]
) -> None:
    def both(tables: list[CodecTable]) -> Iterator[Callable[[], list[int]]]:
        data = pack(Chunk(bytes(16), [Section(0, 1, Frames.of([EncodedFrame(0, 1, b"\x01\x00")]))], tables))
        table = TensorTable(tensors=[TensorSpec(name="t", dtype="BF16", shape=[1], axis=0)])
        yield lambda: list(Delta.parse(table, Tiling(), [("c", data)]).tensors)
        yield lambda: [frame.tensor for frame in scripts("reader_chunks").chunk("c", data)]

    assert [[0], [0]] == [read() for read in both([])]
    for read, refusal in zip(
        both([CodecTable(codec, b"")]), (FormatInvalid, scripts("reader_records").Refused), strict=True
    ):
        with pytest.raises(refusal, match="table for codec"):
            read()
