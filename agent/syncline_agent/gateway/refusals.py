"""Answers that the gateway gives by itself, in OpenAI's error shape: official clients parse them, and retry when it helps.

The fields that a trainer decides by stand in the error's body (`applied`, `target`, the lag, `retry`, `retry_after`) and in headers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from aiohttp import web

from syncline_agent.gateway.admission import Refused, Seen


class Code(StrEnum):
    """Why there is no answer of the engine's, beside `admission.Reason`: a word for metrics and clients."""

    BAD_REQUEST = "bad_request"
    NO_SESSIONS = "no_sessions"
    NOT_OPEN = "not_open"
    SLOW_BODY = "slow_body"
    BODY_TOO_LARGE = "body_too_large"
    ENCODING = "encoding"
    CROSSED = "crossed"
    ENGINE_AWAY = "engine_away"
    ENGINE_LOST = "engine_lost"


STATUS: Mapping[Code, int] = {
    Code.BAD_REQUEST: 400,
    Code.NO_SESSIONS: 400,
    Code.NOT_OPEN: 404,
    Code.SLOW_BODY: 408,
    Code.CROSSED: 409,
    Code.BODY_TOO_LARGE: 413,
    Code.ENCODING: 415,
    Code.ENGINE_AWAY: 503,
    Code.ENGINE_LOST: 503,
}


def make_error(
    message: str, *, kind: str, code: str, param: str | None = None, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The body of an error, and the event that ends a stream with one."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code, **(more or {})}}


def error(code: Code, message: str, *, param: str | None = None) -> web.Response:
    """A request that can never be passed on as it is."""
    body = make_error(message, kind="invalid_request_error", code=code, param=param)
    return web.json_response(body, status=STATUS[code], headers={"x-should-retry": "false"})


def unavailable(code: Code, message: str, *, after_s: float = 1.0) -> web.Response:
    """The engine is not there, or went away."""
    headers = {"Retry-After": _seconds(after_s), "x-should-retry": "true"}
    return web.json_response(make_error(message, kind="unavailable", code=code), status=STATUS[code], headers=headers)


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
    return make_error(message, kind="weight_version_error", code=Code.CROSSED, param="weight_version", more=more)


def crossed_answer(label: dict[str, Any]) -> web.Response:
    """409 in the place of such an answer."""
    headers = {"Retry-After": "1", "x-should-retry": "true"}
    return web.json_response(crossed(label), status=STATUS[Code.CROSSED], headers=headers)


def event_of(body: dict[str, Any]) -> bytes:
    """An error as the last event of a stream."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def _seconds(after_s: float) -> str:
    return str(max(1, math.ceil(after_s)))
