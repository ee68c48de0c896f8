"""Every input of the fuzzers' corpus, through the compiled loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuzz.targets import TARGETS

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus"


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_no_input_of_the_corpus_does_harm_whole_or_damaged(target: str) -> None:
    inputs = sorted((CORPUS / target).iterdir())
    assert len(inputs) >= 5
    random = np.random.default_rng(0)
    for path in inputs:
        data = path.read_bytes()
        TARGETS[target](data)
        for _ in range(20):
            damaged = bytearray(data)
            for _ in range(random.integers(1, 4)):
                damaged[random.integers(len(damaged))] = random.integers(256)
            TARGETS[target](bytes(damaged))
        TARGETS[target](data[: random.integers(len(data))])
