"""From a store's url to a store: picks the adapter and wraps it in retries and measures. The only place that reads a
url's scheme."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from syncline.clock import Clock, SystemClock, system_random
from syncline.errors import StoreMisused
from syncline.metrics import Metrics
from syncline.store.base import WeightStore
from syncline.store.local import LocalStore
from syncline.store.measured import MeasuredStore
from syncline.store.memory import MemoryStore
from syncline.store.retrying import RetryingStore, RetryPolicy
from syncline.store.s3_location import S3Credentials, S3Location, split_url


def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    metrics: Metrics | None = None,
    environ: Mapping[str, str] | None = None,
    policy: RetryPolicy | None = None,
) -> WeightStore:
    """A store that retries, and counts where `metrics` are given.

    `file:///folder` or a bare path; `s3://bucket/prefix?endpoint=http://host:port&region=…` with the key pair from
    `environ` (the process's own by default); `memory:` for tests, a new store each time. Nothing is asked of the store
    yet.
    """
    clock, rng = clock or SystemClock(), rng or system_random()
    store = open_adapter(url, clock=clock, rng=rng, environ=os.environ if environ is None else environ)
    if metrics is not None:
        store = MeasuredStore(store, metrics, clock)
    return RetryingStore(store, clock=clock, rng=rng, policy=policy, metrics=metrics)


def open_adapter(url: str, *, clock: Clock, rng: random.Random, environ: Mapping[str, str]) -> WeightStore:
    """The bare adapter that a url names."""
    scheme, separator, rest = url.partition(":")
    if not separator or "/" in scheme:
        if not url:
            raise StoreMisused("the store's url is empty; give a folder, file:///folder or s3://bucket/prefix")
        return LocalStore(Path(url), rng=rng)
    if scheme == "file":
        parts = split_url(url)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise StoreMisused(f"{url}: write file:///folder with three slashes, or a bare path")
        return LocalStore(Path(unquote(parts.path)), rng=rng)
    if scheme == "memory":
        return MemoryStore(clock, name=rest)
    if scheme == "s3":
        # The client is loaded only for those who use it.
        from syncline.store.s3 import S3Store

        location, credentials = S3Location.parse(url, environ), S3Credentials.from_env(environ)
        return S3Store(location, credentials, ca_file=environ.get("SSL_CERT_FILE") or environ.get("AWS_CA_BUNDLE"))
    if scheme in ("http", "https"):
        parts = split_url(url)
        service = f"{scheme}://{parts.netloc.rpartition('@')[2]}"
        raise StoreMisused(
            f"{service} is where a service answers; write s3://{parts.path.strip('/') or 'bucket/prefix'}?endpoint={service}"
        )
    raise StoreMisused(f"{url}: {scheme!r} is no kind of store; known are file, s3 and memory")
