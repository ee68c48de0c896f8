"""Garbage is collected less often while a step is encoded, and as it was before once the last block ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from syncline_distributor.heap import SELDOM, seldom_collected


@pytest.fixture(autouse=True)
def found() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 9)
    yield
    gc.set_threshold(*before)


def test_the_last_block_to_end_puts_back_what_was_found_whatever_was_raised() -> None:
    with pytest.raises(KeyError), seldom_collected():
        with seldom_collected():
            assert (SELDOM, 10, 9) == gc.get_threshold()
        assert (SELDOM, 10, 9) == gc.get_threshold()
        raise KeyError
    assert (700, 10, 9) == gc.get_threshold()


def test_what_somebody_else_sets_meanwhile_stays() -> None:
    with seldom_collected():
        gc.set_threshold(50, 2, 3)
    assert (50, 2, 3) == gc.get_threshold()


@pytest.mark.parametrize("threshold", [0, SELDOM + 1])
def test_who_collects_never_or_more_seldom_is_left_alone(threshold: int) -> None:
    gc.set_threshold(threshold, 10, 9)
    with seldom_collected():
        assert (threshold, 10, 9) == gc.get_threshold()
    assert (threshold, 10, 9) == gc.get_threshold()
