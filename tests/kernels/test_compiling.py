"""Compiled kernels and their files on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TEXT = """
import numpy as np
from syncline.kernels.compiling import INT, array, compiled

def widened(lanes):
    def kernel(flat):
        return flat.size * lanes
    return kernel

for lanes in (2, 4):
    for unit in ("uint8", "uint16"):
        print(compiled(widened(lanes), lambda u: (array(u),))(np.dtype(unit))(np.zeros(3, unit)))
"""


def test_no_two_variants_of_a_kernel_share_a_cache_file(tmp_path: Path) -> None:
    # numba numbers the files of one name: two processes with an empty cache would give one number to two variants.
    script = tmp_path / "script.py"
    script.write_text(TEXT)
    for _ in range(2):
        ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=100)
        assert ["6", "6", "12", "12"] == ended.stdout.split()
    indices = sorted(p.name for p in (tmp_path / "__pycache__").glob("*.nbi"))
    assert 4 == len(indices)
    assert 4 == len(list((tmp_path / "__pycache__").glob("*.1.nbc")))
    assert [] == list((tmp_path / "__pycache__").glob("*.2.nbc"))
