"""The S3 adapter on the wire: what it sends to a real service, and what it makes of every answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from syncline.clock import ManualClock
from syncline.errors import (
    AlreadyExists,
    HeadMoved,
    NotFound,
    StoreDenied,
    StoreMisused,
    StoreUnavailable,
    SynclineError,
)
from syncline.store.base import ObjectInfo
from syncline.store.retrying import RetryingStore
from syncline.store.s3 import S3Store
from syncline.store.s3_listing import in_key_order, safe_start
from syncline.store.s3_location import S3Credentials, S3Location
from syncline.testing.recording_proxy import Answer, Break, RecordingProxy
from syncline.testing.seaweed import BUCKET, Seaweed

MIB = 1 << 20
PART = 5 * MIB


@pytest.fixture
def proxy(seaweed: Seaweed) -> Iterator[RecordingProxy]:
    proxy = RecordingProxy(seaweed.endpoint)
    yield proxy
    proxy.stop()


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"wire/{random.Random(request.node.nodeid).getrandbits(64):016x}"


@pytest.fixture
def store(proxy: RecordingProxy, seaweed: Seaweed, prefix: str) -> Iterator[S3Store]:
    """A store whose requests pass the proxy; it sends and reads in parts of 5 MiB, the least that the service takes."""
    location = S3Location.parse(f"s3://{BUCKET}/{prefix}?endpoint={proxy.endpoint}", {})
    store = S3Store(location, S3Credentials.from_env(seaweed.environ), part_bytes=PART, range_bytes=PART)
    yield store
    store.close()


@pytest.fixture
def retrying(store: S3Store) -> RetryingStore:
    return RetryingStore(store, clock=ManualClock(), rng=random.Random(1))


def headers_of(proxy: RecordingProxy, method: str, part: str) -> list[tuple[str | None, str | None]]:
    """(If-None-Match, If-Match) of each request."""
    return [
        (r.headers.get("if-none-match"), r.headers.get("if-match"))
        for r in proxy.requests
        if r.method == method and part in r.path
    ]


# Conditions on the wire


def test_put_if_absent_sends_its_condition_as_a_header(store: S3Store, proxy: RecordingProxy) -> None:
    store.put_if_absent("a", b"1")
    assert [("*", None)] == headers_of(proxy, "PUT", "/a")
    assert not any("meta" in name for request in proxy.requests for name in request.headers)


def test_compare_and_put_sends_its_condition_as_a_header(store: S3Store, proxy: RecordingProxy) -> None:
    etag = store.compare_and_put("a", b"1", etag=None)
    store.compare_and_put("a", b"2", etag=etag)
    assert [("*", None), (None, f'"{etag}"')] == headers_of(proxy, "PUT", "/a")


def test_put_sends_no_condition(store: S3Store, proxy: RecordingProxy) -> None:
    store.put("a", b"1")
    assert [(None, None)] == headers_of(proxy, "PUT", "/a")


def test_a_multipart_upload_carries_its_condition_in_the_completion(store: S3Store, proxy: RecordingProxy) -> None:
    store.put_large("a", bytes(2 * PART + 1))
    assert [("*", None)] == headers_of(proxy, "POST", "uploadId=")
    assert [(None, None)] * 3 == headers_of(proxy, "PUT", "partNumber=")


def test_a_completion_whose_condition_fails_is_already_exists_and_leaves_no_parts(
    store: S3Store, proxy: RecordingProxy
) -> None:
    proxy.script("HEAD", "/a", Answer(404))  # the object appears between the look and the completion
    store.put("a", b"theirs")
    with pytest.raises(AlreadyExists):
        store.put_large("a", bytes(PART + 1))
    assert 1 == len(headers_of(proxy, "DELETE", "uploadId="))
    found = store.get("a", max_bytes=10)
    assert found is not None
    assert b"theirs" == found.data


def test_an_unchanged_head_costs_one_request_and_no_body(store: S3Store, proxy: RecordingProxy) -> None:
    etag = store.put("head", b"1")
    before = len(proxy.requests)
    assert store.get("head", max_bytes=10, if_none_match=etag) is None
    assert 1 == len(proxy.requests) - before
    assert f'"{etag}"' == proxy.requests[-1].headers["if-none-match"]


def test_an_object_too_large_is_refused_before_its_bytes_come(store: S3Store) -> None:
    store.put("a", bytes(3 * MIB))
    with pytest.raises(StoreMisused, match="at most 10"):
        store.get("a", max_bytes=10)
    found = store.get("a", max_bytes=3 * MIB)  # the connection that was given up does not disturb the next
    assert found is not None
    assert 3 * MIB == len(found.data)


# Parallel transfers


def test_a_large_range_is_read_in_ranges(store: S3Store, proxy: RecordingProxy) -> None:
    data = random.Random(1).randbytes(3 * PART + 7)
    store.put_large("a", data)
    buffer = bytearray(len(data) - 2)
    store.get_range_into("a", 1, buffer)
    assert data[1:-1] == buffer
    ranges = sorted(r.headers["range"] for r in proxy.requests if r.method == "GET")
    assert (
        sorted(
            [
                f"bytes=1-{PART}",
                f"bytes={PART + 1}-{2 * PART}",
                f"bytes={2 * PART + 1}-{3 * PART}",
                f"bytes={3 * PART + 1}-{3 * PART + 5}",
            ]
        )
        == ranges
    )


def test_a_large_upload_goes_in_numbered_parts(store: S3Store, proxy: RecordingProxy, tmp_path: Path) -> None:
    file = tmp_path / "source"
    file.write_bytes(bytes(2 * PART + 9))
    store.put_large("a", file)
    parts = sorted((r.path.split("partNumber=")[1][0], r.size) for r in proxy.requests if "partNumber=" in r.path)
    assert [("1", PART), ("2", PART), ("3", 9)] == parts


def test_an_object_replaced_while_it_is_read_is_not_a_mix(store: S3Store, proxy: RecordingProxy) -> None:
    store.put("a", bytes(2 * PART))
    other = Answer(206, b"x" * PART, "application/octet-stream")
    proxy.script("GET", "/a", other)
    with pytest.raises(StoreUnavailable, match="replaced while it was read"):
        store.get_range_into("a", 0, bytearray(2 * PART))


def test_a_store_that_ignores_ranges_is_misused(store: S3Store, proxy: RecordingProxy) -> None:
    proxy.script("GET", "/a", Answer(200, b"0123456789", "application/octet-stream"))
    with pytest.raises(StoreMisused, match="ranges"):
        store.get_range_into("a", 0, bytearray(5))


def test_a_failed_upload_is_aborted(store: S3Store, proxy: RecordingProxy) -> None:
    proxy.script("PUT", "partNumber=2", Answer.s3_error(500, "InternalError"))
    with pytest.raises(StoreUnavailable):
        store.put_large("a", bytes(3 * PART))
    assert 1 == len(headers_of(proxy, "DELETE", "uploadId="))
    with pytest.raises(NotFound):
        store.head("a")


def test_a_completion_that_fails_inside_a_200_is_a_failure(store: S3Store, proxy: RecordingProxy) -> None:
    proxy.script("POST", "uploadId=", Answer(200, b"<Error><Code>InternalError</Code><Message>late</Message></Error>"))
    with pytest.raises(StoreUnavailable, match="late"):
        store.put_large("a", bytes(PART + 1))
    with pytest.raises(NotFound):
        store.head("a")


# Answers


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "AccessDenied", StoreDenied),
        (403, "SignatureDoesNotMatch", StoreDenied),
        (403, "RequestTimeTooSkewed", StoreDenied),
        (404, "NoSuchBucket", NotFound),
        (400, "RequestTimeout", StoreUnavailable),
        (400, "InvalidArgument", StoreMisused),
        (409, "ConditionalRequestConflict", StoreUnavailable),
        (412, "PreconditionFailed", AlreadyExists),
        (429, "TooManyRequests", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
        (501, "NotImplemented", StoreMisused),
        (503, "SlowDown", StoreUnavailable),
        (507, "InsufficientStorage", StoreUnavailable),
    ],
)
def test_an_answer_becomes_its_error(
    store: S3Store, proxy: RecordingProxy, status: int, code: str, expected: type[SynclineError]
) -> None:
    proxy.script("PUT", "/run/a", Answer.s3_error(status, code))
    with pytest.raises(expected) as caught:
        store.put_if_absent("run/a", b"1")
    assert expected is type(caught.value)
    if expected is not NotFound:
        assert "run/a" in str(caught.value)


def test_a_clock_that_is_off_is_said(store: S3Store, proxy: RecordingProxy) -> None:
    proxy.script("GET", "/a", Answer.s3_error(403, "RequestTimeTooSkewed"))
    with pytest.raises(StoreDenied, match="clock is off"):
        store.get("a", max_bytes=1)


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_an_answer_without_a_body_becomes_its_error(store: S3Store, proxy: RecordingProxy, status: int) -> None:
    proxy.script("HEAD", "/a", Answer(status))
    expected = {403: StoreDenied, 404: NotFound}.get(status, StoreUnavailable)
    with pytest.raises(expected):
        store.head("a")


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateways_page_becomes_unavailable(store: S3Store, proxy: RecordingProxy, status: int) -> None:
    proxy.script("GET", "/a", Answer(status, b"<html>Bad Gateway</html>", "text/html"))
    with pytest.raises(StoreUnavailable):
        store.get("a", max_bytes=10)


def test_nonsense_for_a_listing_is_unavailable(store: S3Store, proxy: RecordingProxy) -> None:
    proxy.script("GET", "list-type=2", Answer(200, b"<html>captive portal"))
    with pytest.raises(StoreUnavailable):
        list(store.list_after(""))


CALLS: dict[str, Callable[[S3Store], object]] = {
    "get": lambda s: s.get("a", max_bytes=100),
    "range": lambda s: s.get_range_into("a", 0, bytearray(4)),
    "head": lambda s: s.head("a"),
    "list": lambda s: list(s.list_after("")),
    "put": lambda s: s.put("a", b"1"),
    "create": lambda s: s.put_if_absent("b", b"1"),
    "replace": lambda s: s.compare_and_put("c", b"1", etag=None),
    "large": lambda s: s.put_large("d", bytes(PART + 1)),
    "delete": lambda s: s.delete("a"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("when", ["before", "after", "half"])
def test_a_broken_connection_is_unavailable(store: S3Store, proxy: RecordingProxy, call: str, when: Break) -> None:
    store.put("a", b"0123")
    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        proxy.script(method, "", when, times=10)
    if when == "half" and call in ("put", "create", "replace", "delete", "head"):
        CALLS[call](store)  # an answer without a body has no half
        return
    with pytest.raises(StoreUnavailable):
        CALLS[call](store)


def test_a_store_that_is_down_is_unavailable(seaweed: Seaweed, proxy: RecordingProxy) -> None:
    location = S3Location.parse(f"s3://{BUCKET}?endpoint={proxy.endpoint}", {})
    proxy.stop()
    store = S3Store(location, S3Credentials.from_env(seaweed.environ))
    with pytest.raises(StoreUnavailable, match=proxy.endpoint):
        store.head("a")
    store.close()
    by_default = S3Store(replace(location, assumed=True), S3Credentials.from_env(seaweed.environ))
    with pytest.raises(StoreUnavailable, match="no endpoint was named, so Amazon's is asked"):
        by_default.head("a")
    by_default.close()


# With retries


def test_a_409_is_tried_again(retrying: RetryingStore, proxy: RecordingProxy) -> None:
    proxy.script("PUT", "/head", Answer.s3_error(409, "ConditionalRequestConflict"), times=2)
    etag = retrying.compare_and_put("head", b"1", etag=None)
    assert [("*", None)] * 3 == headers_of(proxy, "PUT", "/head")
    assert etag == retrying.head("head").etag


def test_a_412_is_not_tried_again(retrying: RetryingStore, proxy: RecordingProxy) -> None:
    retrying.put("head", b"1")
    with pytest.raises(HeadMoved):
        retrying.compare_and_put("head", b"2", etag="0123456789abcdef0123456789abcdef")
    assert 2 == len(headers_of(proxy, "PUT", "/head"))


def test_a_create_whose_reply_was_lost_is_recognized_as_mine(retrying: RetryingStore, proxy: RecordingProxy) -> None:
    proxy.script("PUT", "/a", "after")
    etag = retrying.put_if_absent("a", b"mine")
    assert 2 == len(headers_of(proxy, "PUT", "/a"))
    assert etag == retrying.head("a").etag


def test_a_replacement_whose_reply_was_lost_is_recognized_as_mine(
    retrying: RetryingStore, proxy: RecordingProxy
) -> None:
    etag = retrying.put("head", b"1")
    proxy.script("PUT", "/head", "after")
    assert retrying.compare_and_put("head", b"2", etag=etag) == retrying.head("head").etag


def test_a_completion_whose_reply_was_lost_is_recognized_as_mine(
    retrying: RetryingStore, proxy: RecordingProxy
) -> None:
    data = random.Random(2).randbytes(PART + 1)
    proxy.script("POST", "uploadId=", "after")
    etag = retrying.put_large("a", data)
    assert etag == retrying.head("a").etag
    buffer = bytearray(len(data))
    retrying.get_range_into("a", 0, buffer)
    assert data == buffer


def test_a_listing_that_breaks_goes_on_where_it_was(retrying: RetryingStore, proxy: RecordingProxy) -> None:
    for n in range(5):
        retrying.put(f"a/{n}", b"1")
    proxy.script("GET", "list-type=2", Answer.s3_error(503, "SlowDown"))
    assert [f"a/{n}" for n in range(5)] == [i.key for i in retrying.list_after("a/")]


# Keys and credentials


def test_a_reader_key_reads_and_is_refused_every_write(seaweed: Seaweed, prefix: str) -> None:
    location = S3Location.parse(seaweed.store_url(prefix), {})
    writer = S3Store(location, S3Credentials.from_env(seaweed.environ))
    reader = S3Store(location, S3Credentials.from_env(seaweed.reader_environ))
    etag = writer.put("a", b"1")
    found = reader.get("a", max_bytes=1)
    assert found is not None
    assert b"1" == found.data
    assert ["a"] == [i.key for i in reader.list_after("")]
    writes: list[Callable[[], object]] = [
        lambda: reader.put("a", b"2"),
        lambda: reader.put_if_absent("b", b"2"),
        lambda: reader.compare_and_put("a", b"2", etag=etag),
        lambda: reader.put_large("b", b"2"),
        lambda: reader.put_large("b", bytes(17 * MIB)),
        lambda: reader.delete("a"),
    ]
    for write in writes:
        with pytest.raises(StoreDenied, match="check the key pair"):
            write()
    assert ["a"] == [i.key for i in writer.list_after("")]
    assert etag == writer.head("a").etag


def test_a_wrong_key_pair_is_denied_and_never_told(seaweed: Seaweed, prefix: str) -> None:
    location = S3Location.parse(seaweed.store_url(prefix), {})
    credentials = S3Credentials(seaweed.access_key, "not-the-secret")
    store = S3Store(location, credentials)
    with pytest.raises(StoreDenied) as caught:
        store.put("a", b"1")
    for text in (str(caught.value), repr(caught.value.__cause__), repr(credentials), store.url):
        assert "not-the-secret" not in text


def test_a_missing_bucket_is_named(seaweed: Seaweed) -> None:
    location = S3Location.parse(f"s3://no-such-bucket?endpoint={seaweed.endpoint}", {})
    store = S3Store(location, S3Credentials.from_env(seaweed.environ))
    with pytest.raises(NotFound, match="bucket is not there"):
        store.get("a", max_bytes=1)


def test_a_bucket_is_made_once(seaweed: Seaweed) -> None:
    location = S3Location.parse(f"s3://fresh-bucket?endpoint={seaweed.endpoint}", {})
    store = S3Store(location, S3Credentials.from_env(seaweed.environ))
    store.create_bucket()
    store.create_bucket()
    assert [] == list(store.list_after(""))


def test_stores_with_different_prefixes_do_not_see_each_other(seaweed: Seaweed, prefix: str) -> None:
    credentials = S3Credentials.from_env(seaweed.environ)
    one, two = (S3Store(S3Location.parse(seaweed.store_url(f"{prefix}/{n}"), {}), credentials) for n in ("x", "xy"))
    one.put("a", b"1")
    two.put("b", b"2")
    assert ["a"] == [i.key for i in one.list_after("")]
    assert ["b"] == [i.key for i in two.list_after("")]


# Order of listings


@pytest.mark.parametrize(
    ("prefix", "after", "expected"),
    [
        ("", "", ""),
        ("v/", "v/000012.json", "v/00001"),
        ("v/", "v/000012", "v/00001"),
        ("", "run-1/x", "ru"),
        ("", "run/x", "ru"),
        ("v/", "v/a", ""),
        ("v/", "v/-a", ""),
        ("v/", "u", ""),
        ("v/00", "v/000012.json", "v/00001"),
    ],
)
def test_a_safe_start_skips_nothing_in_either_order(prefix: str, after: str, expected: str) -> None:
    assert expected == safe_start(prefix, after)


def test_a_tree_order_becomes_key_order() -> None:
    tree = ["a", "a/x", "a-b", "a0"]
    infos = (ObjectInfo(key, 1, "", 0.0) for key in tree)
    assert sorted(tree) == [i.key for i in in_key_order(infos, folder="")]


def test_a_flat_listing_is_not_gathered() -> None:
    taken: list[str] = []

    def listed() -> Iterator[ObjectInfo]:
        for n in range(100):
            taken.append(f"v/{n:03d}")
            yield ObjectInfo(taken[-1], 1, "", 0.0)

    assert "v/000" == next(in_key_order(listed(), folder="v/")).key
    assert ["v/000"] == taken
