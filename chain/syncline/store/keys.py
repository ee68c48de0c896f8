"""Every key in a store (DESIGN section 4). No other module spells one.

    <run>/run.json                                   what the run is: lineage, tiling, views
    <run>/<view>/versions/<12 digits>.json           version manifest: writing it is the commit
    <run>/<view>/anchors/<12 digits>/manifest.json   anchor manifest; its files beside it, under a nonce
    <run>/<view>/skips/<12 digits>/<12 digits>.json  skip delta manifest: <to>/<from>
    <run>/<view>/chunks/<blake3>                     chunks and layouts, content-addressed
    <run>/<view>/head                                hint at the newest version
    <run>/<view>/vetoes/<12 digits>.json             marked bad
    <run>/<view>/consumers/<cluster>/<namespace>/<pool>/<node>.json
    <run>/<view>/leases/<id>.json
    <run>/<view>/probe/…                             throw-away objects of a start-up probe

The store's own prefix stands before all of them.
"""

from __future__ import annotations

import re

from syncline.errors import StoreMisused

NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
"""Runs, views, clusters, namespaces, pools and nodes: lower-case DNS-like names of at most 63 characters."""
HEX32 = re.compile(r"[0-9a-f]{64}")
VERSION_MAX = 10**12 - 1


def checked_name(name: str, what: str) -> str:
    """The name itself, or StoreMisused when it cannot be part of a key."""
    if not NAME.fullmatch(name) or ".." in name:
        raise StoreMisused(
            f"{what} {name!r} is not a name: lower-case letters, digits, '.', '_', '-', at most 63 characters"
        )
    return name


def digits(version: int) -> str:
    """A version as twelve digits, so that keys sort as versions do."""
    if not 0 < version <= VERSION_MAX:
        raise StoreMisused(f"version {version} is outside 1..{VERSION_MAX}")
    return f"{version:012d}"


def version_of(key: str) -> int:
    """The version whose twelve digits end the key (before `.json` or `/manifest.json`); StoreMisused when there is none."""
    match = re.search(r"/(\d{12})(?:\.json|/manifest\.json)$", key)
    if match is None or int(match[1]) == 0:
        raise StoreMisused(f"{key} does not end with a version")
    return int(match[1])


class RunKeys:
    """Keys of one run's objects."""

    def __init__(self, run: str) -> None:
        self.run = checked_name(run, "run")
        self.prefix = f"{run}/"

    @property
    def run_json(self) -> str:
        return f"{self.run}/run.json"

    def view(self, view: str = "main") -> ViewKeys:
        return ViewKeys(self.run, view)


class ViewKeys:
    """Keys of one view of a run."""

    def __init__(self, run: str, view: str = "main") -> None:
        self.run = checked_name(run, "run")
        self.view = checked_name(view, "view")
        if view == "run.json":
            raise StoreMisused("a view cannot be called run.json")
        self.prefix = f"{run}/{view}/"

    @property
    def versions(self) -> str:
        return f"{self.prefix}versions/"

    def version(self, version: int) -> str:
        return f"{self.versions}{digits(version)}.json"

    @property
    def anchors(self) -> str:
        return f"{self.prefix}anchors/"

    def anchor(self, version: int) -> str:
        return f"{self.anchors}{digits(version)}/manifest.json"

    def anchor_file(self, version: int, nonce: str, file: str) -> str:
        """A file of an anchor, below a nonce of its writer so that two writers never share one."""
        return f"{self.anchors}{digits(version)}/{nonce}/{file}"

    @property
    def skips(self) -> str:
        return f"{self.prefix}skips/"

    def skip(self, version: int, base: int) -> str:
        """The skip delta that leads from `base` to `version`."""
        return f"{self.skips}{digits(version)}/{digits(base)}.json"

    @property
    def chunks(self) -> str:
        return f"{self.prefix}chunks/"

    def chunk(self, blake3: str) -> str:
        if not HEX32.fullmatch(blake3):
            raise StoreMisused(f"{blake3!r} is not a BLAKE3 in lower-case hex")
        return f"{self.chunks}{blake3}"

    @property
    def head(self) -> str:
        return f"{self.prefix}head"

    @property
    def vetoes(self) -> str:
        return f"{self.prefix}vetoes/"

    def veto(self, version: int) -> str:
        return f"{self.vetoes}{digits(version)}.json"

    @property
    def consumers(self) -> str:
        return f"{self.prefix}consumers/"

    def consumer(self, cluster: str, namespace: str, pool: str, node: str) -> str:
        parts = [
            checked_name(p, w)
            for p, w in ((cluster, "cluster"), (namespace, "namespace"), (pool, "pool"), (node, "node"))
        ]
        return f"{self.consumers}{'/'.join(parts)}.json"

    @property
    def leases(self) -> str:
        return f"{self.prefix}leases/"

    def lease(self, lease_id: str) -> str:
        return f"{self.leases}{checked_name(lease_id, 'lease')}.json"

    @property
    def store_clock(self) -> str:
        """A small object that its owner rewrites to learn what time the store thinks it is."""
        return f"{self.prefix}clock"

    @property
    def probe(self) -> str:
        """Where a start-up probe writes what it removes again."""
        return f"{self.prefix}probe/"
