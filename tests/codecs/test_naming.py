"""A table names the contexts that pay for their names, and no others: the rest share a width and a list, and are coded all the same."""

from __future__ import annotations

from fractions import Fraction
from math import log2

import numpy as np
import pytest

from syncline.codecs.base import FrameChange
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec
from syncline.codecs.context.counts import Counts, Totals, count_symbols, count_units
from syncline.codecs.context.fitting import fit, shared_bits
from syncline.codecs.context.logarithms import quiet_bits
from syncline.codecs.context.naming import RATE_BITS, Rate
from syncline.codecs.context.table import CONTEXTS

F4 = ALPHABETS["F4"]


def moved(units: int, changes: int) -> FrameChange:
    """Random codes of four bits, of which some move up by one, wherever they are."""
    random = np.random.default_rng(1)
    old = random.integers(0, 256, units, dtype=np.uint8)
    places = random.choice(units, changes, replace=False)
    new = old.copy()
    new[places] = old[places] ^ 1
    return FrameChange.between(old, new)


def counted(change: FrameChange) -> Counts:
    counts = Counts.none()
    counts.units[:] = count_units(F4, change.base())
    count_symbols(F4, change.before, change.after, counts.symbols)
    return counts


def alike(units: int, changes: int) -> Counts:
    """All contexts change by the same symbol, about equally often: no two of them have the same width of their own."""
    counts = Counts.none()
    counts.units[:] = units + units // 1024 * np.arange(CONTEXTS)
    counts.symbols[:, 1] = changes
    return counts


@pytest.mark.parametrize("exact", [True, False])
def test_a_few_changes_in_every_context_are_coded_without_naming_one(exact: bool) -> None:
    change = moved(1 << 18, 400)
    codec = ContextCodec(fit(counted(change), F4, exact=exact), F4, 30)
    assert 1 == len(set(zip(codec.table.widths, codec.table.of_context, strict=True)))
    frame = change.base().copy()
    payload = codec.encode(change)
    codec.decode(memoryview(payload), frame, changed=400)
    assert np.array_equal(change.whole(), frame)
    free = log2(2**18 / 400) + 1.45 + 1  # of positions of one rate, and of a step up or down
    assert 8 * (len(codec.table.data) + len(payload)) < 400 * free + 8 * 60


def test_a_context_is_named_once_its_width_saves_more_than_its_name() -> None:
    named: list[set[int]] = []
    for changes in (2, 100):
        counts = alike(1 << 16, 2)
        counts.units[7], counts.symbols[7, 1] = 1 << 16, changes
        widths = fit(counts, F4, exact=True).widths
        named.append({context for context in range(CONTEXTS) if widths[context] != widths[0]})
    assert [set(), {7}] == named


@pytest.mark.parametrize("many", [16, 27, 110, 200])
def test_no_context_is_named_where_each_was_seen_once_and_some_of_them_changed(many: int) -> None:
    counts = Counts.none()
    counts.units[:] = 1
    counts.symbols[np.random.default_rng(0).choice(CONTEXTS, many, replace=False), 1] = 1
    table = fit(counts, F4, exact=True)
    assert 1 == len(set(table.widths))
    assert len(table.data) < 16


def test_a_width_that_is_told_by_a_tick_costs_what_a_tick_costs() -> None:
    for units, changes, width in ((1 << 30, 3, 1), (1 << 24, 34, 3), (1 << 24, 80, 7)):
        p = 1 - 2 ** -(width / (1 << 20))
        expected = (units - changes) * width / (1 << 20) - changes * log2(p)
        rate = Rate.of(units, changes).told(20, least=0)
        assert pytest.approx(expected, rel=1e-4) == rate.bits(units, changes) / (1 << RATE_BITS)


def test_contexts_that_never_change_are_named_where_their_units_would_pay_for_a_tick() -> None:
    counts = Counts.none()
    counts.units[:48], counts.symbols[:40, 1] = 1 << 26, 1  # a fiftieth of a tick, and a whole one is the least
    assert (0,) * 8 == fit(counts, F4, exact=True).widths[40:48]


@pytest.mark.parametrize("units", [(1 << 40) - 1, 1 << 40, 3 << 40, 5 << 42])
def test_one_change_among_more_units_than_any_machine_holds_has_a_width(units: int) -> None:
    counts = Counts.none()
    counts.units[3], counts.symbols[3, 1] = units, 1
    assert 1 == fit(counts, F4, exact=True).widths[3]


def test_contexts_that_never_change_do_not_share_a_width_that_their_units_would_pay_for() -> None:
    counts = alike(1 << 10, 2)
    counts.units[200:], counts.symbols[200:] = 1 << 24, 0
    table = fit(counts, F4, exact=True)
    assert 0 not in table.widths[:200]
    assert (0,) * 56 == table.widths[200:]


def test_contexts_that_share_a_width_cost_a_table_nothing_however_many_they_are() -> None:
    table = fit(alike(1 << 16, 2), F4, exact=True)
    assert len(table.data) < 16


def test_contexts_that_differ_have_widths_of_their_own_where_changes_are_many() -> None:
    counts = Counts.none()
    counts.units[:] = 1 << 30
    counts.symbols[:, 1] = 1 << 14
    counts.symbols[:, 1] *= 1 + np.arange(CONTEXTS)
    assert CONTEXTS == len(set(fit(counts, F4, exact=True).widths))


@pytest.mark.parametrize(
    ("units", "changes"), [(3_000_000, 30), (3_000_017, 1), (4096, 1), (1 << 33, 12_345), (1000, 500), (7, 7)]
)
def test_where_few_units_change_the_bits_of_the_others_are_not_lost_in_rounding(units: int, changes: int) -> None:
    p = Fraction(changes, units)
    expected = float((1 - p) / p) * -np.log1p(-float(p)) / np.log(2) if p < 1 else 0
    (found,) = quiet_bits(np.array([units]), np.array([changes])) / (1 << 16)
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("changes", "least", "most"), [(2, 256 * 2 * 16, 256 * 2 * 19), (1, 256 * 17, 256 * 20)])
def test_what_a_table_costs_is_told_without_names_that_it_will_not_have(changes: int, least: int, most: int) -> None:
    assert least < shared_bits(Totals.of(alike(1 << 17, changes)), F4) < most
