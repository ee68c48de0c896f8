# The client's public `put_object` turns If-None-Match into user metadata and so writes unconditionally, and it cannot
# complete a multipart upload under a condition at all. Both go through private calls of the pinned client, here and
# nowhere else.
# pyright: reportPrivateUsage=false
"""The S3 adapter: objects of a bucket below a prefix.

The only module that knows the S3 client, and the one place where conditional writes are spelled. It never retries (the
client's own retries are off): a lost reply to a conditional write is ambiguous, and only `RetryingStore` knows how to
settle it. Large objects go up in parallel parts and come down in parallel ranges over one bounded pool of threads and
connections.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import certifi
import urllib3
from minio import Minio
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from typing_extensions import Buffer
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from syncline.clock import Clock, SystemClock
from syncline.errors import AlreadyExists, HeadMoved, NotFound, StoreMisused, StoreUnavailable
from syncline.store.base import Fetched, ObjectInfo
from syncline.store.bounds import check_listing, checked_key
from syncline.store.buffers import PartSource, flat_view, open_source, writable_view
from syncline.store.s3_answers import etag_of, finished, modified_of, tag_of, text_of, xml_of
from syncline.store.s3_connections import Pace, paced_pools
from syncline.store.s3_errors import Lost, error_for
from syncline.store.s3_listing import in_key_order, safe_start
from syncline.store.s3_location import S3Credentials, S3Location

PART_BYTES = 16 << 20
"""Part of an upload; the service allows 10,000 of them, so larger objects get larger parts."""
PARTS_MAX = 10_000
RANGE_BYTES = 8 << 20
THREADS = 8
CONNECTIONS = 32
"""Kept open: the transfer threads' and the callers' own."""
READ_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
"""Of silence; and the grace of a request before it must have come on at `BYTES_PER_S`."""
BYTES_PER_S = 32 << 10
"""The least that one request must average: a service that drips is as good as down."""
LIST_PAGE = 1000


class S3Store:
    """Objects of one bucket below one prefix."""

    def __init__(
        self,
        location: S3Location,
        credentials: S3Credentials,
        *,
        threads: int = THREADS,
        part_bytes: int = PART_BYTES,
        range_bytes: int = RANGE_BYTES,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        bytes_per_s: float = BYTES_PER_S,
        ca_file: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = location.url
        self._location = location
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._part_bytes = part_bytes
        self._range_bytes = range_bytes
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="s3")
        self._connections = paced_pools(
            Pace(clock or SystemClock(), read_timeout_s, bytes_per_s),
            maxsize=max(CONNECTIONS, threads),
            timeout=urllib3.Timeout(connect=connect_timeout_s, read=read_timeout_s),
            retries=False,
            cert_reqs="CERT_REQUIRED",
            ca_certs=ca_file or certifi.where(),
        )
        self._client = Minio(
            location.host,
            access_key=credentials.access_key,
            secret_key=credentials.secret_key,
            session_token=credentials.session_token,
            secure=location.secure,
            region=location.region,
            http_client=self._connections,
        )
        self._bucket = location.bucket

    def close(self) -> None:
        """Give threads and connections back."""
        self._threads.shutdown()
        pools = self._connections.pools
        for pool in [pools[key] for key in list(pools.keys())]:
            pool.close()  # clearing alone closes it when it is collected as garbage
        self._connections.clear()

    def create_bucket(self) -> None:
        """Make the bucket where it is not there yet."""
        with self._errors("bucket"):
            if not self._client.bucket_exists(self._bucket):
                self._client.make_bucket(self._bucket)

    def get(self, key: str, *, max_bytes: int, if_none_match: str | None = None) -> Fetched | None:
        headers = {} if if_none_match is None else {"If-None-Match": f'"{if_none_match}"'}
        with self._errors(key):
            try:
                response = self._open(key, headers)
            except ServerError as error:
                if error.status_code == 304:
                    return None
                raise
            with finished(response):
                size = int(response.headers.get("Content-Length", "0"))
                if size > max_bytes:
                    raise StoreMisused(f"{key} holds {size} bytes; at most {max_bytes} were expected")
                data = response.read()
                if len(data) != size:
                    raise StoreUnavailable(f"{key} in {self.url}: {len(data)} of {size} bytes came; try again")
                return Fetched(data, etag_of(response), modified_of(response))

    def get_range_into(self, key: str, offset: int, buffer: Buffer) -> None:
        view = writable_view(buffer)
        if offset < 0:
            raise StoreMisused(f"{key}: a range cannot begin at {offset}")
        if view.nbytes == 0:
            size = self.head(key).size
            if offset > size:
                raise StoreMisused(f"{key} holds {size} bytes; a range from {offset} was asked for")
            return
        starts = range(0, view.nbytes, self._range_bytes)
        if len(starts) == 1:
            self._read_range(key, offset, view)
            return
        etags = self._in_parallel(
            lambda start: self._read_range(key, offset + start, view[start : start + self._range_bytes]), starts
        )
        if len(set(etags)) != 1:
            raise StoreUnavailable(f"{key} in {self.url} was replaced while it was read; read it again")

    def put_if_absent(self, key: str, data: Buffer) -> str:
        try:
            return self._put(key, data, {"If-None-Match": "*"})
        except Lost as lost:
            raise AlreadyExists(key) from lost

    def compare_and_put(self, key: str, data: Buffer, *, etag: str | None) -> str:
        condition = {"If-None-Match": "*"} if etag is None else {"If-Match": f'"{etag}"'}
        try:
            return self._put(key, data, condition)
        except (Lost, NotFound) as lost:
            if isinstance(lost, NotFound) and lost.key != key:
                raise  # the bucket is not there
            raise HeadMoved(f"{key} in {self.url} no longer has etag {etag}; read it again") from lost

    def put(self, key: str, data: Buffer) -> str:
        return self._put(key, data, {})

    def put_large(self, key: str, source: Path | Buffer) -> str:
        with open_source(source) as parts:
            if parts.size <= self._part_bytes:
                return self.put_if_absent(key, parts.read(0, parts.size))
            try:
                self.head(key)
            except NotFound:
                return self._put_in_parts(key, parts)
            raise AlreadyExists(key)  # before gigabytes are sent; the condition of the completion decides

    def head(self, key: str) -> ObjectInfo:
        with self._errors(key):
            response = self._call("HEAD", key)
            return ObjectInfo(key, int(response.headers["Content-Length"]), etag_of(response), modified_of(response))

    def list_after(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        check_listing(prefix, after, limit)
        found = in_key_order(
            self._listed(prefix, safe_start(prefix, after), limit), folder=prefix[: prefix.rfind("/") + 1]
        )
        count = 0
        for info in found:
            if count == limit:
                return
            if info.key > after:
                yield info
                count += 1

    def delete(self, key: str) -> None:
        with self._errors(key):
            try:
                self._call("DELETE", key)
            except S3Error as error:
                if error.code != "NoSuchKey":
                    raise

    # Requests

    def _name(self, key: str) -> str:
        return self._prefix + checked_key(key)

    def _call(
        self, method: str, key: str, *, body: Buffer | None = None, headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
    ) -> BaseHTTPResponse:  # fmt: skip
        return self._client._execute(
            method,
            self._bucket,
            self._name(key),
            body=cast(bytes, body),
            headers=cast(Any, headers),
            query_params=cast(Any, query),
            no_body_trace=True,
        )

    def _open(self, key: str, headers: dict[str, str]) -> BaseHTTPResponse:
        return self._client.get_object(self._bucket, self._name(key), request_headers=cast(Any, headers))

    def _put(self, key: str, data: Buffer, condition: dict[str, str]) -> str:
        headers = {"Content-Type": "application/octet-stream", **condition}
        with self._errors(key):
            return etag_of(self._call("PUT", key, body=flat_view(data), headers=headers))

    def _read_range(self, key: str, offset: int, view: memoryview) -> str:
        end = offset + view.nbytes
        with self._errors(key):
            response = self._open(key, {"Range": f"bytes={offset}-{end - 1}"})
            with finished(response):
                size = int(response.headers.get("Content-Length", "-1"))
                if response.status != 206 and (offset, size) != (0, view.nbytes):
                    raise StoreMisused(f"{key} in {self.url}: the store does not honour ranges")
                if size != view.nbytes:
                    raise StoreMisused(
                        f"{key} ends after {offset + size} bytes; bytes {offset} to {end} were asked for"
                    )
                done = 0
                while done < view.nbytes:
                    piece = response.read(min(READ_BYTES, view.nbytes - done))
                    if not piece:
                        raise StoreUnavailable(f"{key} in {self.url}: {done} of {view.nbytes} bytes came; try again")
                    view[done : done + len(piece)] = piece
                    done += len(piece)
                return etag_of(response)

    def _put_in_parts(self, key: str, parts: PartSource) -> str:
        part_bytes = max(self._part_bytes, -(-parts.size // PARTS_MAX))
        starts = range(0, parts.size, part_bytes)

        def upload(start: int) -> str:
            data = parts.read(start, min(part_bytes, parts.size - start))
            query = {"partNumber": str(start // part_bytes + 1), "uploadId": upload_id}
            with self._errors(key):
                return etag_of(self._call("PUT", key, body=data, query=query))

        with self._errors(key):
            started = self._call(
                "POST", key, headers={"Content-Type": "application/octet-stream"}, query={"uploads": ""}
            )
            upload_id = text_of(xml_of(started), "UploadId")
            try:
                etags = self._in_parallel(upload, starts)
                return self._complete(key, upload_id, etags)
            except BaseException as error:
                self._abort(key, upload_id)
                if isinstance(error, Lost):
                    raise AlreadyExists(key) from error
                raise

    def _complete(self, key: str, upload_id: str, etags: Sequence[str]) -> str:
        listed = "".join(
            f'<Part><PartNumber>{number}</PartNumber><ETag>"{etag}"</ETag></Part>'
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        headers = {"Content-Type": "application/xml", "If-None-Match": "*"}
        with self._errors(key):
            answer = xml_of(self._call("POST", key, body=body, headers=headers, query={"uploadId": upload_id}))
            if tag_of(answer) == "Error":  # a completion that fails late is a 200 with an error in its body
                status = 412 if text_of(answer, "Code") == "PreconditionFailed" else 500
                raise error_for(
                    status, text_of(answer, "Code"), text_of(answer, "Message"), key=key, url=self._location.words
                )
            return text_of(answer, "ETag").strip('"')

    def _abort(self, key: str, upload_id: str) -> None:
        """Let the store free the parts. What it does not hear of, the bucket's lifecycle rule for incomplete uploads
        removes."""
        try:
            with self._errors(key):
                self._call("DELETE", key, query={"uploadId": upload_id})
        except Exception:
            pass  # the upload's own error is the one that the caller must see

    def _listed(self, prefix: str, start: str, limit: int | None) -> Iterator[ObjectInfo]:
        page = LIST_PAGE if limit is None else max(1, min(LIST_PAGE, limit))
        with self._errors(prefix):
            found = self._client._list_objects(
                self._bucket,
                prefix=self._prefix + prefix,
                start_after=self._prefix + start if start else None,
                max_keys=page,
            )
            for item in found:
                key = cast(str, item.object_name).removeprefix(self._prefix)
                if key and not key.endswith("/"):  # folder markers that other tools leave
                    modified = cast(datetime, item.last_modified)
                    yield ObjectInfo(key, item.size or 0, item.etag or "", modified.timestamp())

    def _in_parallel(self, call: Callable[[int], str], starts: Sequence[int]) -> list[str]:
        """All results in order. On the first failure nothing more is started, and what runs is waited for: it writes
        into the caller's buffer or reads the caller's file."""
        futures: list[Future[str]] = [self._threads.submit(call, start) for start in starts]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            for future in futures:
                future.cancel()
            wait(futures)
        for future in futures:
            if not future.cancelled() and (error := future.exception()) is not None:
                raise error
        return [future.result() for future in futures]

    @contextmanager
    def _errors(self, key: str) -> Generator[None]:
        """Turn the client's errors into the port's; messages carry no credential, as urls hold none."""
        try:
            yield
        except S3Error as error:
            status = error.response.status
            raise error_for(
                status, str(error.code or ""), str(error.message or ""), key=key, url=self._location.words
            ) from error
        except ServerError as error:
            raise error_for(error.status_code, "", "", key=key, url=self._location.words) from error
        except InvalidResponseError as error:
            raise error_for(error._code, "", "not in S3's words", key=key, url=self._location.words) from error
        except (MinioException, HTTPError, OSError, ElementTree.ParseError, LookupError, ValueError) as error:
            raise StoreUnavailable(
                f"{key} in {self._location.words}: no usable answer ({type(error).__name__}: {error}); "
                "check the endpoint and the network"
            ) from error
