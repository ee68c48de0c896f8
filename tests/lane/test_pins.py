"""Pins: who waits for whom, and for how long at most."""

from __future__ import annotations

from syncline.clock import ManualClock
from syncline_agent.lane.pins import MOST_PIN_S, MOST_PINS, Pins


def may_commit(pins: Pins) -> bool:
    with pins.commit() as may:
        return may


def test_a_commit_waits_until_every_pin_is_given_back() -> None:
    pins = Pins(ManualClock())
    first, second = pins.grant(10), pins.grant(10)
    assert first is not None and second is not None
    pins.give_back(first)
    assert not may_commit(pins)
    pins.give_back(second)
    pins.give_back(second)
    assert may_commit(pins)


def test_a_pin_that_nobody_gives_back_ends_by_itself() -> None:
    clock = ManualClock()
    pins = Pins(clock)
    pins.grant(10 * MOST_PIN_S)
    clock.advance(MOST_PIN_S - 0.01)
    assert not may_commit(pins)
    clock.advance(0.02)
    assert may_commit(pins)


def test_a_commit_that_is_wanted_is_not_starved_by_pins_that_come_later() -> None:
    clock = ManualClock()
    pins = Pins(clock)
    first = pins.grant(10)
    assert first is not None
    assert not may_commit(pins)
    assert pins.grant(10) is None
    clock.advance(0.9)
    assert not may_commit(pins)
    clock.advance(0.9)
    assert pins.grant(10) is None
    pins.give_back(first)
    assert may_commit(pins)
    assert pins.grant(10) is not None


def test_a_commit_that_is_not_wanted_any_more_keeps_no_pin_out() -> None:
    clock = ManualClock()
    pins = Pins(clock)
    pins.grant(10)
    assert not may_commit(pins)
    clock.advance(1.1)
    assert pins.grant(10) is not None


def test_nothing_is_pinned_while_a_commit_is_under_way_however_it_ends() -> None:
    pins = Pins(ManualClock())
    try:
        with pins.commit() as may:
            assert may and pins.grant(10) is None
            raise RuntimeError("the commit failed")
    except RuntimeError:
        pass
    assert pins.grant(10) is not None


def test_pins_are_bounded_in_number() -> None:
    pins = Pins(ManualClock())
    assert all(pins.grant(10) for _ in range(MOST_PINS))
    assert pins.grant(10) is None
