"""What an API server's answer means for whoever asked: come back later, look again, or give up until something changes.

    ApiFailure
    ├── (Retryable)
    │   ├── Unreachable     no answer, 5xx, or no answer in time: back off
    │   ├── Throttled       429: back off at least `retry_after` seconds
    │   ├── Outdated        409: the object is not what was looked at; look again
    │   └── Expired         410: what was read on from is gone; read from the start
    └── (Rejected)
        ├── Refused         401, 403: rights or credentials; a condition says which
        ├── Absent          404
        ├── Occupied        409: the name is taken
        ├── FieldsTaken     409: another field manager owns a field that was applied
        └── Malformed       400, 422: the object is not valid; the message names the fields

`Retryable` and `Rejected` are the library's: a reconcile backs off on the first and tells the second in a condition.
"""

from __future__ import annotations

from syncline.errors import Rejected, Retryable, SynclineError

UNTYPED = "failed to create typed patch object"
"""How an API server answers an apply of a field that its kind does not have: as an error of its own, though no repeating helps."""


class ApiFailure(SynclineError):
    """A request that did not do what was asked."""

    def __init__(self, message: str, *, code: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        """HTTP status; 0 where no answer came."""
        self.retry_after = retry_after
        """Seconds that the server asked to be left alone."""


class Unreachable(ApiFailure, Retryable):
    """No answer, or one that says that the server cannot serve now. A write may have been done all the same."""


class Throttled(ApiFailure, Retryable):
    """The server asked for fewer requests."""


class Outdated(ApiFailure, Retryable):
    """The object changed, or came or went, since it was looked at. Nothing was written."""


class Expired(ApiFailure, Retryable):
    """The list or watch cannot be read on from there."""


class Refused(ApiFailure, Rejected):
    """The server does not let this account do it."""


class Absent(ApiFailure, Rejected):
    """There is no such object, or no such kind of objects."""


class Occupied(ApiFailure, Rejected):
    """An object of that name exists."""


class FieldsTaken(ApiFailure, Rejected):
    """Somebody else decides about a field that was applied."""


class Malformed(ApiFailure, Rejected):
    """The server does not take an object like this."""


class NotLeading(Retryable):
    """This process does not hold the Lease (any more): it must write nothing."""


def failure(code: int, body: dict[str, object], *, about: str, retry_after: float = 0.0) -> ApiFailure:
    """The error of an answer that is no success; `body` is its `Status`."""
    said = str(body.get("message") or body.get("reason") or "no reason given")
    reason = body.get("reason")
    message = f"{about}: {said}"
    match code:
        case 409 if reason == "AlreadyExists":
            return Occupied(f"{message}; look at what is there", code=code)
        case 409 if "FieldManagerConflict" in _causes(body):
            return FieldsTaken(f"{message}; let one of the two decide about the field", code=code)
        case 409:
            return Outdated(f"{message}; look again", code=code, retry_after=retry_after)
        case 410:
            return Expired(f"{message}; read from the start", code=code)
        case 401 | 403:
            return Refused(f"{message}; give the operator's account the right", code=code)
        case 404:
            return Absent(message, code=code)
        case 429:
            return Throttled(f"{message}; ask again in {retry_after:g} s", code=code, retry_after=retry_after)
        case 500 if UNTYPED in said:
            return Malformed(f"{message} (HTTP {code})", code=code)
        case _ if code >= 500:
            return Unreachable(f"{message} (HTTP {code}); ask again later", code=code, retry_after=retry_after)
        case _:
            return Malformed(f"{message} (HTTP {code})", code=code)


def _causes(body: dict[str, object]) -> set[object]:
    details = body.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return {cause.get("reason") for cause in causes or () if isinstance(cause, dict)}
