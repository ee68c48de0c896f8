"""`syncline materialize`, `mark-bad` and `gc`: what keeps a run usable, by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from syncline import checkpoint
from syncline.chain import mark_of, marked_bad, undoing
from syncline.clock import SystemClock
from syncline.errors import StoreMisused
from syncline.metrics import Metrics
from syncline_cli.context import (
    WORKING,
    JsonOption,
    RunOption,
    StoreOption,
    ViewOption,
    manifest_of,
    newest,
    newest_good,
    no_versions,
    opened_run,
)
from syncline_cli.output import size
from syncline_cli.staying import why_versions_stay
from syncline_distributor import vetoes
from syncline_distributor.settings import LEASE_LEAST_S, RetentionSettings
from syncline_distributor.sweeper import Sweeper


def materialize(
    folder: Annotated[
        Path, typer.Argument(help="Folder to make, or to bring to the version if Syncline made it before.")
    ],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Version; default: the newest that is not marked bad.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a version as a servable safetensors folder, every digest checked."""
    at = opened_run(store, run, view, as_json, patience=WORKING)
    vetoes = at.reader.vetoes()
    if version is None:
        version = newest_good(at.reader, newest(at.reader).version, vetoes)
    else:
        manifest_of(at.reader, version)
    with at.output.transfer(f"version {version}") as progress, ThreadPoolExecutor() as pool:
        made = checkpoint.materialize(at.reader, version, folder, executor=pool, vetoed=vetoes, progress=progress)
    marker = made.marker
    digest = marker.digest if marker is not None else ""
    tied = {spec.name: spec.aliases for spec in made.table.tensors if spec.aliases}
    at.output.result(
        {"folder": str(folder), "version": version, "digest": digest, "bytes": made.table.size_bytes, "tied": tied}
    )
    at.output.line(f"{folder}  version {version}  {size(made.table.size_bytes)}  digest {digest}")
    for owner, aliases in tied.items():
        verb = "is" if len(aliases) == 1 else "are"
        at.output.line(f"{', '.join(aliases)} {verb} tied to {owner}: written once, under that name")


def mark_bad(
    version: Annotated[int, typer.Argument(min=1, help="Version that nobody should serve.")],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    reason: Annotated[
        str, typer.Option("--reason", help="Why; shown to everyone who meets the veto.")
    ] = "marked bad by hand",
    undo: Annotated[bool, typer.Option("--undo", help="Take the mark back.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Mark a version bad: followers skip it, or leave it if they serve it."""
    at = opened_run(store, run, view, as_json)
    if undo:
        before = mark_of(version, at.reader.vetoes())
        vetoes.unmark(at.reader, version)
        own = before is not None and before.version == version
        at.output.line(f"version {version} {'is no longer' if own else 'was not'} marked bad")
    else:
        manifest_of(at.reader, version)
        vetoes.mark_bad(at.reader, version, reason, clock=SystemClock())
        at.output.line(f"version {version} is marked bad: {reason}")
    now = at.reader.vetoes()
    mark = mark_of(version, now)
    if mark is not None and mark.version != version:
        at.output.line(f"it is still skipped: {marked_bad(version, now)}; to serve it: {undoing(version, now)}")
    for other, its in now.items():
        if its.version == version != other:
            at.output.line(f"version {other} changes nothing on it and goes with it")
    at.output.result(
        {"version": version, "bad": mark is not None, "reason": None if mark is None else mark.reason},
    )


def gc(
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete; takes one lease period, for readers that list right now.")
    ] = False,
    lease_period: Annotated[
        float, typer.Option("--lease-period", min=1.0, help="Seconds; nothing younger is deleted.")
    ] = 300.0,
    nobody_writes: Annotated[
        bool,
        typer.Option(
            "--nobody-writes", help="No writer is at work or asleep: also takes what a publish on its way may name."
        ),
    ] = False,
    keep_versions: Annotated[
        int, typer.Option("--keep-versions", min=0, help="Newest versions that stay in any case.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show what retention would delete; with --delete, mark it, wait one lease period, look again, delete."""
    if delete and lease_period < LEASE_LEAST_S and not nobody_writes:
        raise typer.BadParameter(
            f"{lease_period:g} s could take the chunks of a publish on its way; give at least {LEASE_LEAST_S:g}, "
            "or say --nobody-writes",
            param_hint="--lease-period",
        )
    at = opened_run(store, run, view, as_json, patience=WORKING)
    if not any(at.store.list_after(at.reader.keys.prefix, limit=1)):
        raise no_versions(at.reader)
    clock = SystemClock()
    settings = RetentionSettings(lease_period_s=lease_period, keep_versions=keep_versions, nobody_writes=nobody_writes)
    sweeper = Sweeper(at.store, at.reader, settings, Metrics())
    survey = sweeper.survey()
    if survey.blocked is not None:
        raise StoreMisused(f"nothing can be collected in {run}/{view}: {survey.blocked}")
    objects = [{"key": info.key, "bytes": info.size} for info in survey.unneeded.values()]
    total = sum(info.size for info in survey.unneeded.values())
    at.output.table(["bytes", "object"], [[str(o["bytes"]), str(o["key"])] for o in objects])
    at.output.line(f"{len(objects)} objects, {size(total)} are needed by nobody; {size(survey.kept_bytes)} stay")
    fewer = any(key.startswith(at.reader.keys.versions) for key in survey.unneeded)
    why = None if fewer else why_versions_stay(survey, settings, at.reader.keys.prefix)
    if why is not None:
        at.output.line(why)
    document = {
        "unneeded": objects,
        "bytes": total,
        "kept_bytes": survey.kept_bytes,
        "deleted": 0,
        "deleted_bytes": 0,
        "why_versions_stay": why,
    }
    if delete and objects:
        sweeper.sweep()
        at.output.note(f"marked; waiting {lease_period:.0f} s for readers that listed before")
        clock.sleep(lease_period)
        swept = sweeper.sweep()
        if swept.blocked is not None:
            raise StoreMisused(f"nothing was deleted in {run}/{view}: {swept.blocked}")
        document |= {"deleted": swept.deleted, "deleted_bytes": swept.deleted_bytes}
        at.output.line(f"deleted {swept.deleted} objects, {size(swept.deleted_bytes)}")
        if swept.held:
            at.output.note(
                f"{swept.held} objects wait for the next version: a publish on its way may name them; "
                "where nobody writes any more, say --nobody-writes"
            )
    elif objects:
        at.output.line("dry run: nothing was deleted; say --delete")
    at.output.result(document)
