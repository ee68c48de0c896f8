"""The options that every command shares, what they open, and which version a command means. Reads the store, never writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import typer

from syncline.chain import ChainReader, newest_allowed
from syncline.errors import LinkMissing, NotFound, StoreDenied, StoreMisused, VersionVetoed
from syncline.store.base import WeightStore
from syncline.store.keys import NAME, ViewKeys
from syncline.store.open import open_store
from syncline.store.retrying import RetryPolicy
from syncline.wire.records import VersionManifest, VetoRecord
from syncline_cli.output import Output

LOOKING = RetryPolicy(deadline_s=10.0)
"""For commands that a person waits for: a store that is down is told soon."""
WORKING = RetryPolicy()
"""For commands that move weights: an outage should not undo minutes of work."""
RUNS_NAMED = 10
"""As many runs of a store are named in a message."""

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="SYNCLINE_STORE",
        help="Store: a folder, file:///dir, or s3://bucket/prefix?endpoint=http://host:port.",
    ),
]
RunOption = Annotated[str, typer.Option("--run", envvar="SYNCLINE_RUN", help="Run name.")]
ViewOption = Annotated[str, typer.Option("--view", envvar="SYNCLINE_VIEW", help="View of the run.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


@dataclass(frozen=True, slots=True)
class Opened:
    """A command's store, reader and output."""

    store: WeightStore
    reader: ChainReader
    output: Output


def opened(store: str, run: str, view: str, as_json: bool, *, patience: RetryPolicy = LOOKING) -> Opened:
    """Open the store and the run's view; nothing is asked of the store yet."""
    weight_store = open_store(store, policy=patience)
    return Opened(weight_store, ChainReader(weight_store, run, view), Output(as_json=as_json))


def opened_run(store: str, run: str, view: str, as_json: bool, *, patience: RetryPolicy = LOOKING) -> Opened:
    """Open a run that is there. NotFound says what the store holds instead."""
    at = opened(store, run, view, as_json, patience=patience)
    try:
        at.reader.run_record()
    except NotFound as error:
        raise NotFound(f"run {run} in {store}", whats_there(at)) from error
    return at


def whats_there(at: Opened) -> str:
    """The runs of a store, for whoever asked for another. Lists all of the store, so only for an error."""
    try:
        with at.output.err.status("looking at what else the store holds"):
            keys = [info.key for info in at.store.list_after("") if info.key.endswith("/run.json")]
        runs = sorted({key.partition("/")[0] for key in keys})
    except StoreDenied:
        return "check the run name (--run); this key pair may not list what the store holds"
    if not runs:
        return "nothing was ever published there: the store is empty, or its address is wrong; check --store"
    more = f" and {len(runs) - RUNS_NAMED} more" if len(runs) > RUNS_NAMED else ""
    return f"check the run name (--run); the store holds {', '.join(runs[:RUNS_NAMED])}{more}"


def checked_url(url: str, hint: str) -> str:
    """An address given on the command line, without the slash at its end; a wrong command line when it is none."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for one that is none
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise typer.BadParameter(f"{url!r} is no address: write http://host:port", param_hint=hint)
    return url.rstrip("/")


def head_or_none(reader: ChainReader) -> VersionManifest | None:
    """Head; None also while the run does not exist yet, for whoever waits for its first version."""
    try:
        return reader.head()
    except NotFound:
        return None


def newest(reader: ChainReader) -> VersionManifest:
    """Head, for commands that need one."""
    head = reader.head()
    if head is None:
        raise no_versions(reader)
    return head


def no_versions(reader: ChainReader) -> NotFound:
    """The run is there, the view holds nothing."""
    run, view = reader.keys.run, reader.keys.view
    if views := views_of(reader):
        return NotFound(f"view {view} of run {run}", f"check --view; the run has {', '.join(views)}")
    return NotFound(f"a version of {run}/{view}", "publish one with `syncline publish`")


def views_of(reader: ChainReader) -> list[str]:
    """The run's views that hold a version. Lists only where each begins, so only for an error; empty where this key pair
    may not list."""
    store, run, views, after = reader.store, reader.keys.run, list[str](), ""
    try:
        while (first := next(iter(store.list_after(f"{run}/", after=after, limit=1)), None)) is not None:
            view, slash, _ = first.key.removeprefix(f"{run}/").partition("/")
            if slash and NAME.fullmatch(view) and any(store.list_after(ViewKeys(run, view).versions, limit=1)):
                views.append(view)
            after = f"{run}/{view}0" if slash else first.key  # in a key's order "0" follows "/": past all of the view
    except (StoreDenied, StoreMisused):
        return []
    return sorted(views)


def newest_good(reader: ChainReader, head: int, vetoes: Mapping[int, VetoRecord]) -> int:
    """The version that a follower of head would hold: the newest that is not marked bad and is still there."""
    good = newest_allowed(head, vetoes)
    if good is not None and good != head:
        # Below head retention may have been: one listing instead of asking for one number after the other.
        good = next((v for v in reversed(reader.versions()) if v not in vetoes), None)
    if good is None:
        raise VersionVetoed(
            f"every version of {reader.keys.run}/{reader.keys.view} was marked bad, "
            f"the newest, {head}, because: {vetoes[head].reason}; "
            "publish a good one, or take a mark back with `syncline mark-bad --undo`"
        )
    return good


def manifest_of(reader: ChainReader, version: int) -> VersionManifest:
    """A version that a person named. NotFound when there never was one, LinkMissing when it was collected."""
    try:
        return reader.manifest(version)
    except LinkMissing as error:
        head, where = newest(reader).version, f"{reader.keys.run}/{reader.keys.view}"
        if version > head:
            raise NotFound(f"version {version} of {where}", f"the newest is {head}") from error
        oldest = min(reader.versions(), default=head)
        if version < oldest:
            raise LinkMissing(
                f"version {version} of {where} was collected by retention; versions {oldest} to {head} are left"
            ) from error
        raise LinkMissing(
            f"version {version} of {where} is missing between others; `syncline verify store` shows the damage"
        ) from error
