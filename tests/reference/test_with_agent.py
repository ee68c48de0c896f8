"""Publisher, agent process and engine process on one node: what is published is what answers, whatever dies between."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.reference.generation import complete
from syncline_agent.reference.sampling import SamplingParams
from syncline_agent.testing.plain_model import Model, model
from syncline_agent.testing.threaded_ranks import Rank

Start = Callable[..., Any]


@pytest.mark.timeout(600)
def test_a_node_joins_follows_goes_back_and_survives_a_kill_of_either_process(fleet: Any) -> None:
    fleet.publish(1)
    agent = fleet.start_agent()
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 1)
    fleet.publish(2)
    fleet.publish(3)
    fleet.check(engine, 3)
    fleet.target("Pinned", 2)
    fleet.check(engine, 2)
    fleet.target("Latest")
    fleet.check(engine, 3)
    state, page = fleet.ask_gateway_socket("/v1/state"), fleet.ask_gateway_socket("/v1/commits")
    assert (3, True, page["log"]) == (state["applied"]["version"], state["in_service"], state["log"])
    switches = [tuple(at and at["version"] for at in (c["before"], c["after"])) for c in page["commits"]]
    assert ((None, 1), [(3, 2), (2, 3)]) == (switches[0], switches[-2:])
    assert all({} == c["spans"] and c["ended"] for c in page["commits"][-2:])

    engine.kill()
    doomed = fleet.start_engine(kill_at="apply.scattering", ready=False)
    fleet.publish(4)
    assert -signal.SIGKILL == doomed.process.wait(60)
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 4)
    gone = fleet.ask_gateway_socket(f"/v1/commits?after={page['last']}")["commits"]
    assert (3, None) == (gone[0]["before"]["version"], gone[0]["after"])  # another engine may come with another version
    assert 4 == gone[-1]["after"]["version"]

    agent.kill()
    agent.wait(10)
    before = page["log"]
    assert 200 == engine.http.get("/readyz").status_code  # it serves on
    fleet.start_agent()
    fleet.target("Pinned", 3)
    fleet.check(engine, 3)
    assert before != fleet.ask_gateway_socket("/v1/state")["log"]

    engine.kill()
    weights = next(fleet.tiny.checkpoint.glob("*.safetensors"))
    flip(weights)
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 3)  # other base weights: made whole from the store
    assert 'syncline_digest_failures_total{phase="load"' in engine.metrics()

    engine.kill()
    weights = next(fleet.tiny.checkpoint.glob("*.safetensors"))
    os.truncate(weights, weights.stat().st_size - 1)
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 3)


@pytest.mark.timeout(600)
def test_an_engine_of_two_ranks_follows_in_place_and_survives_a_kill_of_all_in_a_write_and_of_one_at_rest(
    fleet: Any,
) -> None:
    fleet.publish(1)
    fleet.start_agent()
    doomed = fleet.start_engine("--tp", "2", kill_at="apply.scattering", ready=False)
    fleet.check(doomed, 1)
    fleet.publish(2)
    assert doomed.process.wait(60) in (1, -signal.SIGKILL)  # it died, or found that the other rank did
    engine = fleet.start_engine("--tp", "2", ready=False)
    fleet.check(engine, 2)
    fleet.publish(3)
    fleet.check(engine, 3)
    assert "delta" == fleet.apply_path()
    fleet.target("Pinned", 2)
    fleet.check(engine, 2)
    assert "undo" == fleet.apply_path()

    (rank,) = (
        int(child)
        for task in Path(f"/proc/{engine.process.pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    )
    os.kill(rank, signal.SIGKILL)
    assert 1 == engine.process.wait(60)
    fleet.target("Latest")
    status = fleet.wait_status(lambda s: s["engine"] is None and s["target"] == 3)
    assert (False, None) == (status["in_service"], status["applied"])
    assert "no engine to commit to" in status["error"]
    engine = fleet.start_engine("--tp", "2", ready=False)
    fleet.check(engine, 3)
    assert "delta" == fleet.apply_path()


@pytest.mark.timeout(300)
def test_other_tensors_are_refused_by_name_while_the_old_version_is_served_and_taken_at_a_restart(fleet: Any) -> None:
    fp8 = model(fleet.tiny.config, kind="FP8")
    fleet.publish(1)
    fleet.start_agent()
    engine = fleet.start_engine(ready=False)
    fleet.check(engine, 1)

    quantized = fleet.publish_model(2, fp8)
    status = fleet.wait_status(lambda s: s["failures"] > 0)
    assert "version 2 has other tensors than version 1; restart the engine" in status["error"]
    assert (1, 1, True) == (status["applied"]["version"], status["lag_versions"], status["in_service"])
    fleet.check(engine, 1)
    engine.kill()
    engine = fleet.start_engine(ready=False)
    check_model(engine, 2, quantized, fp8)

    changed = turned(fp8)
    digest = fleet.publish_model(3, changed)
    check_model(engine, 3, digest, changed)
    assert "delta" == fleet.apply_path()

    unknown = TensorSpec(name="model.extra.weight", dtype="U8", shape=[5], axis=0)
    tensors = sorted([*fp8.table.tensors, unknown], key=lambda spec: spec.name)
    more = replace(
        changed, table=TensorTable(tensors=tensors), bits={**changed.bits, unknown.name: np.zeros(5, np.uint8)}
    )
    fleet.publish_model(4, more)
    assert "other tensors" in fleet.wait_status(lambda s: s["failures"] > 0)["error"]
    check_model(engine, 3, digest, changed)
    engine.kill()
    engine = fleet.start_engine(ready=False)
    wait_reason(engine, "unknown tensors ['model.extra.weight'] for the config")
    status = fleet.wait_status(lambda s: s["engine"] is None)
    assert (False, 4) == (status["in_service"], status["target"])
    digest = fleet.publish_model(5, fp8)
    check_model(engine, 5, digest, fp8)


def flip(file: Path) -> None:
    """Turn a bit near the end of a file."""
    with file.open("r+b") as opened:
        opened.seek(-5, os.SEEK_END)
        (byte,) = opened.read(1)
        opened.seek(-5, os.SEEK_END)
        opened.write(bytes([byte ^ 0x10]))


def turned(of: Model) -> Model:
    """The same with the sign of every hundredth number or so of its matrices turned."""
    bits = {name: units.copy() for name, units in of.bits.items()}
    for units in bits.values():
        units[::97] ^= units.dtype.type(1 << (8 * units.itemsize - 1))
    return replace(of, bits=bits)


def wait_reason(engine: Any, says: str) -> None:
    pause = threading.Event()
    for _ in range(1200):
        reason = str(engine.http.get("/readyz").json()["reason"])
        if says in reason:
            return
        pause.wait(0.05)
    raise AssertionError(f"not within 60 s: {reason}")


def check_model(engine: Any, version: int, digest: str, of: Model) -> None:
    """What answers is that version, proven, and says what an engine says that has only ever held it."""
    wait_reason(engine, "None")
    pause = threading.Event()
    for _ in range(800):
        applied = engine.status()["applied"]
        if (version, digest, True) == (applied["version"], applied["digest"], applied["proven"]):
            break
        pause.wait(0.05)
    prompt = [1, 4, 14, 5]
    alone = complete(Rank(of).decoder, [prompt], [SamplingParams(temperature=0.0)], end=-1, limit=8)
    choice = engine.complete(prompt=prompt, max_tokens=8, temperature=0.0)["choices"][0]
    assert (list(alone[0].tokens), version) == (choice["token_ids"], choice["weight_version"]["end"])
