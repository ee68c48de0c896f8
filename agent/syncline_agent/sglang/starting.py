"""Arms an SGLang server that runs: has it call the custom weight loader in each of its ranks.

From 0.5.23 on a call of `/update_weights_from_tensor` stands between `/begin_weight_update` and `/end_weight_update`; earlier
servers have neither. A server that is not paused waits for its requests to end before each, so this is done before there are any.
"""

from __future__ import annotations

import base64
import pickle

from syncline.errors import EngineUnavailable, LayoutRefused
from syncline_agent.reload.base import done
from syncline_agent.reload.routes import Routes
from syncline_agent.sglang.loader import NAME

LOOK_S = 10.0
ARM_S = 1800.0
"""Probing and proving read the checkpoint of each rank."""
NO_TENSORS = base64.b64encode(pickle.dumps([])).decode("ascii")
"""What each rank unpacks in place of tensors: SGLang takes lists of them as pickles."""


def arm_server(routes: Routes) -> None:
    """Returns when the loader has run in each rank. LayoutRefused for a server that was started without it,
    EngineUnavailable for one that does not answer."""
    ranks = _checked(routes)
    begun = routes.post("/begin_weight_update", ARM_S, {"selector": "target"})
    has_sessions = begun.status != 404
    if has_sessions:
        done(begun, "begin a weight update")
    body = {
        "serialized_named_tensors": [NO_TENSORS] * ranks,
        "load_format": NAME,
        "selector": "target",
        "flush_cache": False,
    }
    try:
        answer = routes.post("/update_weights_from_tensor", ARM_S, body)
    finally:
        if has_sessions:
            done(routes.post("/end_weight_update", ARM_S, {}), "end the weight update")
    if not answer.ok or answer.get("success") is not True:
        raise EngineUnavailable(f"the server did not call {NAME}: {answer.said}")


def _checked(routes: Routes) -> int:
    """Tensor-parallel ranks of a server that can be armed. Asked first: a scheduler that is told to call a loader that it was not
    started with ends."""
    answer = routes.get("/server_info", LOOK_S)
    if answer.status == 404:
        answer = routes.get("/get_server_info", LOOK_S)
    ranks = done(answer, "say how it was started").get("tp_size")
    if not isinstance(ranks, int):
        raise EngineUnavailable(f"{routes.url} says no tp_size; is it an SGLang server?")
    if NAME not in (answer.get("custom_weight_loader") or ()):
        raise LayoutRefused(f"{routes.url} was started without --custom-weight-loader {NAME}")
    if (answer.get("weight_cache_mode") or "off") != "off":
        raise LayoutRefused(f"{routes.url} shares its weights with others; start it with --weight-cache-mode off")
    return ranks
