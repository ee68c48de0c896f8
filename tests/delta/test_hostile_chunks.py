"""Chunks that are well formed and wrong: refused with the chunk's name, before anything is decoded."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import Executor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.delta import CodecChoice, Delta, DeltaEncoder, stage_tensor
from syncline.errors import Corrupt, FormatInvalid
from syncline.wire.chunk import Chunk, CodecTable, EncodedFrame, Frames, Section, pack
from syncline.wire.limits import CODEC_CONTEXT, CODEC_RAW, CODEC_SPARSE, CODEC_XOR_ZSTD
from syncline.wire.records import ChunkRef
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline.wire.tiling import Tiling

TILING = Tiling(min_units=16, max_units=128, ways=4)
TABLE = TensorTable(
    tensors=[
        TensorSpec(name="a", dtype="BF16", shape=[32, 32], axis=0),
        TensorSpec(name="b", dtype="BF16", shape=[0], axis=0),
        TensorSpec(name="c", dtype="BF16", shape=[16, 40], axis=1),
    ]
)


def chunk(*sections: Section) -> bytes:
    return pack(Chunk(bytes(16), sections))


def section(tensor: int, *frames: tuple[int, int], codec: int = CODEC_RAW, params: bytes = b"") -> Section:
    return Section(tensor, codec, Frames.of([EncodedFrame(index, changed, b"x") for index, changed in frames]), params)


def tabled(codec: int) -> bytes:
    return pack(Chunk(bytes(16), [section(0, (0, 1))], [CodecTable(codec, b"t")]))


def parse(*chunks: bytes, executor: Executor | None = None) -> Delta:
    return Delta.parse(TABLE, TILING, [(f"c{n}", data) for n, data in enumerate(chunks)], executor=executor)


FRAMES_OF_A = TABLE.tensors[0].grid(TILING).count

# (what is wrong, the chunks, words of the message)
REFUSED = [
    ("a tensor behind the table", [chunk(section(3, (0, 1)))], "chunk c0 names tensor 3 of 3"),
    ("a frame behind the grid", [chunk(section(0, (FRAMES_OF_A, 1)))], f"frame {FRAMES_OF_A} is outside"),
    ("a frame of an empty tensor", [chunk(section(1, (0, 1)))], "frame 0 is outside"),
    ("more changes than units", [chunk(section(0, (0, 129)))], "frame 0 of a changes more units"),
    ("a frame twice, two chunks", [chunk(section(0, (1, 1)))] * 2, "chunk c1 has frame 1 of a a second time"),
    ("an unknown codec", [chunk(section(0, (0, 1), codec=99))], r"codec 99 \(unknown\)"),
    (
        "context without parameters",
        [chunk(section(0, (0, 1), codec=CODEC_CONTEXT))],
        "codec context with parameters ''",
    ),
    (
        "context without its table",
        [chunk(section(0, (0, 1), codec=CODEC_CONTEXT, params=bytes([0, 15])))],
        "table 0 of 0",
    ),
    (
        "context with a lane shift out of bounds",
        [chunk(section(0, (0, 1), codec=CODEC_CONTEXT, params=bytes([0, 31])))],
        "lane shift 31",
    ),
    (
        "parameters for a codec without",
        [chunk(section(0, (0, 1), params=b"p"))],
        r"chunk c0 has parameters for codec 1 \(raw\)",
    ),
    ("a table for a codec without", [tabled(CODEC_SPARSE)], r"chunk c0 has a table for codec 2 \(sparse\)"),
    ("a truncated chunk", [chunk(section(0, (0, 1)))[:-1]], "chunk c0 is truncated"),
    ("another kind of file", [b"PK\3\4" * 20], "chunk c0 does not start"),
]


@pytest.mark.parametrize(("what", "chunks", "message"), REFUSED, ids=[what for what, *_ in REFUSED])
def test_a_delta_is_refused_for(what: str, chunks: list[bytes], message: str, executor: Executor | None) -> None:
    with pytest.raises(FormatInvalid, match=message):
        parse(*chunks, executor=executor)


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 1), (2, 2), (1, 2)])
def test_a_chunk_of_other_tensors_than_its_manifest_says_is_refused(first: int, last: int) -> None:
    data = chunk(section(0, (0, 1)), section(2, (0, 1)))
    ref = ChunkRef(blake3="0" * 64, size=len(data), first_tensor=0, last_tensor=2)
    assert [0, 2] == list(Delta.parse(TABLE, TILING, [(ref, data)]).tensors)
    wrong = ref.model_copy(update={"first_tensor": first, "last_tensor": last})
    with pytest.raises(FormatInvalid, match=f"holds tensors 0 to 2, its manifest says {first} to {last}"):
        Delta.parse(TABLE, TILING, [(wrong, data)])


def test_a_chunk_of_nothing_is_refused_where_its_manifest_says_what_is_in_it() -> None:
    ref = ChunkRef(blake3="0" * 64, size=1, first_tensor=0, last_tensor=0)
    with pytest.raises(FormatInvalid, match="holds no tensor"):
        Delta.parse(TABLE, TILING, [(ref, chunk())])


@pytest.mark.parametrize("sections", ["one long", "many short", "one tensor again and again"])
def test_a_chunk_becomes_no_more_memory_than_the_table_has_frames_for(sections: str) -> None:
    # Nine bytes of a directory would be several hundred as objects.
    many = 50_000
    match sections:
        case "one long":
            hostile = chunk(section(0, *((n, 1) for n in range(many))))
        case "many short":
            hostile = chunk(*(section(n, (0, 1)) for n in range(many)))
        case _:
            again = chunk(*(section(n, (0, 1)) for n in range(many)))
            # Tensor numbers are written as differences; byte for byte the same sections, each of tensor 0.
            hostile = again.replace(bytes([1, CODEC_RAW, 0, 1]), bytes([0, CODEC_RAW, 0, 1]))
    assert len(hostile) > 8 * many
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            parse(hostile)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(hostile) + 100_000


@pytest.mark.parametrize("units", [1 << 40, 1 << 53])
def test_a_frame_that_changes_too_much_becomes_no_more_memory_whatever_size_its_table_says(units: int) -> None:
    table = TensorTable(tensors=[TensorSpec(name="vast", dtype="BF16", shape=[units - 1], axis=0)])
    last = table.tensors[0].grid(Tiling()).count - 1
    tracemalloc.start()
    try:
        with pytest.raises(FormatInvalid, match="frame 0 of vast changes more units"):
            Delta.parse(table, Tiling(), [("c0", chunk(section(0, (0, 1 << 20), (last, 1 << 20))))])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_frame_twice_in_one_chunk_cannot_be_written_or_read() -> None:
    with pytest.raises(ValueError, match="out of order"):
        chunk(section(0, (1, 1), (1, 1)))
    with pytest.raises(FormatInvalid, match="out of order"):
        parse(chunk(section(0, (1, 1)), section(0, (1, 1), codec=CODEC_SPARSE)))


def test_frames_of_one_tensor_may_come_under_several_codecs_and_chunks() -> None:
    delta = parse(
        chunk(section(0, (0, 1)), section(0, (3, 2), codec=CODEC_SPARSE)),
        chunk(section(0, (4, 1), codec=CODEC_XOR_ZSTD)),
    )
    assert {0: "raw", 3: "sparse", 4: "xor-zstd"} == {i: c.codec.name for i, c in delta.frames(0).items()}
    assert {} == delta.frames(2)


def encoded() -> tuple[list[np.ndarray], bytes]:
    random = np.random.default_rng(0)
    old = [np.frombuffer(random.bytes(t.size_bytes), np.uint16) for t in TABLE.tensors]
    chunks: list[bytes] = []
    encoder = DeltaEncoder(
        TABLE, TILING, nonce=lambda: bytes(16), sink=lambda _, d: chunks.append(d), choice=CodecChoice(forced="sparse")
    )
    for tensor, flat in enumerate(old):
        encoder.add(tensor, flat, flat ^ (random.random(flat.size) < 0.1))
    encoder.finish()
    return old, chunks[0]


OLD, GOOD = encoded()


@given(at=st.integers(0, len(GOOD) - 1), flip=st.integers(1, 255))
def test_a_spoiled_byte_is_corrupt_or_changes_nothing_that_is_read(at: int, flip: int) -> None:
    spoiled = bytearray(GOOD)
    spoiled[at] ^= flip
    live = [flat.copy() for flat in OLD]
    try:
        delta = parse(bytes(spoiled))
        staged = [stage_tensor(TABLE, TILING, t, live[t], [delta]) for t in delta.tensors]
    except Corrupt:
        pass
    else:
        good = parse(GOOD)
        expected = [stage_tensor(TABLE, TILING, t, live[t], [good]) for t in good.tensors]
        assert 8 <= at < 24  # the nonce: nothing is read from it; chunks are named by the hash of their bytes
        assert [s.digest_change for s in expected] == [s.digest_change for s in staged]
    assert all(np.array_equal(a, b) for a, b in zip(OLD, live, strict=True))
