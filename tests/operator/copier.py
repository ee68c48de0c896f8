"""A small operator, run as a process by the tests of what operators stand on: to each ConfigMap of a label it keeps a copy.

Its settings are JSON in the one argument. Every copy says which process wrote it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from syncline.clock import SystemClock
from syncline.logs import logger, set_up_logs
from syncline_operator.kube.access import find_access
from syncline_operator.kube.lease import LeaseSettings
from syncline_operator.kube.recording import EventSettings, EventType
from syncline_operator.kube.resources import CONFIG_MAPS, Document, FieldManager, ObjectKey, Resource
from syncline_operator.metrics import OperatorMetrics
from syncline_operator.work.floor import Floor, FloorSettings, operate
from syncline_operator.work.queue import QueueSettings
from syncline_operator.work.sweep import Source, SweepSettings
from syncline_operator.work.watching import WatchSettings
from syncline_operator.work.workers import Reconcile

LABEL = "syncline.test/copy"
SUFFIX = "-copy"
MANAGER = FieldManager("copier")


def leads_to(document: Document) -> Iterable[ObjectKey]:
    key = CONFIG_MAPS.key(document)
    yield ObjectKey(CONFIG_MAPS, key.namespace, key.name.removesuffix(SUFFIX))


def reconciles(floor: Floor) -> Mapping[Resource, Reconcile]:
    seen = floor.seen[CONFIG_MAPS]

    async def copy(key: ObjectKey) -> float | None:
        original = seen.get(key)
        there = seen.get(ObjectKey(CONFIG_MAPS, key.namespace, key.name + SUFFIX))
        if original is None:
            if there is not None:
                await floor.writer.delete(CONFIG_MAPS, there)
            return None
        wanted: Document = {
            "metadata": {"name": key.name + SUFFIX, "namespace": key.namespace, "labels": {LABEL: "copy"}},
            "data": {"by": floor.identity} | original.get("data", {}),
        }
        result = await floor.writer.apply(CONFIG_MAPS, wanted, there, manager=MANAGER)
        if result is not there:
            seen.wrote(result)
            floor.recorder.note(original, EventType.NORMAL, "Copied", f"{key.name} was copied")
        return None

    return {CONFIG_MAPS: copy}


def main(given: dict[str, Any]) -> None:
    set_up_logs(log_format="json", level="info")
    settings = FloorSettings(
        lease=LeaseSettings(given["lease_in"], lasts_s=4, sure_s=2.5, renew_s=0.4),
        namespaces=tuple(given["namespaces"]),
        host="127.0.0.1",
        port=given["port"],
        request_s=10,
        queue=QueueSettings(backoff_s=0.2, backoff_max_s=1),
        sweep=SweepSettings(every_s=given.get("list_s", 300), grace_s=1, again_s=0.5),
        watch=WatchSettings(
            stream_s=given.get("stream_s", 300), token_s=given.get("token_s", 60), silent_s=given.get("silent_s", 70)
        ),
        events=EventSettings(look_s=0.1),
    )

    async def go() -> None:
        await operate(
            await find_access(os.environ),
            [Source(CONFIG_MAPS, leads_to, labels=LABEL)],
            reconciles,
            settings,
            identity=given["identity"],
            metrics=OperatorMetrics(),
            clock=SystemClock(),
            randomness=random.Random(given["identity"]),
            log=logger("copier"),
        )

    asyncio.run(go())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
