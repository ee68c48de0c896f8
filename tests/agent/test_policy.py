"""The watched target file: what it may say, and that a broken edit moves nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.versions import Policy
from syncline_agent.policy import MUST_BE, Target, TargetFile, encode_target, parse_target

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)


@given(
    run=NAMES,
    view=NAMES,
    policy=st.sampled_from(Policy),
    pinned=st.none() | st.integers(1, 10**12 - 1),
    suspend=st.booleans(),
    generation=st.integers(0, 2**31),
    versions=st.none() | st.integers(0, 10**12 - 1),
    seconds=st.none() | st.floats(0.0, 1e9, exclude_min=True),
)
def test_every_target_is_read_back_from_its_text(
    run: str,
    view: str,
    policy: Policy,
    pinned: int | None,
    suspend: bool,
    generation: int,
    versions: int | None,
    seconds: float | None,
) -> None:
    target = Target(run, view, policy, pinned, suspend, generation, versions, seconds)
    assert target == parse_target(encode_target(target))


VERSIONS = r'^version must be \{"mode": "Latest"\} or \{"mode": "Pinned", "version": 2\}$'


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"run": "Upper"}, "^run must be a name: "),
        ({"policy": "wait"}, '^policy must be "keep", "drain" or "abort"$'),
        ({"version": 2}, VERSIONS),
        ({"version": {"mode": "Pinned"}}, VERSIONS),
        ({"version": {"mode": "Latest", "version": 3}}, VERSIONS),
        ({"version": {"mode": "Pinned", "version": 0}}, VERSIONS),
        ({"version": {"mode": "latest", "number": 1}}, VERSIONS),
        (
            {"suspended": True},
            "^unknown field 'suspended'; there are run, view, policy, version, suspend, generation, ",
        ),
        *(
            ({"maxVersionLag": wrong}, "^maxVersionLag must be a whole number of versions")
            for wrong in (-1, 1.5, True, "2")
        ),
        *(
            ({"maxLagSeconds": wrong}, "^maxLagSeconds must be a number of seconds above 0, or null$")
            for wrong in (0, -1.0, True, "60", 1e12)
        ),
        ({"suspend": "maybe"}, "^suspend must be true or false$"),
        ({"generation": -1}, "^generation must be a whole number, 0 or more$"),
        ({"run": "Upper", "generation": 0.5}, "^run must be a name: .*; generation must be a whole number"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_target(json.dumps({"run": "r", **change}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"^not JSON \(Expecting property name"),
        (b"\xff\xfe\xfa", r"^not JSON \("),
        ("[]", "^it must be a JSON object$"),
        ("{}", "^run is missing$"),
    ],
)
def test_what_is_no_target_at_all_is_said(text: str | bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_target(text)


def test_every_field_of_a_target_is_told_to_who_writes_an_unknown_one() -> None:
    assert list(MUST_BE) == list(json.loads(encode_target(Target("r"))))


def test_a_broken_edit_leaves_the_last_good_target_in_force(tmp_path: Path) -> None:
    path = tmp_path / "target.json"
    watched = TargetFile(path)
    assert None is watched.poll()
    assert watched.error is not None
    path.write_text(encode_target(Target("r", generation=1)))
    good = watched.poll()
    assert Target("r", generation=1) == good
    assert None is watched.error
    path.write_text("{")
    assert good == watched.poll()
    assert watched.error is not None
    assert "last good target" in watched.error
    path.unlink()
    assert good == watched.poll()
    assert watched.error is not None
    assert "cannot be read" in watched.error
    path.write_text(encode_target(Target("r", pinned=4, generation=2)))
    assert Target("r", pinned=4, generation=2) == watched.poll()
    assert None is watched.error


def test_a_file_swapped_behind_a_link_is_noticed(tmp_path: Path) -> None:
    """As a mounted ConfigMap changes: same name, same size, another file behind it."""
    for name, generation in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "target.json").write_text(encode_target(Target("r", generation=generation)))
    link = tmp_path / "now"
    link.symlink_to("one")
    watched = TargetFile(link / "target.json")
    assert Target("r", generation=1) == watched.poll()
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(link)
    assert Target("r", generation=2) == watched.poll()


def test_two_edits_that_look_alike_to_the_file_system_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "target.json"
    path.write_text(encode_target(Target("r", pinned=7)))
    before = path.stat()
    watched = TargetFile(path)
    assert Target("r", pinned=7) == watched.poll()
    path.write_text(encode_target(Target("r", pinned=8)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Target("r", pinned=8) == watched.poll()


def test_what_only_looks_like_a_target_leaves_the_last_good_one_in_force(tmp_path: Path) -> None:
    path = tmp_path / "target.json"
    path.write_text(encode_target(Target("r")))
    watched = TargetFile(path)
    assert Target("r") == watched.poll()
    path.write_text("[" * 60_000)
    assert Target("r") == watched.poll()
    assert "nested too deep" in str(watched.error)
    path.unlink()
    os.mkfifo(path)
    assert Target("r") == watched.poll()
    assert "not a regular file" in str(watched.error)
