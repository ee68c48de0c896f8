"""kopf, for what it does well: watch-streams that are opened again, and telling what they say. Nothing else of it is
used.

Only `on.event`, `on.startup` and `on.login` handlers, so that kopf writes nothing: no annotation, no finalizer, no
Event, no peering.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import kopf
from structlog.typing import FilteringBoundLogger

from syncline.clock import Clock
from syncline_operator.kube.access import Access
from syncline_operator.kube.resources import Document, Resource
from syncline_operator.work.sweep import Source

OURS = "syncline.dev"
WORDS = 400
"""Of a line of kopf's log, which may hold a server's whole answer."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Times of watch-streams."""

    silent_s: float = 70.0
    """Without a byte for so long a stream is opened anew; a server sends a bookmark every 60 s."""
    stream_s: int = 300
    request_s: float = 30.0
    connect_s: float = 5.0
    token_s: float = 60.0
    """For so long streams are opened with a token that was read before: a kubelet replaces one long before it ends."""


async def watch(
    access: Access,
    sources: Sequence[Source],
    tell: Callable[[Resource, Document, bool], None],
    *,
    namespaces: Sequence[str],
    settings: WatchSettings,
    stop: asyncio.Event,
    started: Callable[[], None],
    clock: Clock,
    log: FilteringBoundLogger,
) -> None:
    """Watch until `stop`, telling each object that came, changed or (True) went; all that are there when a stream begins.

    `started` is called once kopf has taken SIGTERM and SIGINT for itself: who wants them takes them there.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def begin(**_: Any) -> None:
        await asyncio.sleep(0)  # kopf takes the signals in the turn of the loop in which this handler begins
        started()

    @kopf.on.login(registry=registry, backoff=1.0)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return connection(access, renewed_at=clock.now() + settings.token_s)

    for source in sources:
        _listen(registry, source.resource, tell)
    _send_log(log)
    await kopf.operator(
        registry=registry,
        settings=kopf_settings(sources, settings),
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        stop_flag=stop,
    )


def kopf_settings(sources: Sequence[Source], settings: WatchSettings) -> kopf.OperatorSettings:
    made = kopf.OperatorSettings()
    made.peering.standalone = True
    made.scanning.disabled = True
    made.posting.enabled = False
    made.watching.server_timeout = settings.stream_s
    made.watching.client_timeout = settings.stream_s + settings.request_s
    made.watching.connect_timeout = settings.connect_s
    made.watching.inactivity_timeout = settings.silent_s
    made.watching.chunk_size = 500
    for source in sources:
        if source.labels:
            resource = source.resource
            made.watching.label_selectors[(resource.group, resource.version, resource.plural)] = source.labels
    made.networking.request_timeout = settings.request_s
    made.networking.connect_timeout = settings.connect_s
    made.networking.enforce_retry_after = True
    made.networking.trust_env = True
    made.persistence.finalizer = f"{OURS}/unused"
    made.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=OURS)
    made.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=OURS)
    made.process.ultimate_exiting_timeout = None  # how the process ends is not kopf's to decide
    return made


def connection(access: Access, *, renewed_at: float) -> kopf.ConnectionInfo:
    """With the token as of now; kopf asks again once it expires, or is refused."""
    held = access.configuration
    renewed = datetime.fromtimestamp(renewed_at, UTC)
    return kopf.ConnectionInfo(
        server=held.host,
        ca_path=held.ssl_ca_cert or None,
        insecure=not held.verify_ssl,
        token=access.token(),
        certificate_path=held.cert_file or None,
        private_key_path=held.key_file or None,
        expiration=renewed if access.token_file is not None else None,
    )


def _listen(
    registry: kopf.OperatorRegistry, resource: Resource, tell: Callable[[Resource, Document, bool], None]
) -> None:
    @kopf.on.event(group=resource.group, version=resource.version, plural=resource.plural, registry=registry)
    async def told(event: Any, **_: Any) -> None:
        document = {"apiVersion": resource.api_version, "kind": resource.kind} | event["object"]
        tell(resource, document, event["type"] == "DELETED")


class _Relay(logging.Handler):
    def __init__(self, into: FilteringBoundLogger) -> None:
        super().__init__(logging.WARNING)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.log(record.levelno, record.getMessage()[:WORDS], component="kopf")


def _send_log(log: FilteringBoundLogger) -> None:
    """kopf's warnings into this process's log; of each event that it told it would say that it did."""
    theirs = logging.getLogger("kopf")
    theirs.handlers = [_Relay(log)]
    theirs.setLevel(logging.WARNING)
    theirs.propagate = False
