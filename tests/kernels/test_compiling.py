"""Compiled kernels and their files on disk."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from syncline.clock import ManualClock
from syncline.logs import set_up_logs

TEXT = """
import logging
import sys
import numpy as np
from syncline.kernels.compiling import INT, array, compiled

logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s %(about)s")

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


def test_what_is_compiled_is_told_and_what_lies_on_disk_is_not(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TEXT)
    told, nothing = (
        subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=100).stderr
        for _ in range(2)
    )
    first, *others = told.splitlines()
    name = "syncline.kernels.compiling"
    assert f"{name}: compiling kernels {{'takes': 'a minute or so, once an environment'}}" == first
    assert 4 == len(others)
    assert {f"{name}: compiled {{'kernels': '__main__', 'seconds': "} == {
        line.rpartition(" ")[0] + " " for line in others
    }
    assert "" == nothing


@pytest.fixture
def library_log() -> Iterator[logging.Logger]:
    """The log of the library's own, as it was found afterwards."""
    log = logging.getLogger("syncline")
    kept = log.handlers, log.level, log.propagate
    yield log
    structlog.reset_defaults()
    log.handlers, log.propagate = kept[0], kept[2]
    log.setLevel(kept[1])


def test_a_process_s_own_log_shows_what_the_library_tells(library_log: logging.Logger) -> None:
    out = io.StringIO()
    set_up_logs(log_format="json", clock=ManualClock(0), stream=out)
    library_log.getChild("kernels.compiling").info("compiled", extra={"about": {"kernels": "gaps", "seconds": 1.5}})
    library_log.getChild("kernels.compiling").debug("not shown")
    (line,) = out.getvalue().splitlines()
    shown = {"component": "compiling", "event": "compiled", "kernels": "gaps", "level": "info", "seconds": 1.5}
    assert {**shown, "time": "1970-01-01T00:00:00.000Z"} == json.loads(line)
    set_up_logs(log_format="json", level="warning", clock=ManualClock(0), stream=out)
    library_log.info("not shown either")
    out.close()
    library_log.warning("nowhere to be shown")  # and nobody fails for it
