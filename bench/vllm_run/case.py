"""One case of the benchmark: a model, its node and a vLLM that follows; what is done with it, and what came of that.

Everything that is said to be equal was compared here or by `compare`. A pause is a stream's longest gap between two tokens
around a commit, less its median gap.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import monotonic, sleep
from typing import Any

from bench.vllm_run.node import Node, Status
from bench.vllm_run.served import VllmProcess

STREAMS = 8
BEFORE_S, AFTER_S = 1.0, 0.3
"""Around the moment at which a commit was seen."""
PROMPTS = [[5, 6, 7], [400, 3, 9, 77, 41], list(range(100, 240))]
"""The last one fills blocks of the prefix cache."""
TOKENS = 32
START_S, FIRST_S = 240.0, 150.0
Facts = dict[str, Any]


@dataclass(slots=True)
class Case:
    """One model and all that is around it."""

    name: str
    node: Node
    engine: VllmProcess
    facts: Facts


def begin(case: Case) -> bool:
    """Wait until vLLM serves; whether it is followed in place."""
    facts, engine, node = case.facts, case.engine, case.node
    facts["start_seconds"] = engine.wait_ready(START_S)
    facts["probed_seconds"] = [float(s) for s in engine.found(r"layout probed.*seconds=([0-9.]+)")]
    facts["loaded_seconds"] = [float(s) for s in engine.found(r"Loading weights took ([0-9.]+)")]
    facts["graphs"] = engine.found(r"(Graph capturing finished[^\n]*)")
    facts["kernels"] = sorted(
        set(engine.found(r"(?:Selected|Using) ([^\n]*(?:Kernel|MoE backend|attention backend)[^\n]*)"))
    )
    refused = engine.found(r"((?:layout refused|the rank could not be armed|Syncline is off)[^\n]*)")
    if refused:
        facts["refused"] = refused
        return False
    facts["in_place_at_start"] = node.wait_serving(1)["applied"]
    return True


def draw(case: Case) -> list[Facts]:
    return case.engine.ask("draw", prompts=PROMPTS, tokens=TOKENS)["drawn"]


@contextmanager
def streams(case: Case, into: Facts) -> Iterator[None]:
    """Requests one after the other until the block ends."""
    case.engine.ask("stream", streams=STREAMS)
    sleep(1.0)
    yield
    sleep(AFTER_S + 0.2)
    told = case.engine.ask("times")
    into["times"] = told["times"]
    for finish, count in told["ended"].items():
        ended = case.facts.setdefault("streams_ended", {})
        ended[finish] = ended.get(finish, 0) + count


def commit(case: Case, serve: Callable[[], int]) -> Facts:
    """A change of version under streams: how it came about, and what streams saw of it."""
    case.engine.ask("memory")
    raw: Facts = {}
    with streams(case, raw):
        began = monotonic()
        version = serve()
        status = case.node.wait_serving(version)
        seen = monotonic()
    (memory,) = case.engine.ask("memory")["memory"]
    last = status["last_sync"]
    told = {
        "version": version,
        "apply_path": status["apply_path"],
        "changed": last["changed"],
        "payload_bytes": last["bytes"],
        "seconds": seen - began,
        "stage_seconds": last["seconds"].get("stage", last["seconds"].get("Stage")),
        "gate_pause_seconds": last["pause_seconds"],
        "pauses": pauses(raw["times"], seen),
        "extra_bytes": memory["most"] - memory["now"],
        "digest_equal": case.node.verify()["digest"] == case.node.digests[version],
    }
    print(case.name, json.dumps(told), flush=True)  # a run that is cut off has said this much
    return told


def pauses(times: Sequence[Sequence[Sequence[float]]], seen: float) -> list[float]:
    """Of each stream: its longest gap between two tokens of a request around the commit, less its median gap."""
    found: list[float] = []
    for of_stream in times:
        gaps = [(low, high - low) for of_request in of_stream for low, high in pairwise(of_request)]
        around = [gap for low, gap in gaps if seen - BEFORE_S < low < seen + AFTER_S]
        if around:
            found.append(max(around) - median(gap for _, gap in gaps))
    return found


def first(case: Case) -> None:
    """The first delta, alone: what a commit needs is compiled, and the codec's kernels for these tensors as it is staged."""
    case.node.model.step()
    version, seconds = case.node.publish()
    last = case.node.wait_serving(version, FIRST_S)["last_sync"]
    case.facts["first"] = {
        "publish_seconds": seconds,
        "stage_seconds": last["seconds"]["stage"],
        "gate_pause_seconds": last["pause_seconds"],
    }


def follow(case: Case, told: argparse.Namespace) -> dict[str, list[Facts]]:
    """Deltas, an undo and more deltas under streams. Returns what was drawn of each version, and after the undo."""
    node, drawn = case.node, {"2": draw(case)}

    def step() -> int:
        node.model.step()
        version, seconds = node.publish()
        case.facts.setdefault("publish_seconds", []).append(seconds)
        return version

    def back(version: int) -> Callable[[], int]:
        def pin() -> int:
            node.target(version)
            return version

        return pin

    done = case.facts.setdefault("commits", [])
    newest = told.compared + 2
    for version in range(3, newest + 1):
        done.append(commit(case, step))
        drawn[str(version)] = draw(case)
    done.append(commit(case, back(newest - 1)))
    drawn[f"{newest - 1} again"] = draw(case)
    case.facts["again_as_before"] = drawn[f"{newest - 1} again"] == drawn[str(newest - 1)]
    done.append(commit(case, back(newest)))
    node.target()
    for _ in range(told.more_commits):
        done.append(commit(case, step))
        node.forget(done[-1]["version"])
    case.facts["reloads"] = len(case.engine.found(r"(Loading weights took|Reloading weights)")) - 1
    return drawn


def nap(case: Case) -> dict[str, list[Facts]]:
    """Sleep with the weights kept, while a version comes; sleep with them thrown away."""
    node, engine, facts = case.node, case.engine, case.facts
    drawn = {"2": draw(case)}
    engine.ask("sleep", level=1)
    node.model.step()
    node.publish()
    sleep(2.0)
    asleep: Status = node.status() or {}
    facts["asleep"] = {name: asleep.get(name) for name in ("applied", "lag_versions", "error", "in_service")}
    began = monotonic()
    engine.ask("wake", tags=None)
    facts["wake_seconds"] = monotonic() - began
    facts["woken_path"] = node.wait_serving(3)["apply_path"]
    drawn["3"] = draw(case)
    facts["woken_digest_equal"] = node.verify()["digest"] == node.digests[3]
    engine.ask("sleep", level=2)
    engine.ask("wake", tags=["weights"])
    engine.ask("wake", tags=["kv_cache"])
    facts["served_without_weights"] = [answer["finish"] for answer in draw(case)]
    began = monotonic()
    node.wait(lambda: (node.status() or {}).get("apply_path") == "checkpoint", "a checkpoint in the engine", 60)
    node.wait_serving(3)
    facts["healed_seconds"] = monotonic() - began
    facts["healed_digest_equal"] = node.verify()["digest"] == node.digests[3]
    drawn["3 again"] = draw(case)
    facts["again_as_before"] = drawn["3 again"] == drawn["3"]
    facts["reloads"] = len(engine.found(r"(Loading weights took|Reloading weights)")) - 1
    return drawn
