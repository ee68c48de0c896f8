"""What the adapter reads off an S3 service's answer. Judges nothing: what an answer means is decided elsewhere."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from xml.etree import ElementTree

from urllib3.response import BaseHTTPResponse


@contextmanager
def finished(response: BaseHTTPResponse) -> Generator[None]:
    """A streamed response gives its connection back when it was read to the end, and closes it otherwise."""
    try:
        yield
    except BaseException:
        response.close()
        raise
    finally:
        response.release_conn()


def etag_of(response: BaseHTTPResponse) -> str:
    return response.headers.get("ETag", "").strip('"')


def modified_of(response: BaseHTTPResponse) -> float:
    return parsedate_to_datetime(response.headers["Last-Modified"]).timestamp()


def xml_of(response: BaseHTTPResponse) -> ElementTree.Element:
    return ElementTree.fromstring(response.data.decode())


def tag_of(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def text_of(element: ElementTree.Element, tag: str) -> str:
    for child in element:
        if tag_of(child) == tag:
            return child.text or ""
    return ""
