"""An engine of several processes: each holds its part, together they answer as one that holds all, and follow in place."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from syncline.errors import EngineUnavailable
from syncline.versions import Policy
from syncline_agent.arm.server import ArmServer
from syncline_agent.reference.config import ModelConfig
from syncline_agent.reference.generation import complete
from syncline_agent.reference.model import Decoder
from syncline_agent.reference.sampling import SamplingParams
from syncline_agent.testing.plain_model import Model, model, stacked
from syncline_agent.testing.threaded_ranks import Rank

Start = Callable[..., Any]
pytestmark = pytest.mark.timeout(300)  # processes that load torch, on a machine that others load
PROMPT = [1, 4, 14, 5, 15]


def greedy(tiny: Any, version: int) -> list[int]:
    """What one rank that holds all answers."""
    decoder = Decoder(tiny.config, tiny.weights(version), slots=1)
    (found,) = complete(decoder, [PROMPT], [SamplingParams(temperature=0.0)], end=-1, limit=12)
    return list(found.tokens)


def answered(engine: Any) -> tuple[list[int], int]:
    choice = engine.complete(prompt=PROMPT, max_tokens=12, temperature=0.0)["choices"][0]
    return choice["token_ids"], choice["weight_version"]["end"]


def children(pid: int) -> list[int]:
    """Processes that a process started, whichever of its threads did."""
    lists = [task / "children" for task in Path(f"/proc/{pid}/task").iterdir()]
    return sorted(int(child) for of_thread in lists for child in of_thread.read_text().split())


def wait_until(true: Callable[[], bool], what: str) -> None:
    pause = threading.Event()
    for _ in range(600):
        if true():
            return
        pause.wait(0.05)
    raise AssertionError(f"not within 30 s: {what}")


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("ways", [2, 4])
def test_ranks_answer_and_follow_as_one_that_holds_all(
    tiny: Any, agent: ArmServer, start_engine: Start, ways: int
) -> None:
    engine = start_engine("--tp", str(ways))
    assert ways == agent.describe().ranks
    assert (greedy(tiny, 1), 1) == answered(engine)
    agent.stage(tiny.request(1, 2))
    done = agent.commit(2, Policy.KEEP)
    assert (2, tiny.run.digest(2)) == (done.version, done.digest)
    assert (greedy(tiny, 2), 2) == answered(engine)
    agent.undo(1)
    assert agent.sweep().proven
    assert (greedy(tiny, 1), 1) == answered(engine)
    agent.stage(tiny.request(1, 3))
    with ThreadPoolExecutor(1) as client:
        events = engine.stream(max_tokens=60, request_id="mine")
        first = next(events)
        done = agent.commit(3, Policy.KEEP)
        last = client.submit(lambda: [first, *events][-1]["choices"][0]).result(60)
    assert [1, 3] == [span["version"] for span in last["weight_version"]["spans"]]
    applied = agent.sweep()
    assert (3, tiny.run.digest(3), True) == (applied.version, applied.digest, applied.proven)
    assert (greedy(tiny, 3), 3) == answered(engine)
    tiny.check_replay(engine.complete(max_tokens=12)["choices"][0])
    ranks = children(engine.process.pid)
    assert ways - 1 == len(ranks)
    engine.process.terminate()
    assert 0 == engine.process.wait(15)
    assert all(ended(pid) for pid in ranks)


DENSE = ModelConfig(
    vocab=19,
    hidden=32,
    intermediate=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    max_positions=64,
    qkv_bias=False,
    weight_block=(16, 16),
)
MOE = replace(DENSE, qk_norm=True, experts=4, experts_per_token=2, expert_intermediate=64, dense_layers=(1,))
UNTIED = replace(MOE, tied=False)
SPREAD = {
    "untied, an odd vocabulary, kv heads and experts on four": (lambda: model(UNTIED), ["--tp", "4"]),
    "a part of each expert in nvfp4": (lambda: model(MOE, kind="NVFP4"), ["--tp", "2", "--no-expert-parallel"]),
    "stacked experts and head in fp8": (
        lambda: stacked(model(UNTIED, kind="FP8", others={"lm_head.weight": "FP8"}), turned=True),
        ["--tp", "2"],
    ),
}


@pytest.mark.parametrize("name", SPREAD)
def test_every_kind_of_spread_answers_and_follows_as_one_rank_that_holds_all(
    name: str, node_of: Callable[[Model], Any], start_engine: Start
) -> None:
    made, flags = SPREAD[name]
    node = node_of(made())

    def alone(version: int) -> tuple[list[int], int]:
        (found,) = complete(
            Rank(node.model(version)).decoder, [PROMPT], [SamplingParams(temperature=0.0)], end=-1, limit=12
        )
        return list(found.tokens), version

    assert 3 == len({tuple(alone(version)[0]) for version in (1, 2, 3)})
    with ArmServer(node.socket) as agent:
        engine = start_engine(*flags, node=node)
        assert int(flags[1]) == agent.describe().ranks
        assert alone(1) == answered(engine)
        agent.stage(node.request(1, 2))
        done = agent.commit(2, Policy.KEEP)
        assert (2, node.run.digest(2)) == (done.version, done.digest)
        assert alone(2) == answered(engine)
        agent.undo(1)
        assert agent.sweep().proven
        assert alone(1) == answered(engine)
        agent.stage(node.request(1, 3))
        agent.commit(3, Policy.KEEP)
        swept = agent.sweep()
        assert (3, node.run.digest(3), True) == (swept.version, swept.digest, swept.proven)
        assert alone(3) == answered(engine)


def test_a_rank_that_is_killed_ends_the_engine_with_an_error(tiny: Any, agent: ArmServer, start_engine: Start) -> None:
    engine = start_engine("--tp", "2")
    ranks = children(engine.process.pid)
    events = engine.stream(max_tokens=450)
    next(events)
    agent.stage(tiny.request(1, 2))
    os.kill(ranks[0], signal.SIGKILL)
    assert 1 == engine.process.wait(20)
    wait_until(lambda: all(ended(pid) for pid in ranks), "the other ranks end")
    with pytest.raises(EngineUnavailable):
        agent.commit(2, Policy.KEEP)


def test_ranks_end_when_the_first_is_killed(start_engine: Start) -> None:
    engine = start_engine("--tp", "2", ready=False)
    (rank,) = children(engine.process.pid)
    engine.kill()
    wait_until(lambda: ended(rank), "the other rank ends")


def test_a_bit_that_flips_in_another_rank_s_memory_stops_the_engine_until_a_checkpoint_mends_it(
    tiny: Any, start_engine: Start
) -> None:
    with ArmServer(tiny.socket):
        engine = start_engine("--tp", "2", "--sweep-interval", "0.2")
    (rank,) = children(engine.process.pid)
    units = tiny.run.weights(1)["model.layers.1.mlp.gate_proj.weight"].reshape(48, 32)
    flip(rank, units[24:].tobytes())  # the second rank's half, with no agent there that could tell the first
    wait_until(lambda: engine.http.get("/readyz").status_code == 503, "the engine is out of service")
    reason = engine.http.get("/readyz").json()["reason"]
    assert reason.startswith("rank 1: live bits of model.layers.1.mlp.gate_proj.weight are not version 1's")
    assert 503 == engine.http.post("/v1/completions", json={"prompt": PROMPT}).status_code
    tiny.write_checkpoint(tiny.node / "whole", 2)
    with ArmServer(tiny.socket) as agent:
        assert agent.wait_connected(20)
        agent.stage(tiny.request(1, 2, checkpoint=tiny.node / "whole"))
        agent.commit(2, Policy.KEEP)
        assert agent.sweep().proven
        engine.wait_ready()
        assert (greedy(tiny, 2), 2) == answered(engine)


def flip(pid: int, where: bytes) -> None:
    """Turn the first bit of these bytes wherever the process can write them."""
    found = 0
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        for start, data in writable(pid, memory):
            place = data.find(where)
            while place >= 0:
                memory.seek(start + place)
                memory.write(bytes([where[0] ^ 1]))
                found += 1
                place = data.find(where, place + 1)
    assert found


def writable(pid: int, memory: Any) -> Iterator[tuple[int, bytes]]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        extent, rights, *_ = line.split()
        if rights.startswith("rw"):
            low, high = (int(end, 16) for end in extent.split("-"))
            memory.seek(low)
            try:
                yield low, memory.read(high - low)
            except OSError:
                continue  # a guard page
