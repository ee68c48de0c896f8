"""A real vLLM follows a run in place on a GPU, CUDA graphs on: `python bench/gpu_vllm.py --json FILE`.

A case is a model, a publisher, an agent and a vLLM. Requests stream while versions come and go; afterwards the tokens of
every version, and how likely each was, are compared with those of a vLLM that was started on it. Everything that is said to
be equal was compared here.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench.gpu import require_gpu
from bench.vllm_run.case import PROMPTS, START_S, TOKENS, Case, Facts, begin, first, follow, nap
from bench.vllm_run.models import Model, Shape
from bench.vllm_run.node import Node
from bench.vllm_run.report import report
from bench.vllm_run.served import VllmProcess

SIZES = {
    "bf16": Shape(hidden=2048, inner=6144, layers=12, heads=16, kv_heads=8),
    "fp8": Shape(hidden=2048, inner=6144, layers=12, heads=16, kv_heads=8, fp8=True),
    "moe": Shape(hidden=1024, inner=512, layers=6, heads=8, kv_heads=4, experts=32),
    "moe-fp8": Shape(hidden=1024, inner=512, layers=6, heads=8, kv_heads=4, experts=32, fp8=True),
    "sleep": Shape(hidden=1024, inner=3072, layers=8, heads=8, kv_heads=4),
}
TINY = {
    name: Shape(256, 256, 2, 2, 1, vocab=512, experts=8 if shape.experts else 0, fp8=shape.fp8)
    for name, shape in SIZES.items()
}


class Bench:
    """What all cases share."""

    def __init__(self, folder: Path, told: argparse.Namespace) -> None:
        self._folder, self._told = folder, told
        self._device = "cuda:0" if torch.cuda.is_available() else "cpu"
        self._flags = ["--kv-bytes", str(told.kv_mib << 20)] + (["--eager"] if told.eager else [])
        self._flags += ["--more", told.more]
        self._environ = dict(pair.split("=", 1) for pair in told.env)

    def prepare(self, name: str, executor: Executor) -> Case:
        """The first version is published, and vLLM starts on the node's checkpoint."""
        shape = (TINY if self._told.tiny else SIZES)[name]
        node = Node(self._folder / name, Model(shape, self._device), executor)
        node.publish()
        node.start_agent()
        node.wait_checkpoint(120)
        flags = [*self._flags, *(["--sleeps"] if name == "sleep" else [])]
        log = self._folder / name / "vllm.log"
        engine = VllmProcess(node.node / "checkpoint", log, flags, self._environ, node.node / "arm.sock")
        return Case(name, node, engine, {"weights_bytes": node.model.nbytes})

    def warm_up(self, executor: Executor) -> None:
        """Compile what publishing runs, on a run that nobody follows."""
        node = Node(self._folder / "warm", Model(TINY["moe-fp8"], self._device), executor)
        for _ in range(2):
            node.model.step()
            node.publish()

    def fresh(self, case: Case, version: int) -> VllmProcess:
        """A vLLM without Syncline on what the trainer wrote."""
        log = self._folder / case.name / f"fresh-{version}.log"
        return VllmProcess(case.node.checkpoint(version), log, self._flags, self._environ, None)


def compare(bench: Bench, cases: dict[str, tuple[Case, dict[str, list[Facts]]]]) -> None:
    """Start a vLLM on each version that was drawn from, all at once, and see whether it draws the same."""
    started: list[tuple[Case, str, VllmProcess]] = []
    for case, drawn in cases.values():
        for version in drawn:
            if version.isdigit() and version != "2":
                started.append((case, version, bench.fresh(case, int(version))))
    right: dict[tuple[str, str], list[Facts]] = {}
    for case, version, fresh in started:
        try:
            case.facts.setdefault("fresh_start_seconds", []).append(fresh.wait_ready(START_S))
            right[case.name, version] = fresh.ask("draw", prompts=PROMPTS, tokens=TOKENS)["drawn"]
            case.facts.setdefault("fresh_loaded_seconds", []).extend(
                map(float, fresh.found(r"Loading weights took ([0-9.]+)"))
            )
        except (RuntimeError, TimeoutError) as error:
            case.facts.setdefault("fresh_failed", []).append(str(error))
        finally:
            fresh.close()
    for case, drawn in cases.values():
        equal = case.facts["equal_to_fresh"] = {}
        for version, found in drawn.items():
            wanted = right.get((case.name, version.split()[0]))
            if wanted is not None:
                equal[version] = {
                    part: [a[part] == b[part] for a, b in zip(found, wanted, strict=True)]
                    for part in ("tokens", "logprobs")
                }
        case.facts["versions_differ"] = len({json.dumps([a["tokens"] for a in found]) for found in drawn.values()})


def attempted(work: Callable[[Case], Any]) -> Callable[[Case], Any]:
    """What fails belongs to the facts of its case."""

    def attempt(case: Case) -> Any:
        try:
            return work(case)
        except Exception:
            case.facts["failed"] = traceback.format_exc()[-3000:]
            case.facts["log"] = case.engine.told()[-4000:]
            return None

    return attempt


def run(told: argparse.Namespace, folder: Path) -> Facts:
    bench = Bench(folder, told)
    cases: list[Case] = []
    done: dict[str, tuple[Case, dict[str, list[Facts]]]] = {}
    facts: Facts = {}
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        try:
            with ThreadPoolExecutor(len(told.cases)) as beside:
                cases += beside.map(lambda name: bench.prepare(name, pool), told.cases)
            facts |= {case.name: case.facts for case in cases}
            bench.warm_up(pool)
            followed = list(filter(attempted(begin), cases))
            with ThreadPoolExecutor(len(told.cases)) as beside:
                list(beside.map(attempted(first), followed))
            for case in followed:
                if "failed" not in case.facts:
                    drawn = attempted(nap if case.name == "sleep" else partial(follow, told=told))(case)
                    if drawn is not None:
                        done[case.name] = case, drawn
                case.engine.close()
                print(case.name, json.dumps(case.facts), flush=True)
            try:
                compare(bench, done)
            except Exception:
                facts["compare_failed"] = traceback.format_exc()[-3000:]
        finally:
            for case in cases:
                case.engine.close()
                case.node.close()
    return facts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=sorted(SIZES), default=["bf16", "fp8", "moe"])
    parser.add_argument("--compared", type=int, default=2, help="versions whose tokens are compared, at least 2")
    parser.add_argument("--more-commits", type=int, default=4, help="after those")
    parser.add_argument("--tiny", action="store_true", help="models of some megabytes, which need no GPU")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--kv-mib", type=int, default=2048, help="memory for keys and values; 0: as vLLM decides")
    parser.add_argument("--more", default="{}", metavar="JSON", help="more of vLLM's own arguments")
    parser.add_argument("--env", nargs="*", default=[], metavar="NAME=VALUE", help="for every vLLM")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path, help="keep logs in this folder")
    told = parser.parse_args(arguments)
    if not told.tiny:
        require_gpu()
    with tempfile.TemporaryDirectory() as scratch:
        facts = run(told, Path(scratch))
        if told.logs is not None:
            for log in Path(scratch).glob("*/*.log"):
                (told.logs / f"{log.parent.name}-{log.name}").write_bytes(log.read_bytes()[-200_000:])
    if told.json is not None:
        told.json.write_text(json.dumps(facts, indent=1) + "\n")
    print(report(facts))


if __name__ == "__main__":
    main()
