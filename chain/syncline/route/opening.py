"""From a store's url, or gateways' addresses, to a fleet."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from syncline.clock import Clock, SystemClock, system_random
from syncline.errors import Rejected
from syncline.logs import logger
from syncline.route.fleet import Fleet, FleetSettings
from syncline.route.sources import Heartbeats, Listed, Source
from syncline.store.open import open_store
from syncline.store.retrying import RetryPolicy
from syncline.wire.records import ConsumerRecord

_PATIENCE = RetryPolicy(first_s=0.05, most_s=0.5, deadline_s=5.0)


def open_fleet(
    store: str | None = None,
    *,
    run: str | None = None,
    view: str = "main",
    gateways: Sequence[str] = (),
    wanted: Callable[[ConsumerRecord], bool] = lambda _: True,
    settings: FleetSettings | None = None,
    clock: Clock | None = None,
    randomness: random.Random | None = None,
) -> Fleet:
    """Of the gateways that a run's heartbeats name (`wanted` says of which nodes), or of those given. Within a running loop.

    Nothing is asked of anybody before `async with`.
    """
    clock, randomness = clock or SystemClock(), randomness or system_random()
    source: Source
    if gateways:
        if store is not None:
            raise Rejected("give a store or gateways, not both: a fleet has one source of replicas")
        source = Listed(gateways)
    elif store is not None and run is not None:
        source = Heartbeats(open_store(store, policy=_PATIENCE), run, view, clock=clock, wanted=wanted)
    else:
        raise Rejected("a fleet needs a store and a run, or the addresses of gateways")
    return Fleet(source, settings, run=run, clock=clock, randomness=randomness, log=logger("route"))
