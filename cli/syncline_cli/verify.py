"""`syncline verify`: recompute what a store, a checkpoint folder or a running replica claims. Exit code 9 when something differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from numpy.typing import NDArray

from syncline.checkpoint import Checkpoint, OwnFiles, WeightFolder
from syncline.delta import digest_tensor
from syncline.errors import EngineUnavailable, Rejected
from syncline.wire.tensors import TensorTable
from syncline_cli.audit import Audit, Finding
from syncline_cli.context import (
    WORKING,
    JsonOption,
    RunOption,
    StoreOption,
    ViewOption,
    checked_url,
    manifest_of,
    no_versions,
    opened_run,
)
from syncline_cli.output import EXIT_DIFFERENT, Output, counted, size

SWEEP_TIMEOUT_S = 600.0
TENSORS_NAMED = 10
"""As many tensors that differ are told; after another training it would be all."""

app = typer.Typer(no_args_is_help=True, help="Recompute what a store, a checkpoint or a replica claims.")


@app.command()
def store(
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Also read every anchor whole, rebuild head in a temporary folder, compare digests."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every retained version: manifests, epochs, digests' sums, chunks' hashes, frames, anchors, skip deltas."""
    at = opened_run(store, run, view, as_json, patience=WORKING)
    versions = at.reader.versions()
    if not versions:
        raise no_versions(at.reader)
    audit = Audit(at.reader, versions)
    with at.output.count("versions", len(versions)) as checked:
        findings = list(audit.findings(checked=checked))
    if deep:
        with at.output.transfer("whole weights") as progress, ThreadPoolExecutor() as pool:
            findings += audit.deep(executor=pool, progress=progress)
    problems = [_problem(audit, finding) for finding in findings]
    facts = {
        "head": versions[-1],
        "versions": len(versions),
        "anchors": audit.anchors,
        "skips": audit.skips,
        "objects": audit.objects,
        "bytes": audit.size_bytes,
        "deep": deep,
    }
    read = "anchors read whole and head rebuilt" if deep else "anchors by their sizes; --deep reads them too"
    _conclude(
        at.output,
        problems,
        facts,
        f"checked {counted(len(versions), 'version')} up to {versions[-1]}, {counted(audit.anchors, 'anchor')}, "
        f"{counted(audit.skips, 'skip delta')}: {counted(audit.objects, 'object')}, {size(audit.size_bytes)} read "
        f"({read})",
    )


def _problem(audit: Audit, finding: Finding) -> dict[str, Any]:
    return {
        "version": finding.version,
        "problem": finding.problem,
        "step": None if finding.step is None else finding.step.words,
        "way_out": audit.way_out(finding),
    }


