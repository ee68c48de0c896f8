"""`syncline follow`: keep a folder on the newest version, for engines that load from disk and for people who want a copy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from syncline.checkpoint import materialize
from syncline.clock import SystemClock
from syncline.errors import Retryable
from syncline_cli.context import JsonOption, RunOption, StoreOption, ViewOption, head_or_none, opened
from syncline_cli.history import summary
from syncline_cli.output import size


def follow(
    folder: Annotated[Path, typer.Argument(help="Folder to keep on the newest version.")],
    store: StoreOption,
    run: RunOption,
    view: ViewOption = "main",
    poll: Annotated[float, typer.Option("--poll", min=0.05, help="Seconds between looks at head.")] = 1.0,
    until: Annotated[int | None, typer.Option("--until", help="Stop once this version is held.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a servable safetensors folder on the newest version; one line, or one JSON document, a version."""
    at = opened(store, run, view, as_json)
    clock = SystemClock()
    held = 0
    with ThreadPoolExecutor() as pool:
        while until is None or held < until:
            try:
                head = head_or_none(at.reader)
                vetoes = at.reader.vetoes() if head is not None else {}
                target = head.version if head is not None else 0
                while target in vetoes and target > 0:
                    target -= 1
                if target > held:
                    began = clock.monotonic()
                    materialize(at.reader, target, folder, executor=pool, vetoed=vetoes)
                    held = target
                    facts = summary(at.reader.manifest(held)) | {
                        "seconds": round(clock.monotonic() - began, 3),
                        "folder": str(folder),
                    }
                    at.output.result(facts)
                    at.output.line(
                        f"{folder}  version {held}  step {facts['step']}  {size(facts['payload_bytes'])}  {facts['seconds']} s"
                    )
            except Retryable as error:
                at.output.note(f"{error}; trying again")
            if until is None or held < until:
                clock.sleep(poll)
