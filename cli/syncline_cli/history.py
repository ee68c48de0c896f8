"""`syncline log`, `show` and `diff`: what is in a run, read from manifests alone (no weight bytes are fetched)."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

import typer

from syncline.chain import ChainReader
from syncline.clock import SystemClock
from syncline.errors import LinkMissing, NotFound, Rejected
from syncline.wire.limits import RECORD_MAX_BYTES
from syncline.wire.records import ConsumerRecord, VersionManifest
from syncline_cli.context import JsonOption, RunOption, StoreOption, ViewOption, opened
from syncline_cli.output import age, size


def log(
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    count: Annotated[int, typer.Option("-n", "--count", help="How many versions, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List versions, newest first: what each changed, cost, and who serves it."""
    at = opened(store, run, view, as_json)
    head = at.reader.head()
    if head is None:
        raise NotFound(f"{run}/{view}", "the run has no versions yet; publish one")
    anchors, vetoes, there = set(at.reader.anchors()), at.reader.vetoes(), _who_is_there(at.reader)
    now = SystemClock().now()
    entries: list[dict[str, Any]] = []
    for version in range(head.version, max(0, head.version - count), -1):
        try:
            manifest = at.reader.manifest(version)
        except LinkMissing:
            break  # collected by retention; everything older is too
        entry = summary(manifest)
        entry["anchor"] = version in anchors
        entry["vetoed"] = version in vetoes
        entry["age_seconds"] = round(now - manifest.created_ms / 1000, 1)
        entry["served_by"] = there[version]
        entries.append(entry)
    at.output.result(entries)
    at.output.table(
        ["version", "parent", "step", "kind", "changed", "bytes", "bits/change", "age", "served by"],
        [
            [
                str(e["version"]),
                str(e["parent"] or "-"),
                "-" if e["step"] is None else str(e["step"]),
                e["kind"]
                + (" +anchor" if e["anchor"] and e["kind"] != "anchor-only" else "")
                + (" BAD" if e["vetoed"] else ""),
                f"{100 * e['changed_ratio']:.3g} %",
                size(e["payload_bytes"]),
                "-" if e["bits_per_change"] is None else f"{e['bits_per_change']:.2f}",
                age(e["age_seconds"]),
                ", ".join(e["served_by"]),
            ]
            for e in entries
        ],
    )


def show(
    version: Annotated[int, typer.Argument(help="Version to show.")],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    as_json: JsonOption = False,
) -> None:
    """Show one version's manifest: lineage, chunks, digests, statistics, tensors."""
    at = opened(store, run, view, as_json)
    manifest = at.reader.manifest(version)
    table = at.reader.table(manifest)
    document = manifest.model_dump(mode="json") | {"identity": manifest.identity(), "summary": summary(manifest)}
    at.output.result(document)
    facts = summary(manifest) | {
        "lineage": manifest.lineage,
        "epoch": manifest.epoch,
        "digest": manifest.digest,
        "identity": manifest.identity(),
        "tensors": f"{len(table.tensors)} ({size(table.size_bytes)})",
        "chunks": len(manifest.chunks),
        "codecs": ", ".join(f"{n} {c}" for n, c in manifest.statistics.codecs.items()) or "-",
        "labels": ", ".join(f"{k}={v}" for k, v in manifest.labels.items()) or "-",
        "signature": "none"
        if manifest.signature is None
        else f"{manifest.signature.algorithm} by {manifest.signature.key_id}",
    }
    at.output.table(["field", "value"], [[k, str(v)] for k, v in facts.items()])


def diff(
    first: Annotated[int, typer.Argument(help="Older version.")],
    second: Annotated[int, typer.Argument(help="Newer version.")],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    as_json: JsonOption = False,
) -> None:
    """Name the tensors that differ between two versions, by their digests."""
    at = opened(store, run, view, as_json)
    before, after = at.reader.manifest(first), at.reader.manifest(second)
    if before.lineage != after.lineage:
        raise Rejected(f"versions {first} and {second} belong to different lineages; nothing to compare")
    old = dict(zip((t.name for t in at.reader.table(before).tensors), before.digests(), strict=True))
    new = dict(zip((t.name for t in at.reader.table(after).tensors), after.digests(), strict=True))
    document = {
        "appeared": sorted(new.keys() - old.keys()),
        "disappeared": sorted(old.keys() - new.keys()),
        "changed": sorted(n for n in new.keys() & old.keys() if new[n] != old[n]),
        "same": sum(new[n] == old[n] for n in new.keys() & old.keys()),
    }
    at.output.result(document)
    rows = [[kind, name] for kind in ("appeared", "disappeared", "changed") for name in document[kind]]
    at.output.table(["what", "tensor"], rows)
    at.output.line(f"{len(rows)} tensors differ, {document['same']} are the same")


def summary(manifest: VersionManifest) -> dict[str, Any]:
    """A version in a line."""
    s = manifest.statistics
    if manifest.base is None:
        kind = "anchor-only"
    elif not manifest.chunks:
        kind = "empty"
    else:
        kind = "fork" if manifest.parent != manifest.base else "delta"
    return {
        "version": manifest.version,
        "parent": manifest.parent,
        "base": manifest.base,
        "step": manifest.step,
        "kind": kind,
        "changed_ratio": s.changed_units / s.units if s.units else 0.0,
        "changed_units": s.changed_units,
        "payload_bytes": s.payload_bytes if manifest.base is not None else s.full_bytes,
        "bits_per_change": 8 * s.payload_bytes / s.changed_units
        if s.changed_units and manifest.base is not None
        else None,
        "nonfinite": s.nonfinite,
    }


def _who_is_there(reader: ChainReader) -> dict[int, list[str]]:
    there: dict[int, list[str]] = defaultdict(list)
    for info in reader.store.list_after(reader.keys.consumers):
        fetched = reader.store.get(info.key, max_bytes=RECORD_MAX_BYTES)
        if fetched is None:
            continue
        beat = ConsumerRecord.parse(fetched.data, what=info.key)
        if beat.applied is not None and not beat.leaving:
            there[beat.applied].append(f"{beat.pool}/{beat.node}" + ("" if beat.proven else " (unproven)"))
    return there
