"""A real vLLM follows a run in place on GPUs, CUDA graphs on: `python bench/gpu_vllm.py --json FILE`.

A case is a model, a publisher, an agent, a vLLM that follows, and one that was started on each version that is compared.
First all cases go side by side through their versions, and the tokens of each, and how likely they were, are compared with
those of the vLLM that was started on it. For that, vLLM runs its model as it is written: otherwise it times compiled kernels
and takes the fastest, which differ between two starts, and their sums with them. Then, one case after the other and with
nothing else running, versions come and go while requests stream. Everything that is said to be equal was compared here.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch
from bench.gpu import require_gpu
from bench.vllm_run.case import Case, Facts, begin, compare, follow, loads, nap, visit
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
    "ranks": Shape(hidden=2048, inner=6144, layers=6, heads=16, kv_heads=8),
}
TINY = {
    name: Shape(256, 256, 2, 2, 2, vocab=512, experts=8 if shape.experts else 0, fp8=shape.fp8)
    for name, shape in SIZES.items()
}
OLDER_TOO = ("bf16",)
"""Cases of which every version is compared, and of others the newest: it takes a vLLM each."""
RANKS = {"ranks": 2}
"""Of the cases that have more than one: tensor-parallel ones, a GPU each."""
AS_WRITTEN: Facts = {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL"}}
BY_NCCL: Facts = {"disable_custom_all_reduce": True}
WITHOUT_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}


class Bench:
    """What all cases share."""

    def __init__(self, folder: Path, told: argparse.Namespace) -> None:
        self._folder, self._told = folder, told
        self._gpus = torch.cuda.device_count()
        self._device = "cuda:0" if self._gpus else "cpu"
        self._flags = ["--kv-bytes", str(told.kv_mib << 20), *(["--eager"] if told.eager else [])]
        self._environ = dict(pair.split("=", 1) for pair in told.env)

    def prepare(self, number: int, name: str, executor: Executor) -> Case:
        """vLLM starts on the node's checkpoint of the first version; the others are published, and compared with."""
        shape = (TINY if self._told.tiny else SIZES)[name]
        with ExitStack() as undo:
            node = Node(self._folder / name, Model(shape, self._device), executor)
            undo.callback(node.close)
            node.publish()
            node.target(1)
            node.start_agent()
            node.wait_checkpoint(120)
            log, socket = node.folder / "vllm.log", node.node / "arm.sock"
            engine = self._vllm(number, name, node.node / "checkpoint", log, socket)
            undo.callback(engine.close)
            compiled: list[VllmProcess] = []
            for one in range(2 if self._told.compiled_too and name == "bf16" else 0):
                log = node.folder / f"compiled-{one}.log"
                compiled.append(self._vllm(number, name, node.checkpoint(1), log, None, as_written=False))
                undo.callback(compiled[-1].close)
            fresh: dict[int, VllmProcess] = {}
            for version in range(2, self._told.compared + 2):
                node.model.step()
                node.publish()
                if version == self._told.compared + 1 or name in OLDER_TOO:
                    log = node.folder / f"fresh-{version}.log"
                    fresh[version] = self._vllm(number, name, node.checkpoint(version), log, None)
                    undo.callback(fresh[version].close)
            undo.pop_all()
        facts = {"weights_bytes": node.model.nbytes, "ranks": RANKS.get(name, 1)}
        return Case(name, node, engine, fresh, compiled, facts)

    def _vllm(
        self, number: int, name: str, folder: Path, log: Path, socket: Path | None, *, as_written: bool = True
    ) -> VllmProcess:
        ranks = RANKS.get(name, 1)
        environ = dict(self._environ)
        more = (AS_WRITTEN if as_written else {}) | json.loads(self._told.more)
        if ranks > 1:
            more |= BY_NCCL | {"tensor_parallel_size": ranks}
            environ |= WITHOUT_MULTICAST
        elif self._gpus > 1:
            environ["CUDA_VISIBLE_DEVICES"] = str(number % self._gpus)
        flags = [*self._flags, *(["--sleeps"] if name == "sleep" else []), "--more", json.dumps(more)]
        return VllmProcess(folder, log, flags, environ, socket)


def attempted(case: Case, work: Callable[[Case], bool]) -> bool:
    """Whether the case is good for more. What fails belongs to its facts."""
    try:
        more = work(case)
        case.facts["reloads"] = loads(case)
    except Exception:
        case.facts["failed"] = traceback.format_exc()[-3000:]
        case.facts["log"] = case.engine.told()[-4000:]
        return False
    return more


def beside_a_fresh_one(case: Case, newest: int) -> bool:
    if not begin(case):
        return False
    compare(case, nap(case) if case.name == "sleep" else visit(case, newest))
    return case.name != "sleep"


def alone(case: Case, commits: int) -> bool:
    follow(case, commits)
    return False


def run(told: argparse.Namespace, folder: Path, facts: Facts, ending: ExitStack) -> None:
    """`facts` grow with what is done; what was started ends with `ending`."""
    bench = Bench(folder, told)
    pool = ending.enter_context(ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))))
    beside = ending.enter_context(ThreadPoolExecutor(len(told.cases)))

    def one(number: int, name: str) -> Case | None:
        try:
            case = bench.prepare(number, name, pool)
        except Exception:
            facts[f"{name} was not prepared"] = traceback.format_exc()[-3000:]
            return None
        ending.callback(case.close)
        facts[name] = case.facts
        if attempted(case, lambda case: beside_a_fresh_one(case, told.compared + 1)) and told.commits:
            return case
        case.engine.close()
        return None

    for case in list(beside.map(one, *zip(*enumerate(told.cases), strict=True))):
        if case is not None:
            attempted(case, lambda case: alone(case, told.commits))
            case.engine.close()


def cut_off(number: int, frame: object) -> None:
    raise SystemExit(f"ended by signal {number}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=sorted(SIZES), default=["bf16", "fp8", "moe"])
    parser.add_argument("--compared", type=int, default=2, help="versions that are gone through, at least 2")
    parser.add_argument("--commits", type=int, default=4, help="more of them, under streams; 0: none, no undo either")
    parser.add_argument(
        "--compiled-too",
        action="store_true",
        help="of bf16, two that compile their model by default: do they draw alike?",
    )
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
        most = max(RANKS.get(name, 1) for name in told.cases)
        if most > torch.cuda.device_count():
            raise SystemExit(f"a case has {most} ranks, a GPU each; here are {torch.cuda.device_count()}")
    signal.signal(signal.SIGTERM, cut_off)
    facts: Facts = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as ending:
        try:
            run(told, Path(scratch), facts, ending)
        finally:  # also of a run that is cut off, and before what it started is waited for
            if told.logs is not None:
                for log in Path(scratch).glob("*/*.log"):
                    (told.logs / f"{log.parent.name}-{log.name}").write_bytes(log.read_bytes()[-200_000:])
            if told.json is not None:
                told.json.write_text(json.dumps(facts, indent=1) + "\n")
            print(report(facts), flush=True)


if __name__ == "__main__":
    main()
