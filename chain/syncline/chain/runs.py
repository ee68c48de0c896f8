"""Which runs a store holds, for whoever asked for one that is not there. Reads where each begins, never all of a store."""

from __future__ import annotations

from syncline.errors import StoreDenied, StoreMisused
from syncline.store.base import WeightStore
from syncline.store.keys import NAME, RunKeys

RUNS_NAMED = 10
"""As many runs of a store are named in a message."""
PLACES_LOOKED_AT = 100
"""A bucket that others use too may hold any number of other things."""


def runs_held(store: WeightStore) -> str:
    """The store's runs in words: "it holds a, b and more"."""
    try:
        runs = _runs(store)
    except (StoreDenied, StoreMisused):
        return "this key pair may not list what it holds"
    if not runs:
        return "it holds no run"
    more = " and more" if len(runs) > RUNS_NAMED else ""
    return f"it holds {', '.join(runs[:RUNS_NAMED])}{more}"


def _runs(store: WeightStore) -> list[str]:
    """The first runs by name, one more than are named."""
    runs, after = list[str](), ""
    for _ in range(PLACES_LOOKED_AT):
        first = next(iter(store.list_after("", after=after, limit=1)), None)
        if first is None or len(runs) > RUNS_NAMED:
            break
        name, slash, _ = first.key.partition("/")
        if slash and NAME.fullmatch(name) and any(store.list_after(RunKeys(name).run_json, limit=1)):
            runs.append(name)
        after = f"{name}0" if slash else first.key  # in a key's order "0" follows "/": past all of the run
    return runs
