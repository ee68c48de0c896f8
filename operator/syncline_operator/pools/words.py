"""What an agent's sentence about itself is about. Agents tell errors in words alone, so these are what is looked for.

An error that is of no known kind is never taken for another: it is told by the widest reason, with its own words.
"""

from __future__ import annotations

_STORE = (
    ("BucketMissing", ("the bucket is not there",)),
    ("CertificateRefused", ("certificate verify failed", "CERTIFICATE_VERIFY_FAILED")),
    ("StoreDenied", ("the store answered 403", "no key pair for S3")),
)
_FOLLOWING = (
    ("RunMissing", ("check the run name in target.json", "nothing was ever published", "has no version of view")),
    ("LineageChanged", ("the run name was reused",)),
    ("VersionVetoed", ("was marked bad",)),
    ("VersionMissing", ("is pinned and not committed yet", "check the run name, the prefix and retention")),
)
_FULL = ("no room to write", "make room on the node")


def store_fault(error: str | None) -> str | None:
    """The reason of StoreReachable that a sentence is about; None where it is not about the store."""
    return _first(error, _STORE)


def following_fault(error: str | None) -> str | None:
    """The reason of WeightsCurrent that a sentence is about, where it is one of those that have a name."""
    return _first(error, _FOLLOWING)


def is_full(error: str | None) -> bool:
    return error is not None and any(words in error for words in _FULL)


def _first(error: str | None, table: tuple[tuple[str, tuple[str, ...]], ...]) -> str | None:
    if error is None:
        return None
    return next((reason for reason, known in table if any(words in error for words in known)), None)
