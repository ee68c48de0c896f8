"""Records have one encoding and carry their own check."""

from __future__ import annotations

import pytest

from syncline.errors import FormatInvalid
from syncline.wire.records import HeadRecord, RunRecord, TilingPart

RUN = RunRecord(
    run="r",
    lineage="0123456789abcdef" * 2,
    created_ms=1,
    tiling=TilingPart(min_units=32768, max_units=1048576, ways=16),
)


def test_a_record_reads_back() -> None:
    assert RUN == RunRecord.parse(RUN.encode(), what="run.json")


def test_every_flipped_bit_of_a_record_is_refused() -> None:
    data = RUN.encode()
    for at in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            with pytest.raises(FormatInvalid, match=r"run\.json"):
                RunRecord.parse(bytes(broken), what="run.json")


def test_a_digit_that_still_makes_a_valid_record_is_named_as_a_failed_check() -> None:
    data = HeadRecord(lineage="0" * 32, version=7, epoch=1).encode()
    with pytest.raises(FormatInvalid, match="does not match its own check"):
        HeadRecord.parse(data.replace(b'"version":7', b'"version":3'), what="head")


def test_a_missing_or_unknown_field_is_refused() -> None:
    data = HeadRecord(lineage="0" * 32, version=7, epoch=1).encode()
    with pytest.raises(FormatInvalid, match="head"):
        HeadRecord.parse(data.replace(b'"version":7', b'"versjon":7'), what="head")
    with pytest.raises(FormatInvalid, match=r"canonical|fields|Extra"):
        HeadRecord.parse(data.replace(b'"kind"', b'"jind":1,"kind"'), what="head")
