"""The demo's own parts: processes that are watched and ended, a fleet that is asked, a sampler that is bounded."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syncline.clock import ManualClock, SystemClock
from syncline.errors import EngineUnavailable
from syncline_cli.demo.fleet import Fleet, Node, await_version, store_of
from syncline_cli.demo.processes import ProcessDied, Processes, free_port
from syncline_cli.demo.sampler import ANSWERS, PROBLEMS, Sampler
from syncline_cli.demo.task import TOKENIZER

Answers = Callable[[str, Any], tuple[int, Any]]


@pytest.fixture
def serve() -> Iterator[Callable[[Answers], str]]:
    """A loopback service that answers JSON as a function of path and body says."""
    running: list[tuple[http.server.ThreadingHTTPServer, threading.Thread]] = []

    def start(answers: Answers) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                text = self.rfile.read(length)
                status, document = answers(self.path, json.loads(text) if text else None)
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST

            def log_message(self, format: str, *args: object) -> None:
                """A test's output is its own."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join(10)


# --- processes


def wait_for(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if happened():
            return
        pause.wait(0.02)
    pytest.fail("it did not happen within 20 s")


def test_a_process_that_ends_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        running = processes.start("odd", "json.tool", ["/does/not/exist"])
        running.process.wait(30)
        with pytest.raises(ProcessDied, match=r"odd ended with \d+; its log is .*odd\.log$") as died:
            processes.check()
    assert "/does/not/exist" in died.value.tail[-1]


def test_only_the_trainer_may_end_and_only_well(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("trainer", "this", []).process.wait(30)
        processes.check()
        processes.start("engine", "this", []).process.wait(30)
        with pytest.raises(ProcessDied, match="engine ended with 0"):
            processes.check()


def test_every_process_is_ended_whatever_happens(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Processes(tmp_path) as processes:
        server = processes.start("server", "http.server", ["--bind", "127.0.0.1", "0"]).process
        assert server.poll() is None
        raise KeyboardInterrupt
    assert server.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_its_environment_reaches_a_process(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text("import os; print(os.environ['GIVEN'], os.environ['OMP_NUM_THREADS'])")
    with Processes(tmp_path) as processes:
        given = {"GIVEN": "yes", "PYTHONPATH": str(tmp_path)}
        running = processes.start("probe", "probe", [], environment=given)
        running.process.wait(30)
    assert "yes 1\n" == running.log.read_text()


def test_a_free_port_can_be_bound() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as bound:
        assert bound.getsockname()[1] > 0


# --- the fleet


def fleet_at(url: str, folder: Path) -> Fleet:
    return Fleet("store", {}, folder, url, [Node("node-a", folder, url, url)])


def test_a_local_store_is_a_folder_and_needs_no_keys(tmp_path: Path) -> None:
    with store_of("local", tmp_path) as (url, environment):
        assert (str(tmp_path / "store"), {}) == (url, environment)


def test_a_sweep_that_finds_other_bits_is_a_digest_that_differs(serve: Any, tmp_path: Path) -> None:
    answers = iter([(200, {"digest": "ab" * 16}), (409, {"error": {"message": "live memory differs"}}), (503, {})])
    fleet = fleet_at(serve(lambda path, body: next(answers)), tmp_path)
    node = fleet.nodes[0]
    assert "ab" * 16 == fleet.verify(node)
    assert "DIFFERS: live memory differs" == fleet.verify(node)
    with pytest.raises(EngineUnavailable, match="node-a did not sweep its memory"):
        fleet.verify(node)


def test_the_fleet_is_there_once_every_node_serves_the_version_proven(serve: Any, tmp_path: Path) -> None:
    states = iter(
        [None, {"version": 1, "proven": True}, {"version": 2, "proven": False}, {"version": 2, "proven": True}]
    )
    fleet = fleet_at(serve(lambda path, body: (200, {"applied": next(states)})), tmp_path)
    with Processes(tmp_path) as processes:
        await_version(fleet, processes, 2, timeout_s=60, clock=ManualClock())
        assert [] == list(states)


def test_a_fleet_that_does_not_get_there_says_what_each_node_says(tmp_path: Path) -> None:
    fleet = fleet_at(f"http://127.0.0.1:{free_port()}", tmp_path)
    with (
        Processes(tmp_path) as processes,
        pytest.raises(EngineUnavailable, match=r"version 2 did not .*: node-a does not answer$"),
    ):
        await_version(fleet, processes, 2, timeout_s=1, clock=ManualClock())


def test_a_node_that_stays_behind_is_told_with_its_error(serve: Any, tmp_path: Path) -> None:
    state = {"applied": {"version": 1, "proven": True}, "phase": "Failed", "error": "DiskFull: no room"}
    fleet = fleet_at(serve(lambda path, body: (200, state)), tmp_path)
    told = "node-a serves 1 proven, phase Failed, error: DiskFull: no room"
    with Processes(tmp_path) as processes, pytest.raises(EngineUnavailable, match=f"{told}$"):
        await_version(fleet, processes, 2, timeout_s=1, clock=ManualClock())


# --- the sampler


def choices(body: dict[str, Any], versions: tuple[int, ...]) -> dict[str, Any]:
    """Answers as an engine gives them: a token a version."""
    ended = [{"first": at, "last": at, "version": version} for at, version in enumerate(versions)]
    tokens = TOKENIZER.encode("1" * len(versions))[-len(versions) :]
    return {
        "choices": [
            {
                "index": index,
                "text": "1" * len(versions),
                "prompt_token_ids": TOKENIZER.encode(body["prompt"][index // body["n"]]),
                "token_ids": tokens,
                "logprobs": {"token_logprobs": [-0.5] * len(tokens)},
                "weight_version": {"spans": ended},
            }
            for index in reversed(range(len(body["prompt"]) * body["n"]))
        ]
    }


def sampler_of(url: str, capacity: int = 4) -> Sampler:
    return Sampler([url], seed=1, temperature=1.0, capacity=capacity, clock=SystemClock())


def test_a_batch_is_groups_of_answers_to_one_problem(serve: Any) -> None:
    asked: list[dict[str, Any]] = []

    def engine(path: str, body: Any) -> tuple[int, Any]:
        if path == "/readyz":
            return 200, {}
        asked.append(body)
        return 200, choices(body, (3, 4))

    sampler = sampler_of(serve(engine))
    sampler.start()
    rollouts, dropped = sampler.batch(3, oldest=3)
    sampler.stop()
    assert (3 * ANSWERS, 0) == (len(rollouts), dropped)
    assert 3 == len({r.group for r in rollouts})
    for group in {r.group for r in rollouts}:
        assert 1 == len({r.prompt for r in rollouts if r.group == group})
    assert {(3, 4)} == {tuple(r.versions) for r in rollouts}
    assert (PROBLEMS, ANSWERS) == (len(asked[0]["prompt"]), asked[0]["n"])


def test_groups_with_a_token_of_a_version_that_is_too_old_are_dropped(serve: Any) -> None:
    calls = iter(range(1_000_000))

    def engine(path: str, body: Any) -> tuple[int, Any]:
        if path == "/readyz":
            return 200, {}
        return 200, choices(body, (2, 5) if next(calls) == 0 else (5, 5))

    sampler = sampler_of(serve(engine))
    sampler.start()
    rollouts, dropped = sampler.batch(1, oldest=3)
    sampler.stop()
    assert (PROBLEMS, {5}) == (dropped, {v for r in rollouts for v in r.versions})


def test_a_sampler_waits_when_nobody_takes_its_groups(serve: Any) -> None:
    asked: list[object] = []

    def engine(path: str, body: Any) -> tuple[int, Any]:
        if path == "/readyz":
            return 200, {}
        asked.append(body)
        return 200, choices(body, (1,))

    sampler = sampler_of(serve(engine), capacity=2)
    sampler.start()
    wait_for(lambda: sampler._groups.full())
    sampler.batch(2, oldest=1)
    sampler.stop()
    assert 1 == len(asked)  # the eight groups of one request do not fit, so there was no second one


def test_an_engine_that_fails_ends_the_training(serve: Any) -> None:
    sampler = sampler_of(serve(lambda path, body: (200, {}) if path == "/readyz" else (500, {})))
    sampler.start()
    with pytest.raises(EngineUnavailable, match="an engine stopped answering"):
        sampler.batch(1, oldest=1)
    sampler.stop()
