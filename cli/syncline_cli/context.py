"""The options that every command shares, and what they open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from syncline.chain import ChainReader
from syncline.errors import NotFound
from syncline.store.base import WeightStore
from syncline.store.open import open_store
from syncline.wire.records import VersionManifest
from syncline_cli.output import Output

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


def head_or_none(reader: ChainReader) -> VersionManifest | None:
    """Head; None also while the run does not exist yet, for whoever waits for its first version."""
    try:
        return reader.head()
    except NotFound:
        return None


def opened(store: str, run: str, view: str, as_json: bool) -> Opened:
    """Open the store and the run's view."""
    weight_store = open_store(store)
    return Opened(weight_store, ChainReader(weight_store, run, view), Output(as_json=as_json))
