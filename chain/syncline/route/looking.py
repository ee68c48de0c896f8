"""What a gateway says of itself: its `/status`, read. Keeps nothing."""

from __future__ import annotations

from typing import Any, cast

import httpx

from syncline.clock import Clock
from syncline.route.asking import Unreached
from syncline.route.replica import Seen


async def look(http: httpx.AsyncClient, url: str, *, clock: Clock, seconds: float) -> Seen:
    """Unreached where nobody answers, or what answers is no gateway."""
    at = clock.monotonic()
    try:
        answer = await http.get(f"{url}/status", timeout=seconds)
        told = answer.json() if answer.status_code == 200 else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise Unreached(f"no gateway answers at {url} ({type(error).__name__})") from error
    seen = _seen(cast(dict[str, Any], told), at) if isinstance(told, dict) else None
    if seen is None:
        raise Unreached(f"what answers at {url} is no gateway of Syncline (its /status: {answer.status_code})")
    return seen


def _seen(told: dict[str, Any], at: float) -> Seen | None:
    ready, requests, run = told.get("ready"), told.get("requests"), told.get("run")
    if not isinstance(ready, bool) or not isinstance(requests, dict):
        return None
    counts = cast(dict[str, Any], requests)
    return Seen(
        at=at,
        ready=ready,
        applied=_count(told.get("applied")),
        target=_count(told.get("target")),
        load=(_count(counts.get("waiting")) or 0) + (_count(counts.get("at_engine")) or 0),
        run=run if isinstance(run, str) else None,
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
