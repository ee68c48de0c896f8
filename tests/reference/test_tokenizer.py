"""The character tokenizer: round trips, its file, and refusals by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import Rejected, SourceInvalid
from syncline_agent.reference.tokenizer import FILE, CharacterTokenizer

ALPHABET = "0123456789+=é"


@given(text=st.text(ALPHABET, max_size=40))
def test_decode_takes_encode_back(text: str) -> None:
    tokenizer = CharacterTokenizer(ALPHABET)
    assert text == tokenizer.decode([*tokenizer.encode(text), tokenizer.end, tokenizer.pad])


def test_a_saved_tokenizer_loads_as_it_was(tmp_path: Path) -> None:
    CharacterTokenizer(ALPHABET).save(tmp_path)
    assert CharacterTokenizer(ALPHABET) == CharacterTokenizer.load(tmp_path)


def test_an_unknown_character_is_refused_by_name() -> None:
    with pytest.raises(Rejected, match="'x'"):
        CharacterTokenizer(ALPHABET).encode("1+x")


@pytest.mark.parametrize("content", ["", "{}", '{"kind": "other", "alphabet": "ab"}', "[]"])
def test_a_foreign_tokenizer_file_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(SourceInvalid, match=FILE):
        CharacterTokenizer.load(tmp_path)
