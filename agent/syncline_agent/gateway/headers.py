"""Which headers go on and which end at the gateway (RFC 9110, section 7.6.1). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from multidict import CIMultiDict, MultiMapping

OURS = "x-syncline-"
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def forwarded(headers: MultiMapping[str], *, without: Iterable[str] = ()) -> CIMultiDict[str]:
    """Headers as the next hop gets them: neither those of this connection, nor those that `Connection` names, nor the
    gateway's own; names in `without` are lower case."""
    named = {name.strip().lower() for line in headers.getall("Connection", []) for name in line.split(",")}
    gone = HOP_BY_HOP | named | set(without)
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in gone and not name.lower().startswith(OURS)
    )
