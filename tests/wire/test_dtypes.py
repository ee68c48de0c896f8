"""A dtype or a shape that the format cannot hold is refused with what to store instead."""

from __future__ import annotations

import pytest

from syncline.errors import FormatInvalid
from syncline.wire.dtypes import unit_shape


@pytest.mark.parametrize(
    ("dtype", "shape", "said"),
    [
        ("I4", [8], r"dtype 'I4' is not one of BOOL, .*; store its bits as one of them, packed ones as U8$"),
        ("F4", [3, 3], r"F4 \[3, 3\] does not fill whole bytes; pad it to a multiple of 2 elements$"),
        ("F6_E3M2", [6], r"F6_E3M2 \[6\] does not fill whole bytes; pad it to a multiple of 4 elements$"),
        ("F4", [], "a 0-d F4 does not fill a byte; pad it to 2 elements$"),
    ],
)
def test_what_has_no_whole_units_is_refused_with_what_to_store(dtype: str, shape: list[int], said: str) -> None:
    with pytest.raises(FormatInvalid, match=said):
        unit_shape(dtype, shape)
