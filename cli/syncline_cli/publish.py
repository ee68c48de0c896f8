"""`syncline publish`: commit one checkpoint folder as the next version, by hand or from a script."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from syncline.errors import FormatInvalid
from syncline.wire.limits import CODEC_NAMES
from syncline_cli.context import WORKING, JsonOption, RunOption, StoreOption, ViewOption, manifest_of, opened
from syncline_cli.history import summary
from syncline_cli.output import size
from syncline_distributor.accepting import check_is_checkpoint
from syncline_distributor.bases import DiskBase
from syncline_distributor.folder_weights import FolderWeights
from syncline_distributor.publisher import Publisher
from syncline_distributor.settings import AUTO, LINK_MBIT, NonFinite, PublishSettings, codec_choice
from syncline_distributor.sources import describe
from syncline_distributor.tracking import FoundFile


def publish(
    folder: Annotated[
        Path, typer.Argument(help="Hugging-Face-style checkpoint: safetensors, single or sharded, and config.json.")
    ],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            min=0,
            help="The trainer's step number; default: what the folder's name says (checkpoint-12), or its trainer_state.json.",
        ),
    ] = None,
    parent: Annotated[
        int | None, typer.Option("--parent", min=1, help="Version that the training came from; default: head.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="name=value, kept in the manifest; may be repeated.")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            "--state-dir", help="Keeps the base of the next delta; without it the base is rebuilt from the store."
        ),
    ] = None,
    refuse_nonfinite: Annotated[
        bool, typer.Option("--refuse-nonfinite", help="Refuse weights with NaN or Inf.")
    ] = False,
    codec: Annotated[
        str,
        typer.Option("--codec", help=f"{AUTO}: the cheapest for each tensor; or {', '.join(CODEC_NAMES.values())}."),
    ] = AUTO,
    link_mbit: Annotated[
        float,
        typer.Option(
            "--link-mbit", min=0.001, help="Link of most replicas, Mbit/s: where bytes are cheap, quicker codecs win."
        ),
    ] = LINK_MBIT,
    as_json: JsonOption = False,
) -> None:
    """Publish a checkpoint folder as the next version of a run; the run is created when it does not exist."""
    labels = _labels(label or [])
    try:
        choice = codec_choice(codec, link_mbit=link_mbit)
    except FormatInvalid as error:
        raise typer.BadParameter(str(error), param_hint="--codec") from None
    check_is_checkpoint(folder)
    step = _step_of(folder) if step is None else step
    at = opened(store, run, view, as_json, patience=WORKING)
    settings = PublishSettings(nonfinite=NonFinite.REFUSE if refuse_nonfinite else NonFinite.PUBLISH, choice=choice)
    with (
        FolderWeights(folder) as source,  # a folder that cannot be read must not cost the run an epoch
        tempfile.TemporaryDirectory(prefix="syncline-publish-") as scratch,
        ThreadPoolExecutor() as pool,
    ):
        if parent is not None:
            manifest_of(at.reader, parent)
        base = DiskBase(state_dir or Path(scratch), executor=pool)
        publisher = Publisher(at.store, run, view=view, settings=settings, base=base, executor=pool)
        try:
            with at.output.err.status(f"publishing {folder}"):
                publisher.open()
                published = publisher.publish(source, step=step, parent=parent, labels=labels)
        finally:
            publisher.close()
    facts = summary(published.manifest, publisher.reader) | {
        "digest": published.manifest.digest,
        "seconds": dict(published.seconds),
    }
    at.output.result(facts)
    bits = "" if facts["bits_per_change"] is None else f", {facts['bits_per_change']:.2f} bits a change"
    named = "" if facts["step"] is None else f"step {facts['step']}  "
    at.output.line(
        f"version {published.version}  {facts['kind']}  {named}{100 * facts['changed_ratio']:.3g} % changed  "
        f"{size(facts['payload_bytes'])}{bits}  digest {facts['digest']}"
    )


def _step_of(folder: Path) -> int | None:
    """The step as `syncline-distributor watch` reads it."""
    folder = folder.resolve()
    files = tuple(FoundFile(path.name, 0, "") for path in folder.iterdir())
    found = describe(folder.name, files, 0.0, lambda name: (folder / name).read_bytes())
    return None if found is None else found.step


def _labels(pairs: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r}: write --label name=value", param_hint="--label")
        labels[name] = value
    return labels
