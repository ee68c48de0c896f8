"""One engine's HTTP routes: a call, its answer, and what an answer that never came means.

Knows no engine kind and decides nothing. Every call is bounded in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from syncline.errors import EngineUnavailable, LayoutRefused

CONNECT_S = 5.0
SAID_MAX = 500


class AnswerLost(EngineUnavailable):
    """The call was sent and nothing came back: it may have been carried out."""


@dataclass(frozen=True, slots=True)
class RouteTimeouts:
    """How long each kind of call may take."""

    look_s: float = 10.0
    """State and stamps."""
    pause_s: float = 60.0
    drain_s: float = 600.0
    """A pause that waits for requests in flight."""
    load_s: float = 1800.0
    checks_s: float = 600.0


DEFAULT_ROUTE_TIMEOUTS = RouteTimeouts()


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine answered."""

    status: int
    body: Any
    """Parsed JSON; text where it is none."""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def not_done(self) -> bool:
        """Refused by the server before it reached the engine: no such route, a body or a key that is not taken, busy."""
        return self.status in (400, 401, 403, 404, 405, 409, 415, 422, 429)

    @property
    def said(self) -> str:
        """The answer in words."""
        body = self.body
        if isinstance(body, dict):
            told = body.get("message") or body.get("error") or body.get("detail")
            body = told.get("message", told) if isinstance(told, dict) else told or body
        return f"{self.status}: {str(body).strip()[:SAID_MAX]}"

    def get(self, name: str) -> Any:
        """A field of a JSON object; None where there is none."""
        return self.body.get(name) if isinstance(self.body, dict) else None


class Routes:
    """Calls to one engine. Safe for several threads."""

    def __init__(self, url: str, client: httpx.Client, *, key_file: Path | None = None) -> None:
        """`key_file` holds a bearer token and is read anew for each call."""
        self.url = url.rstrip("/")
        self._client = client
        self._key_file = key_file

    def get(self, path: str, timeout_s: float, **query: str) -> Answer:
        return self._call("GET", path, timeout_s, query=query)

    def post(self, path: str, timeout_s: float, body: Mapping[str, Any] | None = None, **query: str) -> Answer:
        return self._call("POST", path, timeout_s, query=query, body=body)

    def _call(
        self,
        method: str,
        path: str,
        timeout_s: float,
        *,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
    ) -> Answer:
        """EngineUnavailable when the call cannot have reached the engine, AnswerLost when it may have."""
        try:
            answer = self._client.request(
                method,
                self.url + path,
                params=dict(query),
                json=body,
                headers=self._headers(),
                timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise EngineUnavailable(f"no engine answers at {self.url} ({error})") from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise LayoutRefused(f"{self.url} is no engine's address ({error}); give --engine-url another") from error
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise AnswerLost(f"{self.url}{path} was called and did not answer ({why})") from error
        try:
            parsed = answer.json()
        except ValueError:
            parsed = answer.text
        return Answer(answer.status_code, parsed)

    def _headers(self) -> dict[str, str]:
        if self._key_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._key_file.read_text('ascii').strip()}"}
        except (OSError, ValueError) as error:
            raise EngineUnavailable(f"--engine-key-file cannot be read: {error}") from error
