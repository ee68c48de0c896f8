"""`syncline log`, `show` and `diff`: what is in a run, read from manifests alone; only `show --tensors` fetches a delta."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

import typer

from syncline.chain import ChainReader, mark_of, marked_bad
from syncline.clock import SystemClock
from syncline.errors import ChainBroken, Corrupt, FormatInvalid, LinkMissing, NotFound, StoreMisused
from syncline.wire.limits import RECORD_MAX_BYTES
from syncline.wire.records import ConsumerRecord, VersionManifest
from syncline_cli.context import (
    JsonOption,
    Opened,
    RunOption,
    StoreOption,
    ViewOption,
    manifest_of,
    no_versions,
    opened_run,
)
from syncline_cli.output import age, counted, size
from syncline_cli.tensors import tensors_of


def log(
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many versions, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List versions, newest first: what each changed, cost, and who serves it."""
    at = opened_run(store, run, view, as_json)
    versions = _newest_versions(at.reader, count)
    anchors, vetoes, there = set(at.reader.anchors()), at.reader.vetoes(), _who_is_there(at)
    now = SystemClock().now()
    entries: list[dict[str, Any]] = []
    for version in versions:
        try:
            manifest = at.reader.manifest(version)
        except LinkMissing:
            continue  # collected since it was listed
        except Corrupt as error:
            at.output.note(f"version {version} cannot be read: {error}")
            entries.append({"version": version, "kind": "unreadable", "error": str(error)})
            continue
        entry = summary(manifest, at.reader)
        entry["anchor"] = version in anchors
        entry["vetoed"] = version in vetoes
        entry["age_seconds"] = round(now - manifest.created_ms / 1000, 1)
        entry["served_by"] = there[version]
        entries.append(entry)
    at.output.result(entries)
    columns = ["version", "parent", "step", "kind", "changed", "bytes", "bits/chg", "age", "served by"]
    at.output.table(columns, [_row(entry) for entry in entries])


def _newest_versions(reader: ChainReader, count: int) -> list[int]:
    """The newest `count` versions that are there, newest first; of a long run only the end is listed."""
    head = reader.head()
    if head is None:
        raise no_versions(reader)
    window = count
    while True:
        after = max(0, head.version - window)
        versions = reader.versions(after=after)
        if len(versions) >= count or after == 0:
            return versions[::-1][:count]
        window *= 4


def _row(entry: dict[str, Any]) -> list[str]:
    if "error" in entry:
        return [str(entry["version"]), "-", "-", entry["kind"], "-", "-", "-", "-", ""]
    mark = " +anchor" if entry["anchor"] and entry["kind"] != "anchor-only" else ""
    return [
        str(entry["version"]),
        "-" if entry["parent"] is None else str(entry["parent"]),
        "-" if entry["step"] is None else str(entry["step"]),
        entry["kind"] + mark + (" BAD" if entry["vetoed"] else ""),
        *(in_words(entry)[name] for name in ("changed_ratio", "payload_bytes", "bits_per_change")),
        age(entry["age_seconds"]),
        ", ".join(entry["served_by"]),
    ]


