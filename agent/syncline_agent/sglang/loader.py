"""SGLang's door for code of others: `--custom-weight-loader syncline_agent.sglang.loader.arm`.

`/update_weights_from_tensor` with that name as its `load_format` calls `arm` in every rank's scheduler process, in the
scheduler's own thread: no step runs meanwhile. It changes no weight. `starting` makes that call.
"""

from __future__ import annotations

import os
from typing import Any

from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock, SystemClock
from syncline_agent.sglang.arming import Arming
from syncline_agent.sglang.installing import CONTEXT, look_up, start_logs
from syncline_agent.sglang.placement import Placement, placement_of
from syncline_agent.sglang.rank import Rank, keep, rank_of
from syncline_agent.sglang.settings import SglangSettings

NAME = "syncline_agent.sglang.loader.arm"


def arm(model: Any, named_tensors: Any) -> None:
    """Called by SGLang, which hands over the model and whatever tensors came with the call: none are looked at.

    The first call for a model arms its rank; later ones find it armed. Raises nothing: an error here would end the scheduler.
    """
    del named_tensors
    if rank_of(model) is not None:
        return
    clock = SystemClock()
    log = start_logs(os.environ, clock)
    try:
        settings = SglangSettings.from_env(os.environ)
        where = placement_of(look_up(CONTEXT, "get_parallel")())
        armed(model, settings, where, clock=clock, log=log.bind(rank=where.rank)).start(dict[str, int])
    except Exception as error:
        log.error("Syncline is off", reason=str(error))


def armed(model: Any, settings: SglangSettings, where: Placement, *, clock: Clock, log: FilteringBoundLogger) -> Rank:
    """A rank around a model that is loaded; not started."""
    with Arming(settings, where, clock=clock, log=log) as arming:
        arming.beside(model)
        arming.finish(model)
    rank = Rank(settings, where, arming.live, arming.refusal, clock=clock, log=log)
    keep(model, rank)
    return rank
