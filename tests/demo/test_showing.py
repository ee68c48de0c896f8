"""What the demo shows and how it judges: rows, the summary, the proof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from syncline.chain import ChainReader
from syncline.clock import ManualClock
from syncline.store.memory import MemoryStore
from syncline.wire.records import Statistics
from syncline_cli.demo import command
from syncline_cli.demo.command import JUDGED_STEPS, Follower, conclude
from syncline_cli.demo.display import HEADER, Row, fifths, line, summary
from syncline_cli.demo.fleet import Fleet
from syncline_cli.demo.processes import ProcessDied
from syncline_cli.output import Output

ONE = {"trainer's tensors": "ab" * 16, "live memory of node-a's engine": "ab" * 16}
FLIPPED = ONE | {"live memory of node-b's engine": "DIFFERS: live memory holds other bits"}


def row(step: int, reward: float, **more: Any) -> Row:
    values = {"changed_share": 0.01, "difference": 1e-6, "lag": 1.0, "mixed": 2, "written": 0.0} | more
    return Row(step=step, reward=reward, **values)


def statistics(changed: int) -> Statistics:
    return Statistics(
        units=10_000,
        changed_units=changed,
        changed_tensors=1,
        frames=1,
        payload_bytes=changed,
        full_bytes=20_000,
        nonfinite=0,
        codecs={},
    )


def follower() -> Follower:
    store = MemoryStore(ManualClock())
    fleet = Fleet(store.url, {}, Path("source"), "http://127.0.0.1:9")
    return Follower(Output(as_json=False), fleet, ChainReader(store, "demo"))


def rising(count: int) -> list[Row]:
    return [row(n, n / 100) for n in range(count)]


def test_a_row_stands_below_its_heading() -> None:
    full = row(3, 0.25, version=4, statistics=statistics(100), sync_seconds=1.234, pause_seconds=0.0015)
    shown = line(full)
    assert len(HEADER) == len(shown)
    assert [
        "3",
        "4",
        "0.250",
        "1.00",
        "%",
        "100",
        "B",
        "1/200",
        "8.00",
        "1.23",
        "s",
        "1.50",
        "ms",
        "1.00",
        "1.0e-06",
    ] == (shown.split())


def test_what_is_not_known_yet_or_did_not_change_is_a_dash() -> None:
    assert 6 == line(row(3, 0.25)).split().count("-")
    assert 5 == line(row(3, 0.25, version=4, statistics=statistics(0))).split().count("-")


def test_the_first_and_the_last_fifth_are_at_least_one_step() -> None:
    assert (0.0, 0.02) == fifths(rising(3))
    assert (0.005, 0.085) == pytest.approx(fifths(rising(10)))


def test_the_summary_sums_what_was_published() -> None:
    rows = [row(n, 0.1, statistics=statistics(100), sync_seconds=float(n), pause_seconds=n / 1000) for n in (3, 1, 2)]
    facts = dict(summary(rows))
    assert "300 B, 1/200 of whole checkpoints" == facts["payload of all steps"]
    assert "median 2.00 s" == facts["checkpoint written -> served by both"]
    assert "median 2.00 ms, worst 3.00 ms" == facts["pause of an engine"]
    assert ("3", "6") == (facts["optimizer steps"], facts["answers that crossed a commit"])
    assert "-" == dict(summary([row(1, 0.1)]))["pause of an engine"]


def test_the_heading_stands_in_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    follower().take({"event": "start", "elements": 1_431_488})
    assert ["1,431,488 BF16 elements", HEADER] == capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("rows", "digests", "good", "rose"),
    [
        (rising(JUDGED_STEPS), ONE, True, True),
        (rising(JUDGED_STEPS)[::-1], ONE, False, False),
        (rising(JUDGED_STEPS - 1)[::-1], ONE, True, None),
        (rising(JUDGED_STEPS), FLIPPED, False, True),
        (rising(2), FLIPPED, False, None),
    ],
)
def test_it_is_good_when_every_digest_is_one_and_a_judged_reward_rose(
    rows: list[Row], digests: dict[str, str], good: bool, rose: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert good == conclude(Output(as_json=True), rows, digests, seconds=7.4)
    document = json.loads(capsys.readouterr().out)
    assert (digests == ONE, rose) == (document["proven"], document["reward_rose"])
    assert (digests, "7 s") == (document["digests"], document["summary"]["wall time"])


def test_a_copy_that_differs_is_named_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert not conclude(Output(as_json=False), rising(2), FLIPPED, seconds=1)
    out = capsys.readouterr().out
    assert "DIFFERENT: a copy does not hold the trainer's bits" in out
    assert "live memory of node-b's engine" in out and "DIFFERS: live memory holds other bits" in out
    assert "the reward of fewer than 5 steps is not judged" in out


def test_the_end_of_a_dead_process_s_log_is_shown_line_by_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def dies(*_: Any, **__: Any) -> bool:
        raise ProcessDied("trainer ended with 1", ["Traceback", "ValueError: odd"])

    monkeypatch.setattr(command, "_run", dies)
    with pytest.raises(ProcessDied):
        command.demo(folder=tmp_path)
    assert ["Traceback", "ValueError: odd"] == capsys.readouterr().err.splitlines()[:2]
