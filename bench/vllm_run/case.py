"""One case of the benchmark: a model, its node and a vLLM that follows; what is done with it, and what came of that.

Everything that is said to be equal was compared here or by `compare`. A pause is a stream's longest gap between two tokens
around a commit, less its median gap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    fresh: Mapping[int, VllmProcess]
    """Of each version that is compared, a vLLM without Syncline on what the trainer wrote."""
    compiled: Sequence[VllmProcess]
    """Two on one version whose kernels vLLM chose by their times, as it does by default; or none."""
    facts: Facts

    def close(self) -> None:
        for engine in (self.engine, *self.fresh.values(), *self.compiled):
            engine.close()
        self.node.close()


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


def loads(case: Case) -> int:
    """How often weights were loaded after the start: of what is followed in place, never."""
    found = case.engine.found(r"(Loading weights took|Reloading weights)")
    return len(found) - len(case.facts["loaded_seconds"])


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


def change(case: Case, serve: Callable[[], int]) -> Facts:
    """A change of version, and how it came about."""
    began = monotonic()
    version = serve()
    status = case.node.wait_serving(version, FIRST_S)
    last = status["last_sync"]
    return {
        "version": version,
        "apply_path": status["apply_path"],
        "changed": last["changed"],
        "payload_bytes": last["bytes"],
        "seconds": monotonic() - began,
        "stage_seconds": last["seconds"].get("stage", last["seconds"].get("Stage")),
        "gate_pause_seconds": last["pause_seconds"],
    }


def commit(case: Case, serve: Callable[[], int]) -> Facts:
    """A change of version under streams: how it came about, and what streams saw of it."""
    case.engine.ask("memory")
    raw: Facts = {}
    with streams(case, raw):
        told = change(case, serve)
        seen = monotonic()
    memory = case.engine.ask("memory")["memory"]
    told |= {
        "pauses": pauses(raw["times"], seen),
        "extra_bytes": max(rank["most"] - rank["now"] for rank in memory),
        "digest_equal": case.node.verify()["digest"] == case.node.digests[told["version"]],
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


def at_rest(case: Case, version: int) -> Facts:
    """A change to a version that is there already, without streams."""

    def pin() -> int:
        case.node.target(version)
        return version

    told = change(case, pin)
    told["digest_equal"] = case.node.verify()["digest"] == case.node.digests[version]
    case.facts.setdefault("changes", []).append(told)
    print(case.name, json.dumps(told), flush=True)
    return told


def visit(case: Case, newest: int) -> dict[str, list[Facts]]:
    """Every version up to the newest, and back by one. Returns what was drawn of each, and after going back."""
    drawn: dict[str, list[Facts]] = {}
    for version in range(2, newest + 1):
        at_rest(case, version)
        drawn[str(version)] = draw(case)
    at_rest(case, newest - 1)
    drawn[f"{newest - 1} again"] = draw(case)
    return drawn


def follow(case: Case, commits: int) -> None:
    """Deltas and an undo under streams, while nothing else runs."""
    node, done = case.node, case.facts.setdefault("commits", [])
    newest = max(node.digests)

    def step() -> int:
        node.model.step()
        version, seconds = node.publish()
        case.facts.setdefault("publish_seconds", []).append(seconds)
        return version

    def pin(version: int) -> Callable[[], int]:
        def serve() -> int:
            node.target(version)
            return version

        return serve

    done += [commit(case, pin(newest)), commit(case, pin(newest - 1)), commit(case, pin(newest))]
    node.target()
    for _ in range(commits):
        done.append(commit(case, step))
        node.forget(done[-1]["version"])


def nap(case: Case) -> dict[str, list[Facts]]:
    """Sleep with the weights kept, while a version comes; sleep with them thrown away."""
    node, engine, facts = case.node, case.engine, case.facts
    at_rest(case, 2)
    drawn = {"2": draw(case)}
    engine.ask("sleep", level=1)
    node.target(3)
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
    began = monotonic()
    facts["served_without_weights"] = [answer["finish"] for answer in draw(case)]
    node.wait(lambda: _healing(node, 3), "the version again", FIRST_S)
    facts["healed_seconds"] = monotonic() - began
    facts["healing"] = _healing(node, 3)
    node.wait_serving(3)
    facts["healed_digest_equal"] = node.verify()["digest"] == node.digests[3]
    drawn["3 again"] = draw(case)
    return drawn


def _healing(node: Node, version: int) -> list[tuple[str, int]]:
    """What the agent did since bits were in doubt, step by step; nothing before a version is served again."""
    _, doubt, told = node.said().rpartition("found bits in doubt")
    steps = [(step, int(number)) for step, number in re.findall(r"(healed|committed) .*version=(\d+)$", told, re.M)]
    return steps if doubt and any(number == version for _, number in steps) else []


def drawn_by(case: Case, fresh: VllmProcess) -> list[Facts]:
    """What a vLLM draws that was started for it."""
    case.facts.setdefault("fresh_start_seconds", []).append(fresh.wait_ready(START_S))
    drawn = fresh.ask("draw", prompts=PROMPTS, tokens=TOKENS)["drawn"]
    loaded = fresh.found(r"Loading weights took ([0-9.]+)")
    case.facts.setdefault("fresh_loaded_seconds", []).extend(map(float, loaded))
    fresh.close()
    return drawn


def alike(drawn: Sequence[Facts], other: Sequence[Facts]) -> dict[str, list[bool]]:
    """Of each prompt, whether its tokens are the same, and how likely they were, bit for bit."""
    return {part: [a[part] == b[part] for a, b in zip(drawn, other, strict=True)] for part in ("tokens", "logprobs")}


def compare(case: Case, drawn: Mapping[str, list[Facts]]) -> None:
    """Whether the vLLM that was started on a version draws what the one that followed drew of it."""
    equal = case.facts["equal_to_fresh"] = {}
    for version, fresh in case.fresh.items():
        right = drawn_by(case, fresh)
        equal |= {name: alike(found, right) for name, found in drawn.items() if name.split()[0] == str(version)}
    if case.compiled:
        one, other = (drawn_by(case, fresh) for fresh in case.compiled)
        case.facts["compiled_alike"] = alike(one, other)
    for name, found in drawn.items():
        if name.endswith("again"):
            case.facts["again_as_before"] = found == drawn[name.split()[0]]
    case.facts["versions_differ"] = len({json.dumps([a["tokens"] for a in found]) for found in drawn.values()})
