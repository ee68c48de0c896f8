"""What may be handed to `publish`, turned into one kind of source; everything else is refused with what to hand in
instead. Reads names and shapes, never weights."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from syncline.errors import LayoutRefused, SourceInvalid
from syncline_distributor.folder_weights import FolderWeights
from syncline_distributor.weights import Files, WeightSource, mapping_weights
from syncline_distributor.whole import INDEX

Weights = Mapping[str, Any] | WeightSource | Path
"""A state dict, a mapping of arrays or Bits, a source, or a folder of safetensors."""
SINGLE = "model.safetensors"
DEEPEST = 3
"""Folders below the one that was named in which weights are looked for (`checkpoint-1/actor/huggingface`)."""
NAMED = 3
"""Finds that a message names."""


def check_kind(weights: object) -> None:
    """Refuse what can be no source before anything is done for it. LayoutRefused, SourceInvalid."""
    if isinstance(weights, Path):
        check_is_checkpoint(weights)
    elif not isinstance(weights, Mapping | WeightSource):
        raise LayoutRefused(f"publish was handed a {type(weights).__name__}; {_instead(weights)}")


def check_files(files: Mapping[str, object]) -> None:
    """SourceInvalid for what is to go beside the weights and is not there; better known before the first publish."""
    for name, content in files.items():
        if isinstance(content, bytes):
            continue
        if not isinstance(content, Path):
            raise SourceInvalid(
                f"files[{name!r}] is a {type(content).__name__}; give the file's bytes, or its path as pathlib.Path"
            )
        if not content.is_file():
            found = "is no file" if content.exists() else "does not exist"
            raise SourceInvalid(f"files[{name!r}]: {content} {found}; give a path that is there, or leave {name} out")


def source_of(weights: Weights, *, files: Files, column_split: tuple[str, ...]) -> WeightSource:
    """The source that `weights` of an accepted kind are. `files` belong to a mapping."""
    if isinstance(weights, Path):
        return FolderWeights(weights, column_split=column_split)
    if isinstance(weights, Mapping):
        return mapping_weights(weights, files=files, column_split=column_split)
    return weights


def _instead(weights: object) -> str:
    if callable(getattr(weights, "state_dict", None)):
        return "pass module.state_dict()"
    if isinstance(weights, str | bytes | os.PathLike):
        return "pass a folder as pathlib.Path(folder)"
    return "pass a state dict, a mapping of names to arrays, or the pathlib.Path of a safetensors folder"


def check_is_checkpoint(folder: Path) -> None:
    """SourceInvalid for a path that somebody named and that can be no checkpoint: not there, no folder, the folder
    around checkpoints, weights of another format. One that is still being written passes."""
    try:
        present = sorted(p.name for p in folder.iterdir())
    except FileNotFoundError:
        raise SourceInvalid(f"{folder} does not exist; {_WANTED}") from None
    except NotADirectoryError:
        raise SourceInvalid(f"{folder} is a file; {_WANTED}") from None
    except PermissionError as error:
        raise SourceInvalid(f"{folder} cannot be listed: {error.strerror}; give this process the permission") from None
    if any(name.endswith((".safetensors", INDEX)) for name in present):
        return
    below = [str(p) for p in islice(_checkpoints_below(folder, DEEPEST), NAMED + 1)]
    if below:
        more = ", …" if len(below) > NAMED else ""
        raise SourceInvalid(
            f"{folder} holds neither {SINGLE} nor {INDEX}, but folders that do: {', '.join(below[:NAMED])}{more}; "
            "pass one of them"
        )
    pickled = [name for name in present if name.startswith("pytorch_model") and name.endswith(".bin")]
    if pickled:
        raise SourceInvalid(f"{folder} holds {pickled[0]}, which is no safetensors; save it as safetensors, {_WANTED}")


_WANTED = f"pass the folder of one checkpoint: {SINGLE}, or shards with {INDEX}"


def _checkpoints_below(folder: Path, depth: int) -> Generator[Path]:
    try:
        children = sorted(e.path for e in os.scandir(folder) if e.is_dir() and not e.name.startswith("."))
    except OSError:
        return  # only looked into for a better message
    for child in map(Path, children):
        if any(child.glob("*.safetensors")):
            yield child
        elif depth > 1:
            yield from _checkpoints_below(child, depth - 1)
