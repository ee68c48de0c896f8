"""`syncline verify`: recompute what a store, a checkpoint folder or a running replica claims. Exit code 9 when something differs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from syncline.chain import ChainReader
from syncline.checkpoint import Checkpoint, materialize
from syncline.delta import Delta, digest_tensor
from syncline.errors import EngineUnavailable, LinkMissing, NotFound, SynclineError
from syncline.versions import Link, check_successor
from syncline.wire.digest import total
from syncline.wire.records import VersionManifest
from syncline_cli.context import JsonOption, RunOption, StoreOption, ViewOption, opened
from syncline_cli.output import EXIT_DIFFERENT, Output

app = typer.Typer(no_args_is_help=True, help="Recompute what a store, a checkpoint or a replica claims.")


@app.command()
def store(
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    deep: Annotated[
        bool, typer.Option("--deep", help="Also rebuild head in a temporary folder and compare every digest.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every retained version: manifests, epochs, digests' sums, chunks' hashes, frames' checksums."""
    at = opened(store, run, view, as_json)
    problems: list[dict[str, Any]] = []
    head = at.reader.head()
    if head is None:
        raise NotFound(f"{run}/{view}", "the run has no versions yet; publish one")
    checked = 0
    for version, problem in _check_versions(at.reader, head.version):
        checked += 1
        if problem is not None:
            problems.append({"version": version, "problem": str(problem)})
    if deep and not problems:
        with (
            tempfile.TemporaryDirectory() as folder,
            at.output.progress("rebuild head") as bar,
            ThreadPoolExecutor() as pool,
        ):
            task = bar.add_task("", total=None)
            try:
                materialize(
                    at.reader,
                    head.version,
                    Path(folder) / "head",
                    executor=pool,
                    progress=lambda _, done, total: bar.update(task, completed=done, total=total),
                )
            except SynclineError as error:
                problems.append({"version": head.version, "problem": str(error)})
    _conclude(at.output, problems, {"head": head.version, "versions": checked, "digest": head.digest, "deep": deep})


@app.command()
def checkpoint(
    folder: Annotated[Path, typer.Argument(help="A folder that Syncline materialized.")],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    version: Annotated[
        int | None, typer.Option("--version", help="Compare with this version, not the folder's own marker.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a checkpoint folder's tensors with a version's digests."""
    at = opened(store, run, view, as_json)
    held = Checkpoint.open(folder)
    if version is None:
        if held.marker is None:
            raise NotFound(str(folder), "the folder names no version; say --version")
        version = held.marker.version
    manifest = at.reader.manifest(version)
    table = at.reader.table(manifest)
    problems: list[dict[str, Any]] = []
    with ThreadPoolExecutor() as pool:
        for spec, wanted in zip(table.tensors, manifest.digests(), strict=True):
            found = digest_tensor(spec, held.units(spec.name), executor=pool)
            if found != wanted:
                problems.append(
                    {
                        "tensor": spec.name,
                        "problem": f"{spec.name}: digest {found.hex}, version {version} has {wanted.hex}",
                    }
                )
    _conclude(at.output, problems, {"version": version, "tensors": len(table.tensors), "digest": manifest.digest})


@app.command()
def replica(
    url: Annotated[str, typer.Argument(help="Where the node's agent answers, for example http://127.0.0.1:9401.")],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    as_json: JsonOption = False,
) -> None:
    """Have a running replica sweep its live memory, and compare with the manifest in the store."""
    at = opened(store, run, view, as_json)
    try:
        answer = httpx.post(f"{url.rstrip('/')}/verify", timeout=600)
        swept = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise EngineUnavailable(f"{url} did not verify: {error}; is the agent up?") from error
    if answer.status_code == 409:
        _conclude(at.output, [{"problem": swept["error"]["message"]}], {"url": url})
    if answer.status_code != 200:
        raise EngineUnavailable(f"{url} did not verify: {swept['error']['message']}")
    manifest = at.reader.manifest(int(swept["version"]))
    problems: list[dict[str, Any]] = []
    held, lineage = swept["digest"], swept["lineage"]
    if held != manifest.digest:
        problems.append({"problem": f"memory holds {held}, version {manifest.version} has {manifest.digest}"})
    if lineage != manifest.lineage:
        problems.append({"problem": f"the replica follows lineage {lineage}, the run is {manifest.lineage}"})
    _conclude(at.output, problems, {"version": manifest.version, "digest": swept["digest"], "proven": not problems})


def _check_versions(reader: ChainReader, head: int) -> Iterator[tuple[int, SynclineError | None]]:
    """Newest first, down to the oldest retained one."""
    tiling = reader.run_record().tiling.tiling
    newer = None
    for version in range(head, 0, -1):
        try:
            manifest = reader.manifest(version)
        except LinkMissing:
            return  # retention collected the rest
        except SynclineError as error:
            yield version, error
            continue
        try:
            table = reader.table(manifest)
            if total(manifest.digests()).hex != manifest.digest:
                raise LinkMissing(f"version {version}: the tensor digests do not sum to the view digest")
            Delta.parse(table, tiling, ((c.blake3, reader.chunk(c)) for c in manifest.chunks))
            if newer is not None:
                check_successor(_link(manifest), newer)
            newer = _link(manifest)
        except SynclineError as error:
            yield version, error
        else:
            yield version, None


def _link(manifest: VersionManifest) -> Link:
    return Link(manifest.lineage, manifest.version, manifest.base, manifest.epoch)


def _conclude(output: Output, problems: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    output.result({"ok": not problems, "problems": problems} | facts)
    for problem in problems:
        output.line(f"DIFFERS  {problem['problem']}")
    if problems:
        raise typer.Exit(EXIT_DIFFERENT)
    output.line("ok  " + ", ".join(f"{k} {v}" for k, v in facts.items()))
