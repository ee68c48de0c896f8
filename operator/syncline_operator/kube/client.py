"""Requests to one API server, each an answer or a named error within a bounded time.

The official client brings connections, certificates and proxies; this module brings paths, tokens as of now, timeouts,
pages and errors. It never retries: who asked knows whether to ask again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

from syncline.clock import Clock
from syncline_operator.kube.access import Access
from syncline_operator.kube.errors import ApiFailure, Expired, Unreachable, failure
from syncline_operator.kube.resources import Document, FieldManager, ObjectKey, Resource
from syncline_operator.metrics import OperatorMetrics

PAGE = 500
REREADS = 3
"""How often a list is begun anew when the server has forgotten where it was read on from."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a kind as of one moment."""

    items: list[Document]
    resource_version: str


class KubeClient:
    """One connection pool; closed by whoever made it."""

    def __init__(
        self, access: Access, *, metrics: OperatorMetrics, clock: Clock, timeout_s: float = 30.0, page: int = PAGE
    ) -> None:
        self._access = access
        self._metrics = metrics
        self._clock = clock
        self._timeout_s = timeout_s
        self._page = page
        self._api = ApiClient(access.configuration)
        self._api.user_agent = "syncline-operator"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._api.close()

    async def get(self, key: ObjectKey, *, timeout_s: float | None = None) -> Document:
        return await self._ask("GET", key.path, about=f"reading {key}", timeout_s=timeout_s)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        labels: str = "",
        trim: Callable[[Document], Document] = lambda document: document,
    ) -> Listing:
        """All objects, page by page; `trim` sees each before the next page is asked for."""
        for _ in range(REREADS):
            try:
                return await self._read_pages(resource, namespace, labels, trim)
            except Expired:
                continue
        return await self._read_pages(resource, namespace, labels, trim)

    async def create(
        self, resource: Resource, document: Document, *, manager: FieldManager, timeout_s: float | None = None
    ) -> Document:
        key = resource.key(document)
        path = resource.path(key.namespace)
        query = {"fieldManager": manager}
        return await self._ask("POST", path, query, document, about=f"creating {key}", timeout_s=timeout_s)

    async def replace(
        self, key: ObjectKey, document: Document, *, manager: FieldManager, timeout_s: float | None = None
    ) -> Document:
        query = {"fieldManager": manager}
        return await self._ask("PUT", key.path, query, document, about=f"writing {key}", timeout_s=timeout_s)

    async def apply(
        self,
        key: ObjectKey,
        document: Document,
        *,
        manager: FieldManager,
        force: bool,
        dry_run: bool = False,
        timeout_s: float | None = None,
    ) -> Document:
        """Server-side apply: the object has what `document` says, and no longer what this manager had said before."""
        query = {"fieldManager": manager, "force": "true" if force else "false", "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        kind = "application/apply-patch+yaml"
        about = f"{'trying' if dry_run else 'applying'} {key}"
        return await self._ask("PATCH", key.path, query, document, about=about, kind=kind, timeout_s=timeout_s)

    async def merge(
        self,
        key: ObjectKey,
        patch: Document,
        *,
        manager: FieldManager,
        subresource: str = "",
        timeout_s: float | None = None,
    ) -> Document:
        """JSON merge patch: null removes, lists are replaced whole."""
        path = key.resource.path(key.namespace, key.name, subresource)
        about = f"writing {subresource + ' of ' if subresource else ''}{key}"
        kind = "application/merge-patch+json"
        return await self._ask(
            "PATCH", path, {"fieldManager": manager}, patch, about=about, kind=kind, timeout_s=timeout_s
        )

    async def delete(
        self, key: ObjectKey, *, uid: str, resource_version: str | None = None, timeout_s: float | None = None
    ) -> None:
        """Only that very object, and if `resource_version` is given only as it was seen. What it owns goes after it."""
        conditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
        body = {"preconditions": conditions, "propagationPolicy": "Background"}
        await self._ask("DELETE", key.path, None, body, about=f"deleting {key}", timeout_s=timeout_s)

    async def find(self, api_version: str, kind: str) -> Resource | None:
        """The resource of a kind that a user named; None where the cluster has none."""
        group, _, version = api_version.rpartition("/")
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            found = await self._ask("GET", path, about=f"looking for {kind} in {api_version}")
        except ApiFailure as error:
            if error.code == 404:
                return None
            raise
        for entry in found.get("resources", ()):
            if entry["kind"] == kind and "/" not in entry["name"]:
                return Resource(group, version, entry["name"], kind, bool(entry["namespaced"]))
        return None

    async def _read_pages(
        self, resource: Resource, namespace: str, labels: str, trim: Callable[[Document], Document]
    ) -> Listing:
        items: list[Document] = []
        query = {"limit": str(self._page)} | ({"labelSelector": labels} if labels else {})
        while True:
            page = await self._ask("GET", resource.path(namespace), query, about=f"listing {resource.plural}")
            for item in page.get("items") or ():
                # A list says once for all what its items are.
                items.append(trim({"apiVersion": resource.api_version, "kind": resource.kind} | item))
            token = page["metadata"].get("continue")
            if not token:
                return Listing(items, page["metadata"]["resourceVersion"])
            query["continue"] = token

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Document | None = None,
        *,
        about: str,
        kind: str = "application/json",
        timeout_s: float | None = None,
    ) -> Document:
        url = self._access.configuration.host.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "Content-Type": kind, "User-Agent": self._api.user_agent}
        token = self._access.token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        limit = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        begun = self._clock.monotonic()
        try:
            timeout: Any = aiohttp.ClientTimeout(total=limit)  # the client hands it on to aiohttp as it is
            answer = await self._api.call_api(method, url, headers, body, _request_timeout=timeout)
            content = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._metrics.api_errors.labels(method, "none").inc()
            why = f"no answer within {limit:g} s" if isinstance(error, TimeoutError) else str(error)
            raise Unreachable(f"{about}: {why or type(error).__name__}; ask again later") from error
        finally:
            self._metrics.api_seconds.labels(method).observe(self._clock.monotonic() - begun)
        found = _parsed(content)
        if 200 <= answer.status < 300:
            return found
        self._metrics.api_errors.labels(method, str(answer.status)).inc()
        raise failure(answer.status, found, about=about, retry_after=_retry_after(answer.headers))


def _parsed(content: bytes) -> Document:
    """What stands between us and the server may answer with anything."""
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": content[:200].decode("utf-8", "replace")}


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "0")))
    except ValueError:
        return 1.0  # a date: rare enough not to be read
