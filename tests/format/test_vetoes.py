"""A reader written from FORMAT.md and the library choose the same newest version, whatever was marked."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from syncline.chain import ChainReader, newest_allowed
from syncline.clock import ManualClock
from syncline.store.local import LocalStore
from syncline_distributor import Bits, Publisher
from syncline_distributor.vetoes import mark_bad


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 1 and 2 by a writer, the epoch 3 and the change 4 by a second one, epochs 5 and 6 by a third and fourth."""
    folder = tmp_path_factory.mktemp("store")
    for seed, steps in enumerate(((0, 1), (2,), (), ())):
        publisher = Publisher(LocalStore(folder), "run", clock=ManualClock(), random=random.Random(seed))
        publisher.open()
        for step in steps:
            publisher.publish({"weight": Bits("BF16", (64,), np.full(64, step, np.uint16))}, step=step)
    return folder


@pytest.mark.parametrize(
    ("marked", "newest"), [((), 6), ((6,), 5), ((5,), 4), ((4,), 3), ((4, 3), 2), ((4, 2), 1), ((2,), 6)]
)
def test_both_pass_over_what_changes_nothing_on_a_vetoed_version(
    folder: Path, scripts: Callable[[str], ModuleType], marked: tuple[int, ...], newest: int
) -> None:
    reader = ChainReader(LocalStore(folder), "run")
    for version in marked:
        mark_bad(reader, version, "the reward collapsed", clock=ManualClock())
    try:
        vetoes = reader.vetoes()
        plain = scripts("reader").Store(folder, "run", "main")
        assert [v in vetoes for v in range(1, 7)] == [plain.vetoed(v) for v in range(1, 7)]
        assert (newest, newest) == (newest_allowed(6, vetoes), plain.read(None).version)
    finally:
        for version in marked:
            reader.store.delete(reader.keys.veto(version))
