"""Listings in the byte order of whole keys, whatever order an S3 service lists in. Pure: knows keys, not requests.

S3 itself sorts whole keys (`a-b` < `a/x` < `a0`). Services that keep a tree, SeaweedFS among them, list a folder's children right
after it (`a/x` < `a-b`), and their start-after follows that order.
"""

from __future__ import annotations

from collections.abc import Iterator

from syncline.store.base import ObjectInfo


def safe_start(prefix: str, after: str) -> str:
    """A place to start a listing from that skips no key after `after`, whatever order the service lists in.

    Some services list a tree (all of `a/` before `a-b`), and their start-after follows that order. Both orders agree on
    names that differ before any character below `/`; so the start is the name after the prefix's folder, cut before
    such a character, and one character more (a start that is itself the name of a folder would skip the folder).
    """
    if not after.startswith(prefix):
        return ""
    folder = prefix[: prefix.rfind("/") + 1]
    name = after[len(folder) :].split("/", 1)[0]
    cut = next((i for i, character in enumerate(name) if character < "/"), len(name))
    return folder + name[: cut - 1] if cut > 1 else ""


def in_key_order(listed: Iterator[ObjectInfo], *, folder: str) -> Iterator[ObjectInfo]:
    """The same objects in the byte order of their keys.

    Objects directly in the listing's folder come in order from every service and are passed on as they come; from the
    first object of a deeper folder on, the rest is gathered and sorted.
    """
    for info in listed:
        if "/" in info.key[len(folder) :]:
            yield from sorted([info, *listed], key=lambda i: i.key)
            return
        yield info
