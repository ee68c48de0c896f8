"""Which replica a request goes to: by version, then home or load; and why to none."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from syncline.route.picking import STALE_S, Able, Barred, Nobody, Picked, judge, pick
from syncline.route.replica import Replica, Seen
from syncline.route.wishes import Wish

NOW = 1000.0


def replica(name: str = "a", *, load: int = 0, **seen: Any) -> Replica:
    told = Seen(**{"at": NOW, "ready": True, "applied": 7, "target": 7, "load": load, "run": "r"} | seen)
    made = Replica(f"http://{name}", name)
    made.saw(told)
    return made


@pytest.mark.parametrize(
    ("wish", "seen", "able", "why"),
    [
        (Wish(), {}, Able.NOW, "serves version 7"),
        (Wish(min=7), {}, Able.NOW, "serves version 7"),
        (Wish(min=8), {}, Able.SOON, "below 8"),
        (Wish(exact=7), {}, Able.NOW, "serves version 7"),
        (Wish(exact=8), {}, Able.SOON, "not 8"),
        (Wish(exact=6), {}, Able.NEVER, "6 is gone by"),
        (Wish(exact=6), {"target": 6}, Able.SOON, "not 6"),
        (Wish(max_lag=1), {"target": 8}, Able.NOW, "serves version 7"),
        (Wish(max_lag=1), {"target": 9}, Able.SOON, "2 from its target 9"),
        (Wish(max_lag=0), {"target": 6}, Able.SOON, "1 from its target 6"),
        (Wish(max_lag=0), {"target": None}, Able.NOW, "serves version 7"),
        (Wish(), {"ready": False}, Able.NO, "nothing proven"),
        (Wish(), {"applied": None}, Able.NO, "nothing proven"),
        (Wish(), {"run": "s"}, Able.NEVER, "run s, not r"),
        (Wish(), {"run": None}, Able.NOW, "serves version 7"),
        (Wish(), {"at": NOW - STALE_S - 1}, Able.NO, "nothing was heard of it for 91 s"),
    ],
)
def test_a_replica_is_judged_by_its_version(wish: Wish, seen: dict[str, Any], able: Able, why: str) -> None:
    verdict = judge(replica(**seen), wish, NOW, run="r")
    assert able is verdict.able
    assert why in verdict.why


def test_what_was_never_heard_of_or_is_held_off_is_asked_nothing() -> None:
    assert Able.NO is judge(Replica("http://a", "a"), Wish(), NOW).able
    held = replica()
    held.hold(NOW + 3, "it is away")
    verdict = judge(held, Wish(), NOW)
    assert (Able.NO, "it is away", NOW + 3) == (verdict.able, verdict.why, verdict.until)
    assert Able.NOW is judge(held, Wish(), NOW + 3).able


def test_a_refusal_holds_one_request_off_until_its_time_or_until_something_else_is_served() -> None:
    at, wish = replica(applied=7), Wish(min=7)
    barred = {at.url: Barred(NOW + 5, "not_yet", 7)}
    assert Able.NO is judge(at, wish, NOW, barred=barred).able
    assert Able.NOW is judge(at, wish, NOW).able  # others are not held off
    assert Able.NOW is judge(at, wish, NOW + 5, barred=barred).able
    at.saw(Seen(NOW + 1, True, 8, 8, 0))
    assert Able.NOW is judge(at, wish, NOW + 1, barred=barred).able
    final = {at.url: Barred(NOW, "gone_by", 8, final=True)}
    assert Able.NEVER is judge(at, wish, NOW + 1, barred=final).able


def choose(replicas: list[Replica], wish: Wish, times: int = 300) -> Counter[str]:
    randomness = random.Random(1)
    counted: Counter[str] = Counter()
    for _ in range(times):
        found = pick(replicas, wish, NOW, randomness=randomness)
        assert isinstance(found, Picked)
        counted[found.replica.name] += 1
    return counted


def test_version_comes_before_load_and_the_loaded_are_spared() -> None:
    fleet = [replica("old", applied=6), replica("busy", load=9), replica("idle", load=1), replica("calm", load=2)]
    assert {"old"}.isdisjoint(choose(fleet, Wish(min=7)))
    counted = choose(fleet, Wish(min=7))
    assert 0 == counted["busy"]  # of any two that are drawn the other one has less
    assert counted["idle"] > counted["calm"] > 0
    assert {"old": 300} == choose([fleet[0], replica("older", applied=4)], Wish(min=9))  # the nearest, while none can


def test_what_this_process_sent_counts_at_once_and_once() -> None:
    here = replica("a", load=5)
    here.in_flight = 2
    assert 7 == here.load
    here.saw(Seen(NOW + 1, True, 7, 7, 7))
    assert 7 == here.load
    here.in_flight = 0
    assert 5 == here.load


def test_an_affinity_keeps_its_home_while_that_can_and_comes_back_to_it() -> None:
    fleet = [replica(name) for name in "abcdefgh"]
    homes = {s: next(iter(choose(fleet, Wish(affinity=s), 3))) for s in map(str, range(200))}
    assert set("abcdefgh") == set(homes.values())
    lagging = fleet[0]
    lagging.saw(Seen(NOW, True, 6, 7, 0))
    moved = {s: next(iter(choose(fleet, Wish(affinity=s, min=7), 3))) for s in homes}
    assert {s for s in homes if homes[s] == "a"} == {s for s in homes if moved[s] != homes[s]}
    lagging.saw(Seen(NOW, True, 7, 7, 0))
    assert homes == {s: next(iter(choose(fleet, Wish(affinity=s, min=7), 3))) for s in homes}


def test_where_nobody_can_each_says_why_and_waiting_is_called_hopeless_only_when_it_is() -> None:
    held = replica("held")
    held.hold(NOW + 2, "it is away")
    found = pick([held, replica("b", ready=False)], Wish(), NOW, randomness=random.Random(1))
    assert isinstance(found, Nobody)
    assert (NOW + 2, False) == (found.until, found.hopeless)
    assert ["it is away", "nothing proven is served there"] == [verdict.why for _, verdict in found.verdicts]
    gone = pick([replica("a"), replica("b", applied=9)], Wish(exact=5), NOW, randomness=random.Random(1))
    assert isinstance(gone, Nobody) and gone.hopeless
    empty = pick([], Wish(), NOW, randomness=random.Random(1))
    assert isinstance(empty, Nobody) and not empty.hopeless
