"""Urls of stores: what they lead to, what they refuse, and where the key pair comes from."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from syncline.clock import ManualClock, SystemClock
from syncline.errors import StoreDenied, StoreMisused
from syncline.metrics import Metrics
from syncline.store.base import WeightStore
from syncline.store.local import LocalStore
from syncline.store.memory import MemoryStore
from syncline.store.open import open_adapter, open_store
from syncline.store.s3 import S3Store
from syncline.store.s3_location import S3Credentials, S3Location
from syncline.testing.seaweed import Seaweed

KEYS = {"SYNCLINE_S3_ACCESS_KEY": "access", "SYNCLINE_S3_SECRET_KEY": "hidden"}


def adapter(url: str, environ: dict[str, str] | None = None) -> WeightStore:
    return open_adapter(url, clock=ManualClock(), rng=random.Random(1), environ=environ or {})


def test_a_path_and_a_file_url_lead_to_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    adapter(str(folder)).put("x", b"1")
    store = adapter(f"file://{tmp_path}/a%20b")
    assert isinstance(store, LocalStore)
    assert 1 == store.head("x").size
    assert (folder / "x").is_file()


def test_memory_is_a_new_store_each_time() -> None:
    one, two = adapter("memory:"), adapter("memory:")
    assert isinstance(one, MemoryStore)
    one.put("x", b"1")
    assert [] == list(two.list_after(""))


def test_an_s3_url_leads_to_a_bucket(seaweed: Seaweed) -> None:
    store = adapter(seaweed.store_url("open"), seaweed.environ)
    assert isinstance(store, S3Store)
    assert store.put("x", b"1") == open_store(store.url, environ=seaweed.environ).head("x").etag


def test_a_stores_url_leads_back_to_it(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}", "s3://bucket/some/prefix?endpoint=http://127.0.0.1:8333&region=eu-west-1"):
        assert url == adapter(url, KEYS).url
        assert url == open_store(url, environ=KEYS).url


def test_an_open_store_retries_and_counts() -> None:
    metrics = Metrics()
    store = open_store("memory:", clock=ManualClock(), rng=random.Random(1), metrics=metrics)
    store.put("a", b"123")
    assert 3 == metrics.registry.get_sample_value("syncline_store_bytes_total", {"operation": "put"})


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://example.com/bucket",
        "gs://bucket",
        "file://host/folder",
        "file:relative",
        "s3://",
        "s3:///prefix",
        "s3://UPPER",
        "s3://bucket/../other",
        "s3://bucket?endpoint=127.0.0.1:8333",
        "s3://bucket?endpoint=ftp://127.0.0.1",
        "s3://bucket?endpoint=http://host/path",
        "s3://bucket?endpoint=http://user:pass@host",
        "s3://bucket?enpoint=http://host",
        "s3://bucket/" + "p" * 200,
        "s3://bu..cket",
        "s3://bucket.-of",
        "s3://127.0.0.1/prefix",
        "s3://[bucket",
        "s3://bucket?endpoint=http://[host",
        "s3://bucket?endpoint=http://host:port",
        "s3://bucket?endpoint=http://host:99999",
        "s3://bucket?endpoint=http://::1:8333",
        "s3://bucket?endpoint=http://:8333",
        "file://[host/folder",
        "https://[host",
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(StoreMisused):
        open_store(url, environ=KEYS)


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("http://127.0.0.1:8333", "write s3://bucket/prefix?endpoint=http://127.0.0.1:8333"),
        ("https://host/bucket/some/prefix/", "write s3://bucket/some/prefix?endpoint=https://host"),
        ("s3://ab", "a bucket name has 3 to 63 characters, lower-case letters, digits, '-' and single '.'"),
    ],
)
def test_what_to_write_instead_is_told(url: str, instead: str) -> None:
    with pytest.raises(StoreMisused) as caught:
        open_store(url, environ=KEYS)
    assert str(caught.value).endswith(instead)


@pytest.mark.parametrize("url", ["s3://access:hidden@bucket", "s3://bucket?endpoint=http://access:hidden@host"])
def test_a_credential_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(StoreMisused, match="holds a credential") as caught:
        open_store(url, environ=KEYS)
    assert "hidden" not in str(caught.value)


def test_a_credential_in_a_services_address_is_not_repeated() -> None:
    with pytest.raises(StoreMisused) as caught:
        open_store("http://access:hidden@host/bucket", environ=KEYS)
    assert str(caught.value).endswith("write s3://bucket?endpoint=http://host")
    assert "hidden" not in str(caught.value)


def test_credentials_come_from_the_environment_synclines_own_first() -> None:
    aws = {"AWS_ACCESS_KEY_ID": "aws", "AWS_SECRET_ACCESS_KEY": "other", "AWS_SESSION_TOKEN": "token"}
    assert S3Credentials("aws", "other", "token") == S3Credentials.from_env(aws)
    assert S3Credentials("access", "hidden") == S3Credentials.from_env({**aws, **KEYS})
    with pytest.raises(StoreDenied, match="SYNCLINE_S3_ACCESS_KEY"):
        S3Credentials.from_env({})
    with pytest.raises(StoreDenied, match="AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY"):
        S3Credentials.from_env({"AWS_ACCESS_KEY_ID": "alone"})
    assert "hidden" not in repr(S3Credentials("access", "hidden", "hidden"))


def test_an_endpoint_and_a_region_come_from_the_url_first() -> None:
    environ = {"AWS_ENDPOINT_URL": "http://10.0.0.1:9000", "AWS_REGION": "eu-north-1"}
    given = S3Location.parse("s3://bucket?endpoint=https://host&region=us-west-2", environ)
    assert ("host", True, "us-west-2") == (given.host, given.secure, given.region)
    taken = S3Location.parse("s3://bucket", environ)
    assert ("10.0.0.1:9000", False, "eu-north-1") == (taken.host, taken.secure, taken.region)
    public = S3Location.parse("s3://bucket", {})
    assert ("s3.us-east-1.amazonaws.com", True) == (public.host, public.secure)
    assert "put ?endpoint=http://host:port into the url" in public.words
    assert given.url == given.words


def test_a_folder_is_opened_without_the_s3_client() -> None:
    code = (
        "import sys; from syncline.store.open import open_store; open_store('memory:');"
        "sys.exit(bool({'minio', 'numba', 'torch'} & set(sys.modules)))"
    )
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_the_systems_own_clock_is_the_default() -> None:
    store = open_store("memory:")
    before = SystemClock().now()
    store.put("a", b"1")
    assert before <= store.head("a").modified <= SystemClock().now()
