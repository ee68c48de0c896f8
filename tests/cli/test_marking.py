"""`mark-bad` where a writer took its epoch on the version: everybody who chooses a version says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syncline_distributor.publisher import Publisher

Call = Callable[..., Any]


@pytest.fixture
def restarted(run: Any) -> Any:
    """The run of five versions, and an epoch on the fifth."""
    publisher = Publisher(run.store, "demo")
    publisher.open()
    publisher.close()
    return run


def test_materialize_and_follow_take_the_version_before(syncline: Call, restarted: Any, tmp_path: Path) -> None:
    marked = syncline("mark-bad", 5, *restarted.options, "--reason", "reward fell")
    assert "version 5 is marked bad: reward fell\nversion 6 changes nothing on it and goes with it\n" == marked.out
    assert 4 == syncline("materialize", tmp_path / "made", *restarted.options, "--json").document["version"]
    followed = syncline("follow", tmp_path / "followed", *restarted.options, "--until", 4, "--json")
    assert 4 == followed.document["version"]
    why = "version 6 changes nothing on version 5, which was marked bad (reward fell)"
    assert f"{why}; holding version 4 until a better one comes" in followed.err
    refused = syncline("materialize", tmp_path / "no", "--version", 6, *restarted.options)
    assert 5 == refused.code
    assert "syncline mark-bad 5 --undo" in refused.err
    assert why == syncline("show", 6, *restarted.options, "--json").document["marked_bad"]
    log = syncline("log", *restarted.options, "--json").document
    assert [6, 5] == [entry["version"] for entry in log if entry["vetoed"]]


def test_undo_names_the_mark_that_bars_a_version_that_has_none(syncline: Call, restarted: Any) -> None:
    syncline("mark-bad", 5, *restarted.options, "--reason", "reward fell")
    undone = syncline("mark-bad", 6, *restarted.options, "--undo")
    assert (
        "version 6 was not marked bad\nit is still skipped: version 6 changes nothing on version 5, which was marked "
        "bad (reward fell); to serve it: syncline mark-bad 5 --undo\n"
    ) == undone.out
    again = syncline("mark-bad", 6, *restarted.options, "--undo", "--json").document
    assert {"version": 6, "bad": True, "reason": "reward fell"} == again
    assert "version 5 is no longer marked bad\n" == syncline("mark-bad", 5, *restarted.options, "--undo").out
    assert {} == restarted.reader.vetoes()
