"""Names of KV in SGLang's radix cache: requests of one version find only what that version computed.

For whoever sends requests (the gateway): SGLang takes the name as `extra_key` in the body of each request, and no route sets it
afterwards. With it, a commit leaves the cache alone (SYNCLINE_SGLANG_KV=keyed); older entries age out.
"""

from __future__ import annotations


def extra_key(version: int, salt: str | None = None) -> str:
    """The name for a request that starts under `version`; `salt` is the user's own. A scalar: lists break clients' types."""
    return f"{salt or ''}\x1fsyncline {version}"
