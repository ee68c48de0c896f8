"""An engine that follows an agent: what its clients and its agent see while versions change, fail and are made whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from syncline import faults
from syncline.errors import DigestMismatch, EngineUncertain
from syncline.versions import Policy
from syncline_agent.arm import messages
from syncline_agent.arm.server import ArmServer
from syncline_agent.reference import engine as reference_engine
from syncline_agent.reference import loading
from syncline_agent.testing.bits import stores_of

Start = Callable[..., Any]


def wait_until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(400):
        if true():
            return
        pause.wait(0.05)
    raise AssertionError("it did not happen within twenty seconds")


def test_a_stream_says_the_same_as_a_whole_answer(engine_here: Start) -> None:
    engine = engine_here()
    whole = engine.complete(seed=9, max_tokens=25)["choices"][0]
    events = list(engine.stream(seed=9, max_tokens=25, stream_options={"include_usage": True}))
    chunks = [e["choices"][0] for e in events if e["choices"]]
    assert whole["text"] == "".join(c["text"] for c in chunks)
    assert whole["token_ids"] == [t for c in chunks for t in c["token_ids"]]
    assert whole["logprobs"]["token_logprobs"] == pytest.approx(
        [p for c in chunks for p in c["logprobs"]["token_logprobs"]], abs=1e-4
    )
    assert whole["weight_version"] == chunks[-1]["weight_version"]
    assert "length" == chunks[-1]["finish_reason"]
    assert all("weight_version" not in c and c["finish_reason"] is None for c in chunks[:-1])
    assert 25 == events[-1]["usage"]["completion_tokens"]


def test_the_commit_names_the_requests_in_flight_and_how_far_they_were(
    tiny: Any, agent: ArmServer, engine_here: Start
) -> None:
    engine = engine_here()
    assert agent.wait_connected(10)
    agent.stage(tiny.request(1, 2))
    with ThreadPoolExecutor(1) as client:
        events = engine.stream(request_id="mine", max_tokens=400)
        first = next(events)
        assert "cmpl-mine" == first["id"]
        done = agent.commit(2, Policy.KEEP)
        last = client.submit(lambda: list(events)[-1]["choices"][0]).result(60)
    assert {"mine-0"} == set(done.spans)
    switched = done.spans["mine-0"]
    assert [
        {"first": 0, "last": switched - 1, "version": 1},
        {"first": switched, "last": 399, "version": 2},
    ] == last["weight_version"]["spans"]
    assert done.pause_seconds < 5


def test_drain_lets_requests_end_on_their_version(tiny: Any, agent: ArmServer, engine_here: Start) -> None:
    engine = engine_here()
    assert agent.wait_connected(10)
    agent.stage(tiny.request(1, 2))
    with ThreadPoolExecutor(3) as client:
        events = engine.stream(max_tokens=300)
        next(events)
        rest = client.submit(lambda: list(events)[-1]["choices"][0])
        commit = client.submit(agent.commit, 2, Policy.DRAIN)
        last = rest.result(60)
        done = commit.result(60)
    assert {} == done.spans
    assert [{"first": 0, "last": 299, "version": 1}] == last["weight_version"]["spans"]
    assert 2 == engine.complete()["choices"][0]["weight_version"]["start"]


def test_requests_meet_an_undo_as_they_meet_a_commit(tiny: Any, agent: ArmServer, engine_here: Start) -> None:
    engine = engine_here()
    assert agent.wait_connected(10)
    for policy, finish, whole in ((Policy.DRAIN, "length", True), (Policy.ABORT, "abort", False)):
        agent.stage(tiny.request(1, 2))
        agent.commit(2, Policy.KEEP)
        with ThreadPoolExecutor(2) as client:
            events = engine.stream(max_tokens=400)
            next(events)
            rest = client.submit(lambda stream=events: list(stream)[-1]["choices"][0])
            undo = client.submit(agent.undo, 1, policy)
            last, done = rest.result(60), undo.result(60)
        assert agent.sweep().proven
        assert (finish, whole) == (last["finish_reason"], done.spans == {})
        assert {2} == {span["version"] for span in last["weight_version"]["spans"]}


def test_abort_ends_requests_with_what_they_have(tiny: Any, agent: ArmServer, engine_here: Start) -> None:
    engine = engine_here()
    assert agent.wait_connected(10)
    agent.stage(tiny.request(1, 2))
    events = engine.stream(max_tokens=450)
    next(events)
    done = agent.commit(2, Policy.ABORT)
    last = list(events)[-1]["choices"][0]
    assert "abort" == last["finish_reason"]
    (counted,) = done.spans.values()
    assert [{"first": 0, "last": counted - 1, "version": 1}] == last["weight_version"]["spans"]
    assert 2 == engine.complete()["choices"][0]["weight_version"]["end"]


def test_a_client_that_goes_away_frees_its_slot(engine_here: Start) -> None:
    engine = engine_here(slots=1)
    with engine.http.stream(
        "POST", "/v1/completions", json={"prompt": "1", "max_tokens": 450, "ignore_eos": True, "stream": True}
    ) as answer:
        next(answer.iter_lines())
    assert "length" == engine.complete(max_tokens=3)["choices"][0]["finish_reason"]
    pause = threading.Event()
    for _ in range(100):
        if engine.status()["requests"] == {"active": 0, "waiting": 0}:
            break
        pause.wait(0.05)
    assert 'syncline_requests_total{outcome="disconnect"} 1.0' in engine.metrics()


def test_an_engine_waits_for_its_checkpoint_and_says_so(
    tiny: Any, engine_here: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []

    def look(folder: Path, **how: Any) -> loading.Loaded:
        looks.append(folder)
        return loading.load(folder, **how)

    monkeypatch.setattr(reference_engine, "load", look)
    away = tiny.checkpoint.with_name("away")
    tiny.checkpoint.rename(away)
    with capture_logs() as lines:
        engine = engine_here(ready=False)
        wait_until(lambda: str(tiny.checkpoint) in engine.http.get("/readyz").json()["reason"])
        answer = engine.http.get("/readyz")
        assert 503 == answer.status_code
        assert answer.json()["reason"].startswith("waiting for the checkpoint, which the agent writes: ")
        assert 200 == engine.http.get("/livez").status_code
        assert 503 == engine.http.post("/v1/completions", json={"prompt": "1"}).status_code
        wait_until(lambda: len(looks) >= 3)
        away.rename(tiny.checkpoint)
        engine.wait_ready()
    assert 1 == sum("the agent writes it" in line["event"] for line in lines)


def test_an_engine_that_starts_from_other_base_weights_refuses_by_name_and_can_be_made_whole(
    tiny: Any, agent: ArmServer, engine_here: Start, tmp_path: Path
) -> None:
    file = tiny.checkpoint / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 0x10
    file.write_bytes(data)
    engine = engine_here(ready=False)
    assert agent.wait_connected(20)
    described = agent.describe()
    assert "other base weights" in str(described.error)
    assert described.applied is not None
    assert not described.applied.proven
    answer = engine.http.get("/readyz")
    assert 503 == answer.status_code
    assert "other base weights" in answer.json()["reason"]
    refused = engine.http.post("/v1/completions", json={"prompt": "1"})
    assert (503, "1") == (refused.status_code, refused.headers["Retry-After"])
    tiny.write_checkpoint(tmp_path / "whole", 2)
    agent.stage(tiny.request(1, 2, checkpoint=tmp_path / "whole"))
    agent.commit(2, Policy.KEEP)
    assert agent.sweep().proven
    engine.wait_ready()
    tiny.check_replay(engine.complete()["choices"][0])


@pytest.mark.parametrize(("at", "version"), [("apply.ready", 1), ("apply.writing", 1), ("apply.resumed", 2)])
def test_an_agent_killed_in_a_commit_costs_a_pause_only(tiny: Any, engine_here: Start, at: str, version: int) -> None:
    class Gone(BaseException):
        pass

    def die(point: str) -> None:
        if point == at:
            raise Gone

    engine = engine_here()
    with ThreadPoolExecutor(1) as client:
        with ArmServer(tiny.socket) as first:
            assert first.wait_connected(10)
            first.stage(tiny.request(1, 2))
            events = engine.stream(max_tokens=450)
            seen = [next(events)]
            faults.install_hook(die)
            try:
                with pytest.raises(Gone):
                    first.commit(2, Policy.KEEP)
            finally:
                faults.install_hook(None)
        rest = client.submit(lambda: list(events))
        seen += rest.result(60)
    last = seen[-1]["choices"][0]
    assert ("length", version) == (last["finish_reason"], last["weight_version"]["end"])
    assert version == engine.complete()["choices"][0]["weight_version"]["end"]
    with ArmServer(tiny.socket) as second:
        assert second.wait_connected(10)
        second.stage(tiny.request(version, 3))
        assert 3 == second.commit(3, Policy.KEEP).version


def test_an_engine_told_that_it_failed_serves_nothing_until_it_is_proven(
    tiny: Any, agent: ArmServer, engine_here: Start
) -> None:
    engine = engine_here()
    assert agent.wait_connected(10)
    (gate,) = agent._island.whole().arms
    with ThreadPoolExecutor(1) as client:
        events = engine.stream(max_tokens=490)
        next(events)
        rest = client.submit(lambda: list(events))
        # While the agent does nothing else: it would prove the engine again at once.
        with agent._calling:
            gate.ask(lambda i: messages.Fail(id=i, reason="another rank is gone"), messages.Done, 10)
            assert "another rank is gone" == rest.result(30)[-1]["error"]["message"]
            answer = engine.http.get("/readyz")
            assert (503, "another rank is gone") == (answer.status_code, answer.json()["reason"])
            assert 503 == engine.http.post("/v1/completions", json={"prompt": "1"}).status_code
            assert "another rank is gone" == engine.status()["error"]
    engine.wait_ready()
    tiny.check_replay(engine.complete()["choices"][0])


def test_an_engine_sweeps_by_itself_and_says_what_it_finds(tiny: Any, agent: ArmServer, engine_here: Start) -> None:
    engine = engine_here(sweep_interval_s=0.05)
    assert agent.wait_connected(10)
    pause = threading.Event()
    for _ in range(200):
        found = engine.metrics()
        if "syncline_sweep_seconds_count 0.0" not in found:
            break
        pause.wait(0.05)
    assert "syncline_sweep_seconds_count 0.0" not in found
    assert 200 == engine.http.get("/readyz").status_code
    assert agent.describe().error is None


def test_a_live_bit_that_flips_takes_the_replica_out_until_it_is_whole_again(
    tiny: Any, agent: ArmServer, engine_here: Start, tmp_path: Path
) -> None:
    engine = engine_here(sweep_interval_s=0.05)
    assert agent.wait_connected(10)
    events = engine.stream(max_tokens=490)
    next(events)
    live = engine.engine.running.live
    stores_of(live)[3][17] ^= 1  # what a cosmic ray would do
    wait_until(lambda: agent.describe().error is not None)
    assert 503 == engine.http.get("/readyz").status_code
    assert "model.layers.0" in str(agent.describe().error)
    assert 503 == engine.http.post("/v1/completions", json={"prompt": "1"}).status_code
    with pytest.raises(DigestMismatch):
        agent.stage(tiny.request(1, 2))
    tiny.write_checkpoint(tmp_path / "whole", 3)
    agent.stage(tiny.request(1, 3, checkpoint=tmp_path / "whole"))
    agent.commit(3, Policy.KEEP)
    assert agent.sweep().proven
    assert 200 == engine.http.get("/readyz").status_code
    tiny.check_replay(engine.complete()["choices"][0])


def test_no_token_leaves_that_was_computed_with_bits_which_were_not_read_back(
    tiny: Any, agent: ArmServer, engine_here: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_here()
    assert agent.wait_connected(10)
    live = engine.engine.running.live
    confirm = live.confirm
    seen: list[dict[str, Any]] = []
    computing = threading.Event()

    def spoil_then_confirm(target: int) -> object:
        computing.wait(0.3)  # the engine goes on computing meanwhile
        name = live.table.tensors[0].name
        place = int(np.flatnonzero(tiny.run.weights(1)[name] != tiny.run.weights(2)[name])[0])
        stores_of(live)[0][place] ^= 1
        return confirm(target)

    scheduler = engine.engine.running.scheduler
    spans = scheduler._spans
    counted: dict[str, int] = {}

    def count() -> dict[str, int]:
        counted.update(spans())
        return counted

    monkeypatch.setattr(live, "confirm", spoil_then_confirm)
    monkeypatch.setattr(scheduler, "_spans", count)
    agent.stage(tiny.request(1, 2))
    with ThreadPoolExecutor(1) as client:
        events = engine.stream(max_tokens=490, request_id="r")
        seen.append(next(events))
        rest = client.submit(lambda: list(events))
        with pytest.raises(EngineUncertain, match="reads back wrong"):
            agent.commit(2, Policy.KEEP)
        seen += rest.result(30)
    assert "reads back wrong" in seen[-1]["error"]["message"]
    assert all("choices" in event and event["choices"][0]["finish_reason"] is None for event in seen[:-1])
    delivered = sum(len(event["choices"][0]["token_ids"]) for event in seen[:-1])
    assert delivered < 490
    assert {"r-0": delivered} == counted  # all of the old version's tokens, none of the new one's
    assert 503 == engine.http.get("/readyz").status_code
    monkeypatch.undo()
    agent.undo(1)
    assert agent.sweep().proven
    tiny.check_replay(engine.complete()["choices"][0])


def test_what_a_failed_commit_held_back_fails_even_when_the_undo_comes_before_the_next_step(
    tiny: Any, agent: ArmServer, engine_here: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_here()
    assert agent.wait_connected(10)
    running = engine.engine.running
    decoder, forward = running.scheduler._decoder, running.scheduler._decoder.forward
    confirm, stepping, undone = running.live.confirm, threading.Event(), threading.Event()

    def held_back_then_unread(target: int) -> object:
        # The answer ends with this step, so it has left the running sequences when the commit turns out bad.
        wait_until(lambda: bool(running.scheduler._held))
        monkeypatch.setattr(decoder, "forward", slow_forward)
        stepping.wait(10)
        raise EngineUncertain("the device is full")

    def slow_forward(*rows: Any) -> Any:
        stepping.set()
        undone.wait(10)
        return forward(*rows)

    monkeypatch.setattr(running.live, "confirm", held_back_then_unread)
    agent.stage(tiny.request(1, 2))
    with ThreadPoolExecutor(1) as client:
        events = engine.stream(max_tokens=490)
        next(events)
        rest = client.submit(lambda: list(events))
        with pytest.raises(EngineUncertain):
            agent.commit(2, Policy.KEEP)
        monkeypatch.setattr(running.live, "confirm", confirm)
        undo = client_of(lambda: agent.undo(1))
        wait_until(lambda: running.scheduler._gate.wanted)
        undone.set()
        undo.join(10)
        last = rest.result(30)[-1]
    assert "error" in last
    assert agent.sweep().proven
    tiny.check_replay(engine.complete()["choices"][0])


def client_of(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_a_config_that_nobody_foresaw_is_said_and_the_engine_starts_when_it_is_mended(
    tiny: Any, engine_here: Start
) -> None:
    file = tiny.checkpoint / "config.json"
    good = file.read_text()
    file.write_text(good.replace("{", '{"rope_parameters": [1], ', 1))
    engine = engine_here(ready=False)
    wait_until(lambda: "can be loaded" in engine.http.get("/readyz").json()["reason"])
    file.write_text(good)
    engine.wait_ready()


def test_without_the_characters_answers_are_token_ids_and_the_log_says_why(tiny: Any, engine_here: Start) -> None:
    (tiny.checkpoint / "character_tokenizer.json").rename(tiny.checkpoint / "tokenizer.json")
    with capture_logs() as lines:
        engine = engine_here()
    assert 1 == sum("tokenizer.json is not read" in line["event"] for line in lines)
    plain = {"prompt": [3, 4], "max_tokens": 5}
    choice = engine.http.post("/v1/completions", json=plain).json()["choices"][0]
    assert ("", 5) == (choice["text"], len(choice["token_ids"]))
    refused = engine.http.post("/v1/completions", json={"prompt": "1+2="})
    assert 400 == refused.status_code
    assert "tokenizer.json is not read by the reference engine; give token ids" in refused.json()["error"]["message"]


def test_sweeps_go_on_after_one_that_could_not_end(
    tiny: Any, engine_here: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_here(sweep_interval_s=0.05)
    live = engine.engine.running.live
    sweep, tries = live.sweep, []

    def once_out_of_memory(**how: Any) -> object:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("the device is full")
        return sweep(**how)

    monkeypatch.setattr(live, "sweep", once_out_of_memory)
    wait_until(lambda: len(tries) > 2)
    stores_of(live)[3][17] ^= 1
    wait_until(lambda: live.error is not None)
