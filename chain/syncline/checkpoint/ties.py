"""Which stored tensors a Hugging Face config declares to be one: the input embedding and the output head.

Reads config.json only; whether their bits are equal is for whoever holds the bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from syncline.errors import SourceInvalid, TiedWeightsDiffer

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "tok_embeddings.weight")
HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
CONFIG_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Tie:
    """Two stored names of one tensor."""

    owner: str
    alias: str


def declared_ties(folder: Path, stored: Mapping[str, tuple[str, tuple[int, ...]]]) -> Iterator[Tie]:
    """Ties of the folder's config between tensors (name -> dtype and shape) that are both stored.

    TiedWeightsDiffer when their dtypes or shapes already differ.
    """
    if not ties_embeddings(folder):
        return
    embeddings = [n for n in sorted(stored) if _ends(n, EMBEDDINGS)]
    heads = [n for n in sorted(stored) if _ends(n, HEADS)]
    if len(embeddings) != 1:
        return  # several towers: the config does not say whose embedding is meant, so nothing is taken for one
    for head in heads:
        if stored[head] != stored[embeddings[0]]:
            raise TiedWeightsDiffer(
                f"{folder}: config.json ties {embeddings[0]} {stored[embeddings[0]]} and {head} {stored[head]}, which "
                "do not fit each other; untie them in the config or store one of them"
            )
        yield Tie(embeddings[0], head)


def ties_embeddings(folder: Path) -> bool:
    """Whether config.json (or its text_config) sets tie_word_embeddings; False without a config."""
    file = folder / "config.json"
    try:
        with file.open("rb") as opened:
            text = opened.read(CONFIG_MAX_BYTES)
    except FileNotFoundError:
        return False
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceInvalid(f"{file} is not JSON ({error}); write the checkpoint again") from error
    if not isinstance(config, dict):
        raise SourceInvalid(f"{file} is no JSON object")
    return _says_tied(cast(dict[str, Any], config))


def _says_tied(config: dict[str, Any]) -> bool:
    if "tie_word_embeddings" in config:
        return config["tie_word_embeddings"] is True
    text_config = config.get("text_config")
    return isinstance(text_config, dict) and cast(dict[str, Any], text_config).get("tie_word_embeddings") is True


def _ends(name: str, endings: tuple[str, ...]) -> bool:
    return any(name == e or name.endswith("." + e) for e in endings)