@app.command()
def checkpoint(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A folder of safetensors, anybody's.")],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    version: Annotated[
        int | None,
        typer.Option(
            "--version", min=1, help="Version to compare with; default: the one that Syncline marked the folder with."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a checkpoint folder's tensors with a version's digests."""
    at = opened_run(store, run, view, as_json)
    marker = Checkpoint.open(folder).marker
    if version is None:
        if marker is None:
            made = OwnFiles(folder).folder.exists()
            why = (
                "a write to it did not end, so it holds no whole version" if made else "it was not written by Syncline"
            )
            raise Rejected(
                f"nothing says which version {folder} holds: {why}; say --version N to compare it with version N"
            )
        version = marker.version
    manifest = manifest_of(at.reader, version)
    wanted = list(zip(at.reader.table(manifest).tensors, manifest.digests(), strict=True))
    problems: list[dict[str, Any]] = []
    if marker is not None and marker.lineage != manifest.lineage:
        problems.append(
            {"problem": f"the folder is marked with lineage {marker.lineage}, the run is {manifest.lineage}"}
        )
    with _units_of(folder, marked=marker is not None) as (table, units), ThreadPoolExecutor() as pool:
        found = {spec.name: spec for spec in table.tensors}
        named = {spec.name for spec, _ in wanted}
        for name in sorted(found.keys() - named):
            problems.append({"tensor": name, "problem": f"{name}: version {version} has no such tensor"})
        with at.output.count("tensors", len(wanted)) as checked:
            for spec, digest in wanted:
                mine = found.get(spec.name)
                if mine is None:
                    problem = f"{spec.name}: missing in the folder"
                elif (mine.dtype, mine.shape) != (spec.dtype, spec.shape):
                    problem = f"{spec.name}: {mine.dtype} {mine.shape}, version {version} has {spec.dtype} {spec.shape}"
                elif (held := digest_tensor(spec, units(spec.name), executor=pool)) != digest:
                    problem = f"{spec.name}: digest {held.hex}, version {version} has {digest.hex}"
                else:
                    problem = None
                if problem is not None:
                    problems.append({"tensor": spec.name, "problem": problem})
                checked()
    _conclude(
        at.output,
        problems,
        {"version": version, "tensors": len(wanted), "digest": manifest.digest},
        f"version {version}: {counted(len(wanted), 'tensor')} compared, digest {manifest.digest}",
        most=TENSORS_NAMED,
    )


@app.command()
def replica(
    url: Annotated[str, typer.Argument(help="Where the node's agent answers, for example http://127.0.0.1:9401.")],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    as_json: JsonOption = False,
) -> None:
    """Have a running replica sweep its live memory, and compare with the manifest in the store."""
    url = checked_url(url, "URL")
    at = opened_run(store, run, view, as_json)
    run_record = at.reader.run_record()
    status, swept = _sweep(url)
    unproven = {"url": url, "proven": False}
    if status == 409:
        _conclude(at.output, [{"problem": swept["error"]["message"]}], unproven, f"{url} is not proven")
    if swept["lineage"] != run_record.lineage:
        text = f"the replica follows lineage {swept['lineage']}, run {run} is {run_record.lineage}: another training"
        _conclude(at.output, [{"problem": text}], unproven, f"{url} is not proven")
    problems: list[dict[str, Any]] = []
    if swept["view"] != view:
        problems.append({"problem": f"the replica serves view {swept['view']}, not {view}; say --view"})
    else:
        manifest = manifest_of(at.reader, int(swept["version"]))
        if swept["digest"] != manifest.digest:
            text = f"memory holds {swept['digest']}, version {manifest.version} has {manifest.digest}"
            problems.append({"problem": text})
    facts = {"url": url, "version": swept["version"], "digest": swept["digest"], "proven": not problems}
    held = f"version {swept['version']}, digest {swept['digest']}"
    proven = f"{url} holds {held}: all of its live memory was read, and is what the store says"
    _conclude(at.output, problems, facts, f"{url} says that it holds {held}" if problems else proven)


@contextmanager
def _units_of(folder: Path, *, marked: bool) -> Iterator[tuple[TensorTable, Callable[[str], NDArray[Any]]]]:
    """A folder's tensors: held still when Syncline keeps it, read as they are when somebody else does."""
    if marked:
        with Checkpoint.open(folder).reading() as held:
            yield held.table, held.units
    else:
        with WeightFolder.open(folder) as weights:
            yield weights.table(), weights.read
            weights.check_unchanged()


def _sweep(url: str) -> tuple[int, dict[str, Any]]:
    """The agent's answer to `POST /verify`, with 200 or 409. Rejected when something else than an agent answers."""
    try:
        answer = httpx.post(f"{url}/verify", timeout=SWEEP_TIMEOUT_S)
    except httpx.InvalidURL as error:
        raise typer.BadParameter(f"{url}: {error}", param_hint="URL") from error
    except httpx.HTTPError as error:
        raise EngineUnavailable(f"{url} did not verify: {error}; is an agent there, and up?") from error
    swept = _body(answer)
    needed = {200: {"version", "digest", "lineage", "view"}, 409: {"error"}}.get(answer.status_code)
    if needed is not None and needed <= swept.keys():
        return answer.status_code, swept
    if needed is not None or answer.status_code in (404, 405, 501):
        raise Rejected(
            f"{url} is not an agent (it answered {answer.status_code} to POST /verify); pass the agent's address, not an "
            "engine's or the distributor's"
        )
    raise EngineUnavailable(f"{url} did not verify: status {answer.status_code}, {_message(swept)}; try again later")


def _body(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer; empty for anything else."""
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _message(answer: dict[str, Any]) -> str:
    try:
        return str(answer["error"]["message"])
    except (KeyError, TypeError):
        return "without a reason"


def _conclude(
    output: Output, problems: list[dict[str, Any]], facts: dict[str, Any], words: str, *, most: int | None = None
) -> None:
    """The verdict; `words` are the facts as a person reads them, who is told the first `most` problems. The document has them all."""
    output.result({"ok": not problems, "problems": problems} | facts)
    for problem in problems[:most]:
        where = f"version {problem['version']}: " if "version" in problem else ""
        output.line(f"DIFFERS  {where}{problem['problem']}")
        if problem.get("way_out"):
            output.line(f"         {problem['way_out']}")
    if most is not None and len(problems) > most:
        output.line(f"…        {len(problems) - most} more; --json names them all")
    if problems:
        output.line(f"{counted(len(problems), 'problem')}; {words}")
        raise typer.Exit(EXIT_DIFFERENT)
    output.line(f"ok  {words}")
