"""Every write that a reconcile makes: only what changed, only on the object that was looked at, only while this process
leads.

Three things stand between a process that should no longer write and an object. `Leadership.seconds_left` is asked
before each request and bounds it, so that a request of a leader that lost touch ends before another leads. And each
request carries what was seen: the uid and resourceVersion of the object, or that there was none. So a request that
leaves late, out of a process that was frozen between the question and the sending, is refused by the API server
(`Outdated`) as soon as anybody has written in between. Whoever gets `Outdated` looks again.

A status is written with `observedGeneration` of the object that it was computed from, in one merge patch with all that
differs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

from syncline_operator.kube.client import KubeClient
from syncline_operator.kube.errors import Absent, NotLeading, Occupied, Outdated
from syncline_operator.kube.ownership import body, is_settled, owned_fields, project, without_nulls
from syncline_operator.kube.resources import Document, FieldManager, Resource, resource_version, uid

NONE_THERE = "1"
"""A resourceVersion that no object has, since the store's first write is its second revision: an apply with it creates or is refused."""
REMEMBERED = 20_000


class Leadership(Protocol):
    """Who may write."""

    def seconds_left(self) -> float:
        """For how long surely nobody else leads; 0 or less: write nothing."""
        ...


class Writer:
    """Writes for the reconciles of one operator."""

    def __init__(self, client: KubeClient, leadership: Leadership) -> None:
        self._client = client
        self._leadership = leadership
        self._written: OrderedDict[tuple[str, FieldManager], tuple[Document, Any]] = OrderedDict()

    async def apply(
        self,
        resource: Resource,
        desired: Document,
        observed: Document | None,
        *,
        manager: FieldManager,
        force: bool = True,
    ) -> Document:
        """The object after `manager` has in it exactly what `desired` says; `observed` as it is where that is so already.

        Where none was seen and one is there all the same, it is taken if `manager` applied it before (a watch with a
        selector loses an object whose label somebody took off); else `Occupied`: it is somebody else's.
        """
        try:
            return await self._apply(resource, desired, observed, manager, force)
        except Outdated:
            if observed is not None:
                raise
        there = await self._client.get(resource.key(desired))
        if owned_fields(there, manager) is None:
            raise Occupied(
                f"{resource.key(desired)} exists and was not made by this operator; delete it or give it another name",
                code=409,
            )
        return await self._apply(resource, desired, there, manager, force)

    async def try_out(self, resource: Resource, desired: Document, *, manager: FieldManager) -> None:
        """Have the API server judge an object without keeping it: `Malformed` and `Refused` say what is wrong with it."""
        sent = without_nulls(desired) | {"apiVersion": resource.api_version, "kind": resource.kind}
        await self._client.apply(resource.key(desired), sent, manager=manager, force=True, dry_run=True)

    async def write_status(
        self, resource: Resource, observed: Document, status: Mapping[str, Any], *, manager: FieldManager
    ) -> Document:
        """The object after its status is `status`; `observed` as it is where that is so already."""
        wanted: Document = without_nulls(status) | {"observedGeneration": observed["metadata"].get("generation", 0)}
        changed = difference(observed.get("status") or {}, wanted)
        if not changed:
            return observed
        key = resource.key(observed)
        seen = {"uid": uid(observed), "resourceVersion": resource_version(observed)}
        patch = {"metadata": seen, "status": changed}
        left = self._left(f"writing status of {key}")
        return await self._client.merge(key, patch, manager=manager, subresource="status", timeout_s=left)

    async def delete(self, resource: Resource, observed: Document) -> None:
        """That very object as it was looked at; nothing to do if it is gone."""
        key = resource.key(observed)
        if observed["metadata"].get("deletionTimestamp"):
            return
        left = self._left(f"deleting {key}")
        seen = resource_version(observed)
        try:
            await self._client.delete(key, uid=uid(observed), resource_version=seen, timeout_s=left)
        except Absent:
            return

    async def _apply(
        self,
        resource: Resource,
        desired: Document,
        observed: Document | None,
        manager: FieldManager,
        force: bool,
    ) -> Document:
        if observed is not None and self._is_written(desired, observed, manager):
            return observed
        sent = without_nulls(desired) | {"apiVersion": resource.api_version, "kind": resource.kind}
        sent["metadata"] = dict(sent["metadata"])
        if observed is None:
            sent["metadata"]["resourceVersion"] = NONE_THERE
        else:
            sent["metadata"] |= {"uid": uid(observed), "resourceVersion": resource_version(observed)}
        left = self._left(f"applying {resource.key(desired)}")
        result = await self._client.apply(resource.key(desired), sent, manager=manager, force=force, timeout_s=left)
        self._remember(desired, result, manager)
        return result

    def _left(self, about: str) -> float:
        left = self._leadership.seconds_left()
        if left <= 0:
            raise NotLeading(f"{about}: this process does not hold the Lease; whoever does writes")
        return left

    def _is_written(self, desired: Document, observed: Document, manager: FieldManager) -> bool:
        if is_settled(desired, observed, manager):
            return True
        wanted, held = self._written.get((uid(observed), manager), (None, None))
        fields = owned_fields(observed, manager)
        return wanted == body(desired) and fields is not None and held == project(observed, fields)

    def _remember(self, desired: Document, result: Document, manager: FieldManager) -> None:
        """Only of objects that the server writes in another form."""
        fields, where = owned_fields(result, manager), (uid(result), manager)
        self._written.pop(where, None)
        if fields is not None and not is_settled(desired, result, manager):
            self._written[where] = body(desired), project(result, fields)
            while len(self._written) > REMEMBERED:
                self._written.popitem(last=False)


def difference(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> Document:
    """The merge patch that makes `held` into `wanted`; empty if it is. Lists are whole."""
    patch: Document = dict.fromkeys(held.keys() - wanted.keys())
    for name, value in wanted.items():
        there = held.get(name)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            inner = difference(there, value)
            if inner:
                patch[name] = inner
        elif there != value or name not in held:
            patch[name] = value
    return patch
