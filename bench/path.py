"""From a checkpoint renamed into place to proven weights in an engine: three real processes, a local store, looked at
from outside.

Time and memory of the steady state: the first two versions (anchor, warm-up) are not counted, skip deltas and the
advance of the node's checkpoint are, in memory, and happen between two measured steps. Targets: an agent holds 300 MB
and the delta, a distributor no more than the largest shard, and publish to serving takes one second more than the work
itself, which is what encoding, staging and committing took in the same step.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from bench.model import BenchModel
from bench.processes import Processes, answer, free_port, sums
from bench.results import save, variant

RUN = "bench"
WARM_UP = 2
"""The anchor, and the delta that compiles."""
ASIDE_EVERY = 4
"""Versions between skip deltas, and between advances of the node's checkpoint: each comes at least once."""
AGENT_BYTES = 300e6
OVERHEAD_S = 1.0
TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Step:
    """One version's way, in seconds."""

    version: int
    found_s: float
    """From the rename until the distributor began; the pace of its polls decides."""
    publish: dict[str, float]
    """By phase, as the distributor tells; `head` and `base` come after the version can be read."""
    stored_s: float
    """From the rename until the manifest was in the store, seen from outside."""
    noticed_s: float
    """From then until the agent began: the distributor tells it, or it polls."""
    follow: dict[str, float]
    """By phase, as the agent tells."""
    served_s: float
    """From the rename until `/status` said applied and proven, seen from outside."""
    pause_s: float
    payload_bytes: int
    changed: int

    @property
    def publish_to_serving_s(self) -> float:
        return self.served_s - self.found_s

    @property
    def work_s(self) -> float:
        return self.publish["encode"] + self.follow["stage"] + self.follow["commit"]


class Fleet:
    """A distributor, an agent and an engine on one run."""

    def __init__(self, root: Path, processes: Processes, model: BenchModel, *, doorbell: bool) -> None:
        self.model = model
        self._root = root
        self._processes = processes
        self._source = root / "source"
        self._source.mkdir()
        self.distributor_port, self.agent_port = free_port(), free_port()
        target = {"run": RUN, "view": "main", "policy": "keep", "version": {"mode": "Latest"}, "generation": 1}
        (root / "target.json").write_text(json.dumps({**target, "suspend": False}), encoding="utf-8")
        store, node = str(root / "store"), root / "node"
        distributor = {
            "store": store, "run": RUN, "source": str(self._source), "state-dir": str(root / "state"),
            "port": str(self.distributor_port), "complete": "rename", "skip-every": str(ASIDE_EVERY),
        }  # fmt: skip
        agent = {
            "store": store, "target": str(root / "target.json"), "node-dir": str(node),
            "port": str(self.agent_port), "advance-every": str(ASIDE_EVERY),
        }  # fmt: skip
        if doorbell:
            agent["distributor"] = f"http://127.0.0.1:{self.distributor_port}"
        engine = {
            "checkpoint": str(node / "checkpoint"), "socket": str(node / "arm.sock"), "port": "0",
            "slots": "1", "max-len": "256",
        }  # fmt: skip
        self.distributor = processes.start("syncline_distributor", ["watch", *_flags(distributor)])
        self.agent = processes.start("syncline_agent", _flags(agent))
        self.engine = processes.start("syncline_agent.reference", _flags(engine))

    def step(self, version: int) -> Step:
        """Write the next checkpoint, rename it into place and watch it arrive; returns when all is quiet again."""
        name, draft = f"checkpoint-{version}", self._source / ".draft"
        before = self._source / f"checkpoint-{version - 1}"
        self.model.write(draft, step=version, previous=before if version > 1 else None)
        shutil.rmtree(before, ignore_errors=True)
        spent = sums(self.distributor_port, "syncline_publish_seconds", "phase") if version > 1 else {}
        manifest = self._root / "store" / RUN / "main" / "versions" / f"{version:012d}.json"
        start = monotonic()
        draft.rename(self._source / name)
        self._processes.wait(manifest.exists, what=f"version {version}", timeout_s=TIMEOUT_S, every_s=0.002)
        stored = monotonic() - start
        status = self._processes.wait(lambda: self._serving(version), what=f"serving {version}", timeout_s=TIMEOUT_S)
        served = monotonic() - start
        self._quiet(version, name)
        phases = sums(self.distributor_port, "syncline_publish_seconds", "phase")
        publish = {phase: seconds - spent.get(phase, 0.0) for phase, seconds in phases.items()}
        last: dict[str, Any] = status["last_sync"] or {"seconds": {}, "total_seconds": 0.0, "pause_seconds": 0.0}
        statistics = json.loads(manifest.read_bytes())["statistics"]
        return Step(
            version=version,
            found_s=stored - sum(publish.get(phase, 0.0) for phase in ("encode", "upload", "commit")),
            publish=publish,
            stored_s=stored,
            noticed_s=served - stored - last["total_seconds"],
            follow=last["seconds"],
            served_s=served,
            pause_s=last["pause_seconds"],
            payload_bytes=statistics["payload_bytes"],
            changed=statistics["changed_units"],
        )

    def _serving(self, version: int) -> Any:
        status = answer(self.agent_port)
        applied = status["applied"] if status else None
        arrived = applied and applied["proven"] and applied["version"] == version
        return status if arrived and (version == 1 or status["last_sync"]) else None

    def _quiet(self, version: int, name: str) -> None:
        """The base has followed, and what is due beside the path is done."""

        def published() -> bool:
            status = answer(self.distributor_port)
            source, chain = status["source"], status["chain"] or {}
            anchor = chain.get("anchor")
            due = anchor is not None and version - max(anchor, chain.get("skip") or 0) >= ASIDE_EVERY
            return source["phase"] == "idle" and source["published"] == name and anchor is not None and not due

        def advanced() -> bool:
            boot = answer(self.agent_port)["boot"]
            return boot is not None and version - boot < ASIDE_EVERY

        self._processes.wait(published, what="a quiet distributor", timeout_s=TIMEOUT_S, every_s=0.2)
        self._processes.wait(advanced, what="an advanced node checkpoint", timeout_s=TIMEOUT_S, every_s=0.2)


