"""Which runs a store holds, for whoever asked for one that it does not. A few requests, however many objects there are."""

from __future__ import annotations

from syncline.errors import NotFound, Retryable, StoreDenied
from syncline.store.base import WeightStore

RUNS_NAMED = 10
_AFTER_SLASH = chr(ord("/") + 1)


def runs_of(store: WeightStore, most: int) -> list[str]:
    """The first `most` runs of a store by name. Raises what the store raises."""
    runs: list[str] = []
    after = ""
    while len(runs) < most:
        info = next(iter(store.list_after("", after=after, limit=1)), None)
        if info is None:
            break
        name = info.key.partition("/")[0]
        after = name + _AFTER_SLASH  # behind everything below that name
        try:
            store.head(f"{name}/run.json")
        except NotFound:
            continue
        runs.append(name)
    return runs


def instead_of(store: WeightStore) -> str | None:
    """What to do about a run that is not there, with the runs that are; None while the store does not say."""
    try:
        runs = runs_of(store, RUNS_NAMED + 1)
    except StoreDenied:
        return "check the run name in target.json; this key pair may not list what the store holds"
    except Retryable:
        return None
    if not runs:
        return f"nothing was ever published there: the store ({store.url}) is empty, or its address is wrong"
    more = " and more" if len(runs) > RUNS_NAMED else ""
    return f"check the run name in target.json; the store ({store.url}) holds {', '.join(runs[:RUNS_NAMED])}{more}"
