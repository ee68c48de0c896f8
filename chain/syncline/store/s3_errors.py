"""What an S3 service's answers mean in the port's words; the one table from status to error.

404             NotFound: the object; a missing bucket is named as such
403             StoreDenied
412             Lost: the condition of a write did not hold
409             StoreUnavailable: two conditional writes met, and trying again decides
429, 5xx        StoreUnavailable, as are timeouts and broken connections
501, other 4xx  StoreMisused: the store cannot do this
"""

from __future__ import annotations

from syncline.errors import NotFound, StoreDenied, StoreMisused, StoreUnavailable, SynclineError

RETRYABLE_CODES = frozenset(
    {
        "RequestTimeout",
        "SlowDown",
        "InternalError",
        "ServiceUnavailable",
        "OperationAborted",
        "IncompleteBody",
        "NoSuchUpload",
    }
)


class Lost(Exception):
    """A conditional write met a 412. Never leaves the S3 adapter: the method knows whether that is AlreadyExists or
    HeadMoved."""


def error_for(status: int, code: str, message: str, *, key: str, url: str) -> SynclineError | Lost:
    """The error that an unsuccessful answer stands for."""
    said = f"{key} in {url}: the store answered {status} {code}".rstrip() + (f" ({message})" if message else "")
    if status == 412:
        return Lost(said)
    if code == "NoSuchBucket":
        return NotFound(url, hint="the bucket is not there; create it or check the store's url")
    if status == 403:
        if code == "RequestTimeTooSkewed":
            return StoreDenied(f"{said}; this machine's clock is off, set it right")
        return StoreDenied(f"{said}; check the key pair and what it may do there")
    if status in (409, 429) or code in RETRYABLE_CODES or (status >= 500 and status != 501):
        return StoreUnavailable(f"{said}; try again later")
    if status == 404:
        return NotFound(key)
    return StoreMisused(f"{said}; the store cannot do this")
