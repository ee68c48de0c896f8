"""Which bucket, where, and by which key pair: parsed once at the edge from a url and an environment.

A url never holds a credential, so it may stand in logs, records and messages. Keys come from the environment only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from syncline.errors import StoreDenied, StoreMisused
from syncline.store.bounds import checked_key

DEFAULT_REGION = "us-east-1"
_BUCKET = re.compile(r"(?!.*(\.\.|\.-|-\.))(?!\d+(\.\d+){3}$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
"""As the S3 client takes them: no dot beside a dot or a hyphen, and no address."""
_HOST = re.compile(r"[A-Za-z0-9.\-\[\]:]+")
_PREFIX_MAX = 120
_HOLDS_A_CREDENTIAL = (
    "the store's url holds a credential; take it out and put the key pair into the environment, "
    "SYNCLINE_S3_ACCESS_KEY and SYNCLINE_S3_SECRET_KEY"
)


def split_url(url: str) -> SplitResult:
    """A url in its parts; StoreMisused, which does not repeat it, for what has none."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise StoreMisused(f"the store's url cannot be read ({error}); write s3://bucket/prefix or a folder") from None


def _is_host(where: SplitResult) -> bool:
    try:
        return where.port != 0 and bool(where.hostname) and _HOST.fullmatch(where.netloc) is not None
    except ValueError:  # a port that is none
        return False


@dataclass(frozen=True, slots=True)
class S3Location:
    """A prefix of a bucket at an endpoint."""

    bucket: str
    prefix: str
    host: str
    secure: bool
    region: str
    assumed: bool = False
    """Nobody named an endpoint, so it is Amazon's."""

    @property
    def words(self) -> str:
        """The url for messages, which says how to name another service where none was named."""
        hint = " (no endpoint was named, so Amazon's is asked; for another put ?endpoint=http://host:port into the url)"
        return self.url + (hint if self.assumed else "")

    @property
    def url(self) -> str:
        """The url that leads here again."""
        scheme = "https" if self.secure else "http"
        path = f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket
        return f"s3://{path}?endpoint={quote(f'{scheme}://{self.host}', safe=':/')}&region={self.region}"

    @classmethod
    def parse(cls, url: str, environ: Mapping[str, str]) -> S3Location:
        """From `s3://bucket/prefix?endpoint=…&region=…`; what the url leaves out comes from AWS's own variables or its
        public service."""
        parts = split_url(url)
        if "@" in parts.netloc:
            raise StoreMisused(_HOLDS_A_CREDENTIAL)
        options = dict(parse_qsl(parts.query))
        if unknown := options.keys() - {"endpoint", "region"}:
            raise StoreMisused(f"{url}: unknown option {sorted(unknown)[0]!r}; known are endpoint and region")
        if not _BUCKET.fullmatch(parts.netloc):
            raise StoreMisused(
                f"{url}: {parts.netloc!r} is not a bucket name; write s3://bucket/prefix, where a bucket name has 3 to 63 "
                "characters, lower-case letters, digits, '-' and single '.'"
            )
        prefix = parts.path.strip("/")
        if prefix and len(checked_key(prefix)) > _PREFIX_MAX:
            raise StoreMisused(f"{url}: the prefix is longer than {_PREFIX_MAX} characters")
        region = (
            options.get("region") or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
        )
        named = options.get("endpoint") or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        endpoint = named or f"https://s3.{region}.amazonaws.com"
        where = split_url(endpoint)
        if "@" in where.netloc:
            raise StoreMisused(_HOLDS_A_CREDENTIAL)
        if where.scheme not in ("http", "https") or not _is_host(where) or where.path.strip("/"):
            raise StoreMisused(
                f"{url}: the endpoint must be http://host:port or https://host:port; it comes from the url's endpoint=, "
                "else from AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL"
            )
        return cls(parts.netloc, prefix, where.netloc, where.scheme == "https", region, assumed=not named)


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """A key pair; its secret parts are never shown."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> S3Credentials:
        """Syncline's own variables first, then AWS's; StoreDenied when there are none."""
        half: list[str] = []
        for names in (
            ("SYNCLINE_S3_ACCESS_KEY", "SYNCLINE_S3_SECRET_KEY", "SYNCLINE_S3_SESSION_TOKEN"),
            ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        ):
            access, secret, token = (environ.get(name) for name in names)
            if access and secret:
                return cls(access, secret, token or None)
            if access or secret:
                half.append(f"{names[0]} is set without {names[1]}" if access else f"{names[1]} without {names[0]}")
        raise StoreDenied(
            f"no key pair for S3{''.join(f' ({told})' for told in half)}: set SYNCLINE_S3_ACCESS_KEY and SYNCLINE_S3_SECRET_KEY "
            "(or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"
        )
