"""`syncline-distributor`: the trainer's side as a process. `--help` says all."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from syncline.clock import SystemClock, system_random
from syncline.errors import SynclineError
from syncline.logs import set_up_logs
from syncline.metrics import Metrics
from syncline.store.open import open_store
from syncline_distributor.options import parse_settings
from syncline_distributor.service import Service, erase, only_one, serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script."""
    settings = parse_settings(sys.argv[1:] if arguments is None else arguments, os.environ)
    clock, rng, metrics = SystemClock(), system_random(), Metrics()
    set_up_logs(log_format=settings.log_format, level=settings.log_level, clock=clock)
    try:
        with only_one(settings.state_dir):
            store = open_store(settings.store, clock=clock, rng=rng, metrics=metrics)
            if settings.erases is not None:
                status = asyncio.run(erase(settings, store, metrics=metrics))
            else:
                service = Service(settings, store, clock=clock, random=rng, metrics=metrics)
                status = asyncio.run(serve(service))
            # Threads that are in the middle of a long step would hold the exit up; cutting them off is safe.
            sys.stderr.flush()
            os._exit(status)
    except (SynclineError, OSError) as error:
        print(f"syncline-distributor: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
