"""Every input of the fuzzers' corpus, through the compiled loops, and through the uncompiled ones that the fuzzers run."""

from __future__ import annotations

import subprocess
import sys
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from fuzz.make_corpus import contexts
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


_UNCOMPILED = """
import sys
from hashlib import blake2b
from itertools import islice
from pathlib import Path
import fuzz.uncompiled
from fuzz.make_corpus import contexts
from fuzz.targets import TARGETS
for target, run in TARGETS.items():
    for path in sorted(Path(sys.argv[1], target).iterdir()):
        run(path.read_bytes())
for data in islice(contexts(), 12):
    print(blake2b(data).hexdigest())
"""


def test_the_fuzzers_loops_are_the_compiled_ones() -> None:
    root = CORPUS.parents[1]
    ran = subprocess.run(
        [sys.executable, "-c", _UNCOMPILED, str(CORPUS)], cwd=root, capture_output=True, text=True, timeout=120
    )
    assert (0, "") == (ran.returncode, ran.stderr)
    assert [blake2b(data).hexdigest() for data in islice(contexts(), 12)] == ran.stdout.split()