def _flags(values: dict[str, str]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", value)]


def main(arguments: Sequence[str] = ()) -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(prog="python -m bench path", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=6, help="measured ones")
    parser.add_argument("--shard-megabytes", type=float, default=500.0, help="files of the trainer's checkpoint")
    parser.add_argument("--polling", action="store_true", help="the agent cannot reach the distributor and polls")
    parser.add_argument("--folder", type=Path, help="where to work; about eight times the model's size")
    given = parser.parse_args(arguments)
    model = BenchModel(given.gigabytes, shard_bytes=int(given.shard_megabytes * 1e6))
    with TemporaryDirectory(prefix="syncline-path-", dir=given.folder) as name:
        root = Path(name)
        (root / "logs").mkdir()
        with Processes(root / "logs") as processes:
            fleet = Fleet(root, processes, model, doorbell=not given.polling)
            for version in range(1, WARM_UP + 1):
                fleet.step(version)
            memories = {"agent": fleet.agent, "distributor": fleet.distributor, "engine": fleet.engine}
            for memory in memories.values():
                memory.reset()
            steps = [fleet.step(WARM_UP + n) for n in range(1, given.steps + 1)]
            peaks = {name: (memory.resident, memory.anonymous) for name, memory in memories.items()}
            for memory in memories.values():
                memory.stop()
    save(
        "path",
        _table(model, steps, peaks),
        {"steps": [asdict(s) for s in steps], "peak_bytes": peaks},
        unlike=variant(parser, given, beside=["folder"]),
    )


def _table(model: BenchModel, steps: list[Step], peaks: dict[str, tuple[int, int]]) -> str:
    changed = sum(s.changed for s in steps) / len(steps) / (model.size_bytes / 2)
    payload = max(s.payload_bytes for s in steps)
    lines = [
        f"{model.size_bytes / 1e9:.2f} GB of BF16 in shards of at most {model.largest_shard_bytes / 1e6:.0f} MB, "
        f"{changed:.2%} changed a step, {payload / 1e6:.1f} MB a delta, {len(steps)} steps",
        "",
        f"{'seconds':44}{'median':>9}{'least':>9}{'most':>9}  target",
    ]

    def row(name: str, values: list[float], target: str = "") -> None:
        lines.append(f"{name:44}{median(values):9.3f}{min(values):9.3f}{max(values):9.3f}  {target}")

    row("renamed -> found (poll)", [s.found_s for s in steps])
    for phase in ("encode", "upload", "commit"):
        row(f"publish: {phase}", [s.publish[phase] for s in steps])
    row("renamed -> version in the store", [s.stored_s for s in steps])
    row("version in the store -> noticed", [s.noticed_s for s in steps])
    for phase in ("plan", "fetch", "stage", "commit"):
        row(f"follow: {phase}", [s.follow[phase] for s in steps])
    row("renamed -> applied and proven", [s.served_s for s in steps])
    over = [s.publish_to_serving_s - s.work_s for s in steps]
    row("publish -> serving", [s.publish_to_serving_s for s in steps])
    row("  of it work (encode, stage, commit)", [s.work_s for s in steps])
    row("  of it everything else", over, _verdict(median(over), OVERHEAD_S, f"{OVERHEAD_S:g} s"))
    row("afterwards: head, base on disk", [s.publish["head"] + s.publish["base"] for s in steps])
    row("engine's pause", [s.pause_s for s in steps])
    lines += ["", f"{'peak MB':44}{'resident':>9}{'no maps':>9}{'':9}  target (resident)"]
    bounds = {
        "agent": (AGENT_BYTES + payload, "300 MB + the delta"),
        "distributor": (model.largest_shard_bytes, "the largest shard"),
        "engine": (None, f"its weights are {model.size_bytes / 1e6:.0f} MB"),
    }
    for name, (resident, anonymous) in peaks.items():
        bound, words = bounds[name]
        target = words if bound is None else _verdict(resident, bound, f"{bound / 1e6:.0f} MB, {words}")
        lines.append(f"{name:44}{resident / 1e6:9.0f}{anonymous / 1e6:9.0f}{'':9}  {target}")
    return "\n".join(lines)


def _verdict(found: float, bound: float, words: str) -> str:
    return f"<= {words}: {'met' if found <= bound else 'MISSED'}"
