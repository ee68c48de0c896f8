"""Chunks round-trip; garbage either parses or raises Corrupt, never anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import Corrupt, FormatInvalid, FrameCorrupt
from syncline.wire.chunk import HEADER, Chunk, CodecTable, EncodedFrame, Frames, Section, pack, parse, read_chunk

NONCE = bytes(range(16))


def example() -> Chunk:
    return Chunk(
        NONCE,
        [
            Section(3, 1, Frames.of([EncodedFrame(0, 5, b"abc"), EncodedFrame(4, 7, b"")])),
            Section(3, 2, Frames.of([EncodedFrame(5, 1, b"x" * 300)]), params=b"\x01"),
            Section(900_000, 4, Frames.of([EncodedFrame(1 << 33, 1 << 20, b"defg")])),
        ],
        [CodecTable(5, b"table")],
    )


def plain(chunk: Chunk) -> object:
    sections = [
        (s.tensor, s.codec, s.params, [(f.index, f.changed, bytes(f.payload)) for f in s.frames])
        for s in chunk.sections
    ]
    return chunk.nonce, sections, [(t.codec, bytes(t.data)) for t in chunk.tables]


frames = st.lists(
    st.tuples(st.integers(0, 1 << 34), st.integers(1, 1 << 20), st.binary(max_size=40)), min_size=1, max_size=5
)


@given(
    spec=st.lists(st.tuples(st.integers(0, 1 << 19), st.integers(0, 255), st.binary(max_size=64), frames), max_size=5),
    tables=st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=3),
)
def test_any_chunk_round_trips(spec: list, tables: list) -> None:  # type: ignore[type-arg]
    sections = []
    for tensor, codec, params, raw in sorted({s[0]: s for s in spec}.values(), key=lambda s: s[0]):
        by_index = {index: EncodedFrame(index, changed, payload) for index, changed, payload in raw}
        sections.append(Section(tensor, codec, Frames.of([by_index[i] for i in sorted(by_index)]), params))
    chunk = Chunk(NONCE, sections, [CodecTable(c, d) for c, d in tables])
    assert plain(chunk) == plain(parse(pack(chunk)))


def test_every_truncation_is_refused() -> None:
    data = pack(example())
    for length in range(len(data)):
        with pytest.raises(FormatInvalid):
            parse(data[:length])


def test_every_flipped_bit_outside_the_nonce_and_tables_is_refused_or_changes_no_frame() -> None:
    data = pack(example())
    table_at = len(data) - len(b"table") - 3 - 300 - 4
    unprotected = set(range(8, 24)) | set(range(table_at, table_at + 5))
    for at in set(range(len(data))) - unprotected:
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            try:
                parsed = parse(bytes(broken))
            except Corrupt:
                continue
            # params and a table's codec id are covered by the chunk's BLAKE3 only
            assert plain(example())[1] != plain(parsed)[1] or plain(example())[2] != plain(parsed)[2]  # type: ignore[index]


@given(garbage=st.binary(max_size=400))
def test_garbage_behind_a_valid_start_parses_or_raises_corrupt(garbage: bytes) -> None:
    header = HEADER.pack(b"SLCH", 1, 0, NONCE, 2, 1, min(len(garbage), 60))
    try:
        parse(header + garbage)
    except Corrupt:
        pass


@given(garbage=st.binary(max_size=100))
def test_garbage_parses_or_raises_corrupt(garbage: bytes) -> None:
    try:
        parse(garbage)
    except Corrupt:
        pass


def test_a_payload_that_was_exchanged_for_its_neighbour_is_found() -> None:
    chunk = Chunk(NONCE, [Section(0, 1, Frames.of([EncodedFrame(0, 1, b"one"), EncodedFrame(1, 1, b"two")]))])
    with pytest.raises(FrameCorrupt, match="frame 0 of tensor 0"):
        parse(pack(chunk).replace(b"onetwo", b"twoone"))


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(FormatInvalid, match="format 2"):
        parse(HEADER.pack(b"SLCH", 2, 0, NONCE, 0, 0, 0))


def test_a_count_that_would_allocate_is_refused_by_the_bytes_that_back_it() -> None:
    with pytest.raises(FormatInvalid):
        parse(HEADER.pack(b"SLCH", 1, 0, NONCE, 0xFFFFFFFF, 0, 0))


def test_sections_out_of_order_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="out of order"):
        pack(
            Chunk(
                NONCE,
                [
                    Section(2, 1, Frames.of([EncodedFrame(0, 1, b"")])),
                    Section(1, 1, Frames.of([EncodedFrame(0, 1, b"")])),
                ],
            )
        )


@given(frames, st.data())
def test_frames_as_columns_are_the_frames(raw: list, data: st.DataObject) -> None:  # type: ignore[type-arg]
    each = [EncodedFrame(*own) for own in raw]
    columns = Frames.of(each)
    assert len(each) == len(columns)
    assert each == list(columns)
    low, high = sorted(data.draw(st.tuples(st.integers(0, len(each)), st.integers(0, len(each)))))
    assert each[low:high] == list(columns.part(low, high))


def test_frames_that_are_not_as_long_as_their_payloads_cannot_be_written() -> None:
    whole = Frames.of([EncodedFrame(0, 1, b"one"), EncodedFrame(1, 1, b"three")])
    longer = Frames(whole.indices, whole.changed, whole.sizes, memoryview(b"one, three"))
    with pytest.raises(ValueError, match="frames of tensor 7 are not as long as their payloads"):
        pack(Chunk(NONCE, [Section(7, 1, longer)]))


def test_what_another_writer_or_reader_leaves_is_done_by_the_plain_one() -> None:
    data = pack(example())
    assert data == pack(example(), write=lambda _: None)
    found = read_chunk(data, read=lambda _directory, _counts: None)
    assert plain(example()) == plain(Chunk(found.nonce, found.sections, found.tables))
