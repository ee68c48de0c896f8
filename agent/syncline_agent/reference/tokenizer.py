"""A tokenizer of single characters, kept as a small JSON file beside the model.

It owns the mapping between text and token ids of the reference models and nothing else; ids 0, 1 and 2 are always
padding, beginning and end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from syncline.errors import Rejected, SourceInvalid

FILE = "character_tokenizer.json"
_KIND = "syncline-characters/1"


@dataclass(frozen=True, slots=True)
class CharacterTokenizer:
    """One id for each character of an alphabet, after three special ids."""

    alphabet: str

    pad: ClassVar[int] = 0
    beginning: ClassVar[int] = 1
    end: ClassVar[int] = 2
    specials: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if len(set(self.alphabet)) != len(self.alphabet):
            raise Rejected(f"a tokenizer's alphabet names each character once, got {self.alphabet!r}")

    @property
    def vocab(self) -> int:
        return self.specials + len(self.alphabet)

    def encode(self, text: str, *, beginning: bool = True) -> list[int]:
        """Ids of the text, by default after the beginning token; raises Rejected for an unknown character."""
        ids = [self.beginning] if beginning else []
        for character in text:
            place = self.alphabet.find(character)
            if place < 0:
                raise Rejected(
                    f"character {character!r} is not in the model's alphabet {self.alphabet!r}; change the prompt"
                )
            ids.append(self.specials + place)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; special ones are left out."""
        return "".join(self.alphabet[i - self.specials] for i in ids if self.specials <= i < self.vocab)

    def save(self, folder: Path) -> None:
        content = {
            "kind": _KIND,
            "alphabet": self.alphabet,
            "pad": self.pad,
            "beginning": self.beginning,
            "end": self.end,
        }
        (folder / FILE).write_text(json.dumps(content, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the file of a checkpoint folder; raises SourceInvalid if it is not one of ours."""
        file = folder / FILE
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["kind"] != _KIND:
                raise ValueError(f"kind {content['kind']!r} instead of {_KIND!r}")
            return cls(str(content["alphabet"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SourceInvalid(
                f"{file}: {error}; the reference engine needs the tokenizer beside the model"
            ) from error
