"""What is reckoned of a served run: pauses, rates and losses from when tokens came; and all of it once, small, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.serving.figures import Answer, first_token, loss, pauses, rate
from bench.serving.report import table

ROOT = Path(__file__).parents[2]


def answer(stream: int, *gaps_ms: float, spans: tuple[tuple[int, int], ...] = ((0, 1),), begin: float = 0.0) -> Answer:
    times = [begin]
    for gap in gaps_ms:
        times.append(times[-1] + gap / 1e3)
    return Answer(stream, times, spans)


def test_a_pause_is_what_a_commit_adds_to_the_usual_gap_of_its_own_stream() -> None:
    quick = answer(0, 10, 10, 10, 17, 10, 10, spans=((0, 1), (4, 2)))
    slow = answer(1, 20, 20, 25, 20, 20, spans=((0, 1), (3, 2)))
    found = pauses([quick, slow], (0.0, 1.0))
    assert found is not None
    assert (2, 6.0, 7.0, 7.0) == (found.count, *(round(1e3 * s, 6) for s in (found.half, found.p99, found.most)))


def test_a_gap_outside_the_window_and_one_between_two_answers_are_no_pause() -> None:
    before = answer(0, 10, 10, 90, 10, spans=((0, 1), (3, 2)))
    after = answer(0, 10, 10, spans=((0, 2),), begin=5.0)
    assert pauses([before, after], (0.2, 9.0)) is None


def test_a_loss_compares_each_window_with_as_long_a_one_beside() -> None:
    steady = Answer(0, [n / 10 for n in range(100)], ((0, 1),))
    halved = Answer(0, [10 + n / 5 for n in range(50)], ((0, 1),))
    assert 10.0 == rate([steady], (0.95, 1.95))
    lost = loss([steady, halved], during=[(10.1, 14.1)], beside=[(2.05, 6.05)])
    assert lost is not None
    assert 0.5 == round(lost, 6)
    assert loss([steady], during=[(1.0, 2.0)], beside=[(20.0, 21.0)]) is None


def test_the_first_token_by_a_version_is_the_earliest_of_all_streams() -> None:
    answers = [answer(n, 10, 10, 10, spans=((0, 1), (2, 2)), begin=float(n)) for n in range(3)]
    assert (0.02, 1.02) == (first_token(answers, 2), first_token(answers, 2, after=0.5))
    assert first_token(answers, 3) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    words = "--device cpu --gb 0.003 --steps 1 --warm-up 1 --turns 1 --stagings 1 --streams 2 --tokens 60 --window 0.3"
    where = ["--patience", "240", "--json", str(folder / "serve.json")]
    with (folder / "serve.txt").open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "bench/gpu_serve.py", *words.split(), *where],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": "."},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(540)
        finally:
            process.terminate()  # whatever ends the test, it ends its own processes
            process.wait()
    assert 0 == code, (folder / "serve.txt").read_text(encoding="utf-8")[-6000:]
    return folder


@pytest.mark.timeout(600)
def test_a_small_run_without_a_gpu_ends_with_every_figure(run: Path) -> None:
    facts = json.loads((run / "serve.json").read_text(encoding="utf-8"))
    assert [] == facts["errors"]
    assert table(facts) in (run / "serve.txt").read_text(encoding="utf-8")
    for share in ("share_0.00085", "share_0.01"):
        # On a slow machine no answer of so few tokens may be in flight at the commit; then there is no pause to tell.
        assert facts[share]["pauses"] is None or facts[share]["pauses"]["count"] > 0
        assert len(facts[share]["steps"]) == len(facts[share]["publish_to_serving"]) == 1
    assert all("loss" in facts[name] for name in ("staging", "sweeping", "sweeping_without_rest"))
    assert facts["sweeping"]["sweeps"] > 0
    assert facts["undo"][0]["first"] > facts["undo"][0]["told"]
    assert facts["agent"]["resident"] > 0
    assert {"load_seconds", "reload_seconds", "probe_seconds"} == set(facts["beside"]["loading"])