def show(
    version: Annotated[int, typer.Argument(min=1, help="Version to show.")],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    tensors: Annotated[
        bool,
        typer.Option(
            "--tensors", help="Also each tensor, and what the version's delta holds of it; fetches the delta."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one version's manifest: lineage, chunks, digests, statistics, tensors."""
    at = opened_run(store, run, view, as_json)
    manifest = manifest_of(at.reader, version)
    table = at.reader.table(manifest)
    vetoes = at.reader.vetoes()
    veto = mark_of(version, vetoes)
    reason = None if veto is None else veto.reason if veto.version == version else marked_bad(version, vetoes)
    document = manifest.model_dump(mode="json") | {
        "identity": manifest.identity(),
        "summary": summary(manifest, at.reader),
        "marked_bad": reason,
    }
    listed: list[dict[str, Any]] = []
    if tensors:
        with at.output.transfer(f"version {version}") as progress:
            listed = tensors_of(at.reader, manifest, progress=progress)
        document["tensor_list"] = listed
    at.output.result(document)
    facts = in_words(summary(manifest, at.reader)) | {
        "lineage": manifest.lineage,
        "epoch": manifest.epoch,
        "digest": manifest.digest,
        "identity": manifest.identity(),
        "tensors": f"{len(table.tensors)} ({size(table.size_bytes)})",
        "chunks": len(manifest.chunks),
        "codecs": ", ".join(f"{n} {counted(c, 'change')}" for n, c in manifest.statistics.codecs.items()) or "-",
        "labels": ", ".join(f"{k}={v}" for k, v in manifest.labels.items()) or "-",
        "signature": "none"
        if manifest.signature is None
        else f"{manifest.signature.algorithm} by {manifest.signature.key_id}",
    }
    if reason is not None:
        facts["marked bad"] = reason
    at.output.table(["field", "value"], [[k, "-" if v is None else str(v)] for k, v in facts.items()])
    at.output.table(
        ["tensor", "dtype", "shape", "changed", "delta", "codecs", "also named"], [_cells(t) for t in listed]
    )


def _cells(tensor: dict[str, Any]) -> list[str]:
    known = tensor["codecs"] is not None
    return [
        tensor["name"],
        tensor["dtype"],
        "x".join(map(str, tensor["shape"])) or "scalar",
        f"{tensor['changed_units']:,}" if known else "-",
        size(tensor["delta_bytes"]) if known else "-",
        (", ".join(tensor["codecs"]) or "same") if known else "-",
        ", ".join(tensor["aliases"]),
    ]


def diff(
    first: Annotated[int, typer.Argument(min=1, help="Older version.")],
    second: Annotated[int, typer.Argument(min=1, help="Newer version.")],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    as_json: JsonOption = False,
) -> None:
    """Name the tensors that differ between two versions, by their digests."""
    at = opened_run(store, run, view, as_json)
    before, after = manifest_of(at.reader, first), manifest_of(at.reader, second)
    old, new = _tensors(at.reader, before), _tensors(at.reader, after)
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


def _tensors(reader: ChainReader, manifest: VersionManifest) -> dict[str, tuple[object, ...]]:
    """What tells a tensor from another of its name."""
    specs = reader.table(manifest).tensors
    return {s.name: (s.dtype, s.shape, digest) for s, digest in zip(specs, manifest.digests(), strict=True)}


def summary(manifest: VersionManifest, reader: ChainReader) -> dict[str, Any]:
    """A version in a line."""
    s = manifest.statistics
    return {
        "version": manifest.version,
        "parent": manifest.parent,
        "base": manifest.base,
        "step": manifest.step,
        "kind": _kind(manifest, reader),
        "changed_ratio": s.changed_units / s.units if s.units else 0.0,
        "changed_units": s.changed_units,
        "payload_bytes": s.payload_bytes if manifest.base is not None else s.full_bytes,
        "bits_per_change": 8 * s.payload_bytes / s.changed_units
        if s.changed_units and manifest.base is not None
        else None,
        "nonfinite": s.nonfinite,
    }


def _kind(manifest: VersionManifest, reader: ChainReader) -> str:
    """What a version is: all weights, changes, or none (a writer that took its epoch, or weights that did not change)."""
    if manifest.base is None:
        return "anchor-only"
    if manifest.chunks:
        return "fork" if manifest.parent != manifest.base else "delta"
    try:
        before = reader.manifest(manifest.base)
    except (ChainBroken, Corrupt):
        return "empty"  # nobody can tell any more
    return "epoch" if manifest.epoch > before.epoch else "empty"


def in_words(facts: dict[str, Any]) -> dict[str, Any]:
    """A summary's figures with the digits that a person reads; the exact ones are for `--json`."""
    bits = facts["bits_per_change"]
    return facts | {
        "changed_ratio": f"{100 * facts['changed_ratio']:.3g} %",
        "payload_bytes": size(facts["payload_bytes"]),
        "bits_per_change": "-" if bits is None else f"{bits:.2f}",
    }


def _who_is_there(at: Opened) -> dict[int, list[str]]:
    """Nodes by the version that they serve, from their heartbeats. An old heartbeat is judged by this machine's clock and only marked:
    whether its node needs a version is for retention to say, which asks the store's clock."""
    there: dict[int, list[str]] = defaultdict(list)
    lineage, now = at.reader.run_record().lineage, SystemClock().now()
    for info in at.store.list_after(at.reader.keys.consumers):
        try:
            fetched = at.store.get(info.key, max_bytes=RECORD_MAX_BYTES)
            assert fetched is not None
            beat = ConsumerRecord.parse(fetched.data, what=info.key)
        except NotFound:
            continue  # it said goodbye since it was listed
        except (FormatInvalid, StoreMisused) as error:
            at.output.note(f"a heartbeat cannot be read: {error}")
            continue
        if beat.applied is None or beat.leaving or beat.lineage != lineage:
            continue
        marks = ([] if beat.proven else ["unproven"]) + (["silent"] if now - info.modified > beat.ttl_ms / 1000 else [])
        there[beat.applied].append(f"{beat.pool}/{beat.node}" + (f" ({', '.join(marks)})" if marks else ""))
    return there
