"""Does this store keep its conditions? Asked once at start by whoever may write, because some stores accept a condition
and ignore it.

Racing creates must have exactly one winner, and so must racing replacements; a second create and a stale replacement
must fail and leave the object as it was. Where that does not hold only one writer may ever be at work. The probe
removes what it wrote.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

from syncline.errors import AlreadyExists, HeadMoved, StoreMisused, SynclineError
from syncline.store.base import WeightStore

CREATORS, REPLACERS = 8, 4
"""Racing writers of one key. Some services let a loser wait a second for each winner before it, so replacements have fewer."""
ROUNDS = 2
OBJECT_MAX = 64


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a store was seen to honour."""

    conditional_create: bool
    conditional_replace: bool
    racing_creates: bool
    detail: str
    """What failed, in a sentence; empty when all held."""

    @property
    def several_writers(self) -> bool:
        """Whether writers can be fenced; without, single-writer mode."""
        return self.conditional_create and self.conditional_replace and self.racing_creates


def probe(store: WeightStore, prefix_key: str, rng: random.Random) -> ProbeResult:
    """Try conditions on throw-away objects below `prefix_key`. StoreDenied with a key that may not write."""
    folder = f"{prefix_key.rstrip('/')}/{rng.getrandbits(64):016x}"
    written: list[str] = []

    def key(name: str) -> str:
        written.append(f"{folder}/{name}")
        return written[-1]

    try:
        create = _second_create(store, key("create"))
        replace = _stale_replacement(store, key("replace"))
        # Where a condition does not even hold between one writer's own calls, a race would only take time.
        creates = create or _race_creates(store, [key(f"race-create-{n}") for n in range(ROUNDS)])
        replaces = replace or _race_replacements(store, [key(f"race-replace-{n}") for n in range(ROUNDS)])
    finally:
        with ThreadPoolExecutor(CREATORS, thread_name_prefix="probe") as threads:
            list(threads.map(store.delete, written))
    return ProbeResult(
        conditional_create=not create,
        conditional_replace=not replaces,
        racing_creates=not creates,
        detail="; ".join(dict.fromkeys(c for c in (create, replace, creates, replaces) if c)),
    )


def _second_create(store: WeightStore, key: str) -> str:
    store.put_if_absent(key, b"first")
    try:
        store.put_if_absent(key, b"second")
    except AlreadyExists:
        return "" if _content(store, key) == b"first" else "a refused create changed the object"
    except StoreMisused as error:
        return f"conditional creates are refused ({error})"
    return "a second create of one key was accepted"


def _stale_replacement(store: WeightStore, key: str) -> str:
    stale = store.put(key, b"first")
    try:
        store.compare_and_put(key, b"second", etag=stale)
    except HeadMoved:
        return "a replacement with the right etag was refused"
    except StoreMisused as error:
        return f"conditional replacements are refused ({error})"
    try:
        store.compare_and_put(key, b"third", etag=stale)
    except HeadMoved:
        return "" if _content(store, key) == b"second" else "a refused replacement changed the object"
    return "a replacement with a stale etag was accepted"


def _race_creates(store: WeightStore, keys: list[str]) -> str:
    def race(key: str) -> str:
        return _race(store, key, CREATORS, lambda name: store.put_if_absent(key, name))

    return _first_complaint("creates", race, keys)


def _race_replacements(store: WeightStore, keys: list[str]) -> str:
    def race(key: str) -> str:
        etag = store.put(key, b"first")
        return _race(store, key, REPLACERS, lambda name: store.compare_and_put(key, name, etag=etag))

    return _first_complaint("replacements", race, keys)


def _first_complaint(what: str, race: Callable[[str], str], keys: list[str]) -> str:
    """All keys are raced for at the same time."""
    with ThreadPoolExecutor(len(keys), thread_name_prefix="probe") as threads:
        complaints = list(threads.map(race, keys))
    return next((f"racing {what} of one key: {c}" for c in complaints if c), "")


def _race(store: WeightStore, key: str, racers: int, write: Callable[[bytes], object]) -> str:
    start = Barrier(racers)

    def run(name: bytes) -> bytes | None:
        start.wait()
        try:
            write(name)
        except (AlreadyExists, HeadMoved, StoreMisused):
            return None
        return name

    with ThreadPoolExecutor(racers, thread_name_prefix="probe") as threads:
        results = list(threads.map(run, [f"racer {n}".encode() for n in range(racers)]))
    winners = [name for name in results if name is not None]
    if len(winners) != 1:
        return f"{len(winners)} of {racers} won"
    return "" if _content(store, key) == winners[0] else "the object does not hold what the winner wrote"


def _content(store: WeightStore, key: str) -> bytes:
    try:
        found = store.get(key, max_bytes=OBJECT_MAX)
    except SynclineError:
        return b""
    return b"" if found is None else found.data
