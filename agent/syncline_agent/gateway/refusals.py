"""Answers that the gateway gives by itself, in OpenAI's error shape: official clients parse them, and retry when it helps.

The fields that a trainer decides by stand in the error's body (`applied`, `target`, the lag, `retry`, `retry_after`) and in headers.
"""

from __future__ import annotations

import json
import math
from typing import Any

from aiohttp import web

from syncline_agent.gateway.admission import Refused, Seen


def make_error(
    message: str, *, kind: str, code: str, param: str | None = None, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The body of an error, and the event that ends a stream with one."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code, **(more or {})}}


def error(
    status: int, message: str, *, code: str, param: str | None = None, kind: str = "invalid_request_error"
) -> web.Response:
    """A request that can never be passed on as it is."""
    return web.json_response(
        make_error(message, kind=kind, code=code, param=param), status=status, headers={"x-should-retry": "false"}
    )


def unavailable(message: str, *, code: str, after_s: float = 1.0) -> web.Response:
    """503: the engine is not there, or went away."""
    headers = {"Retry-After": _seconds(after_s), "x-should-retry": "true"}
    return web.json_response(make_error(message, kind="unavailable", code=code), status=503, headers=headers)


def refused(refusal: Refused, seen: Seen) -> web.Response:
    """What the door says to who was not let in."""
    applied = seen.applied.version if seen.applied is not None else None
    target = seen.state.target if seen.state is not None else None
    more = {
        "applied": applied,
        "target": target,
        "lag_versions": seen.lag.versions,
        "lag_seconds": None if seen.lag.seconds is None else round(seen.lag.seconds, 3),
        "retry": refusal.retry,
        "retry_after": round(refusal.after_s, 3) if refusal.retry else None,
    }
    kind = "unavailable" if refusal.status == 503 else "weight_version_error"
    body = make_error(
        refusal.message,
        kind=kind,
        code=refusal.reason.value,
        param="weight_version" if refusal.status == 409 else None,
        more=more,
    )
    headers = {"x-should-retry": "true" if refusal.retry else "false"}
    if refusal.retry:
        headers["Retry-After"] = _seconds(refusal.after_s)
    if applied is not None:
        headers["x-syncline-applied"] = str(applied)
    if target is not None:
        headers["x-syncline-target"] = str(target)
    return web.json_response(body, status=refusal.status, headers=headers)


def crossed(label: dict[str, Any]) -> dict[str, Any]:
    """The error of an answer whose tokens are not of a version that was asked for."""
    message = (
        f"the answer came from versions {label['start']} to {label['end']}, which were not asked for"
        if "unknown" not in label
        else f"nobody can tell which version the answer came from: {label['unknown']}"
    )
    more = {"retry": True, "retry_after": 1.0, "weight_version": label}
    return make_error(message, kind="weight_version_error", code="crossed", param="weight_version", more=more)


def crossed_answer(label: dict[str, Any]) -> web.Response:
    """409 in the place of such an answer."""
    headers = {"Retry-After": "1", "x-should-retry": "true"}
    return web.json_response(crossed(label), status=409, headers=headers)


def event_of(body: dict[str, Any]) -> bytes:
    """An error as the last event of a stream."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def _seconds(after_s: float) -> str:
    return str(max(1, math.ceil(after_s)))
