"""A step from a trainer's GPU to the tokens of an engine on another, in real processes: `python bench/gpu_serve.py --json FILE`.

A trainer that publishes from its GPU, an agent, the reference engine on the next GPU and clients that stream completions from it all the
time; the store and the node's folder are local. What a request sees is measured by its client: a pause is the gap between two tokens
that a commit falls between, less the median gap of the same stream. Where there is one GPU only, or with `--ahead`, everything is
published before the engine starts, and each version is served when it is its turn: trainer and engine never share the device then.
`--device cpu --gb 0.01` tries all of it without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import torch
from bench.processes import Processes
from bench.serving import shapes
from bench.serving.figures import Answer, Window, first_token, loss, pauses, rate
from bench.serving.fleet import SETTLE_S, Fleet, flags
from bench.serving.report import table
from gpu import require_gpu

from syncline_agent.arm.periodic import SWEEP_REST
from syncline_agent.arm.turns import TURN_S

REST_S = 0.6
"""Between two versions, so that there are gaps that no commit falls into."""
STOP_S = 20.0
"""What the requests in flight get to end."""


class Served(Fleet):
    """What is measured of them."""

    def steps(self, name: str, rate: float, count: int) -> None:
        """Versions one after the other, while requests stream."""
        began = monotonic()
        found: list[dict[str, Any]] = []
        for _ in range(count):
            sleep(REST_S)
            found.append(self.step(rate))
            self.keep(**{name: {"window": [began, monotonic()], "steps": found}})
        share = sum(s["changed"] for s in found) / sum(s["units"] for s in found)
        self.say(f"{name}: {count} versions, {share:.3%} changed, {found[-1]['payload_bytes'] / 1e6:.1f} MB each")

    def memory(self, rate: float) -> None:
        """What the engine's device memory holds at most while it only generates, and while it takes a version as well."""
        self.engine("memory", reset=True)
        sleep(self.args.window)
        alone = self.engine("memory", reset=True)
        self.step(rate)
        self.keep(memory={"alone": alone, "following": self.engine("memory", reset=True)})

    def staging(self, rate: float, name: str = "staging", turn_s: float | None = None) -> None:
        """Versions that are staged many times over, and as long again without."""
        during: list[Window] = []
        beside: list[Window] = []
        for _ in range(self.args.turns):
            self.engine("stage_times", times=self.args.stagings, turn_s=turn_s)
            self.step(rate)
            began, ended, _ = self.engine("seen")["took"]["stage"][-1]
            self.engine("stage_times", times=1)
            during.append((began, ended))
            sleep(SETTLE_S)
            calm = monotonic()
            sleep(ended - began)
            beside.append((calm, calm + ended - began))
        self.keep(**{name: {"during": during, "beside": beside, "times": self.args.stagings}})
        self.say(f"{name}: {self.args.turns} turns of {during[-1][1] - during[-1][0]:.1f} s")

    def profile(self, rate: float, folder: Path) -> None:
        """Where Python's time goes, of a publish and of a stage."""
        self.engine("stage_times", times=1, profile=str(folder / "stage.profile"))
        self.step(rate, profile=str(folder / "publish.profile"))
        self.engine("stage_times", times=1)

    def sweeping(self) -> None:
        """Sweeps without a break, in alternation with none."""
        for name, rest in (("sweeping", SWEEP_REST), ("sweeping_without_rest", 0.0)):
            turns: list[list[float]] = []
            beside: list[Window] = []
            for _ in range(self.args.turns):
                turns.append(self.engine("sweep_for", seconds=self.args.window, rest=rest))
                calm = monotonic()
                sleep(turns[-1][1] - turns[-1][0])
                beside.append((calm, monotonic()))
            self.keep(**{name: {"during": [turn[:2] for turn in turns], "beside": beside, "sweeps": turns[-1][2]}})
        self.say("sweeping: done")

    def undo(self, rate: float) -> None:
        """Go back one version, and on again."""
        back: list[dict[str, Any]] = []
        for _ in range(self.args.turns):
            newest = self.step(rate)["version"]
            sleep(REST_S)
            told = self.target(newest - 1)
            self.served(newest - 1)
            back.append({"told": told, "version": newest - 1, "proven": monotonic()})
            sleep(REST_S)
            self.target(newest if self.ahead is not None else None)
            self.served(newest)
        self.keep(undo=back)
        self.say(f"undo: {len(back)} times")

    # --- ending

    def finish(self) -> list[Answer]:
        ended = self.streams("stop", within_s=STOP_S)
        raw = json.loads((self.root / "streams.json").read_text(encoding="utf-8"))
        self.keep(requests=ended, errors=raw["errors"][:5], seen=self.engine("seen"))
        self.keep(agent={"resident": self.agent.resident, "anonymous": self.agent.anonymous})
        return [Answer.of(one) for one in raw["requests"]]

    def reckon(self, answers: Sequence[Answer]) -> None:
        """Figures that need the clients' notes."""
        facts = self.facts
        for name in self.shares:
            own = facts[name]
            window: Window = tuple(own["window"])
            found = pauses(answers, window)
            first = [(first_token(answers, step["version"]), step) for step in own["steps"]]
            served = [moment - step["called"] for moment, step in first if moment is not None]
            calm = (window[0] - self.args.window, window[0])
            self.keep(**{name: own | {
                "pauses": None if found is None else asdict(found), "publish_to_serving": served,
                "tokens_a_second": rate(answers, window), "tokens_a_second_before": rate(answers, calm),
            }})  # fmt: skip
        for name in [name for name, own in facts.items() if isinstance(own, dict) and "beside" in own]:
            own = facts[name]
            self.keep(**{name: own | {"loss": loss(answers, during=own["during"], beside=own["beside"])}})
        told = [
            one | {"first": first_token(answers, one["version"], after=one["told"])} for one in facts.get("undo", [])
        ]
        self.keep(undo=told)

    @property
    def shares(self) -> list[str]:
        return [name for name in self.facts if name.startswith("share_")]

    def beside(self) -> None:
        """Other ways, on the engine's GPU, which is free now."""
        out = self.root / "beside.json"
        where = {"CUDA_VISIBLE_DEVICES": str(self.second)} if self.args.device != "cpu" else {}
        given = {"checkpoint": self.root / "node" / "checkpoint", "device": self.args.device, "out": out}
        ended = self.processes.run("bench.serving.beside", flags(given), timeout_s=self.args.patience, environ=where)
        if out.exists():
            self.keep(beside=json.loads(out.read_text(encoding="utf-8")))
        self.say(f"beside: {ended}")


def measure(fleet: Served, args: argparse.Namespace) -> None:
    rates = list(shapes.RATE_OF_SHARE.items())
    plan = [rate_ for _, rate_ in rates for _ in range(args.warm_up)]
    plan += [rate_ for _, rate_ in rates for _ in range(args.steps)]
    plan += [rates[-1][1]] * (1 + args.turns * (2 + len(args.turn_s)) + (args.profile is not None))
    fleet.start(plan if args.ahead else [])
    fleet.stream()
    try:
        phases(fleet, args, rates)
    finally:  # also of a run that is cut off
        fleet.reckon(fleet.finish())


def phases(fleet: Served, args: argparse.Namespace, rates: Sequence[tuple[float, float]]) -> None:
    for _, rate_ in rates:
        for _ in range(args.warm_up):
            fleet.step(rate_)  # what a first step compiles is no part of any figure
    fleet.say("warm")
    fleet.agent.reset()
    sleep(args.window)
    for share, rate_ in rates:
        fleet.steps(f"share_{share:g}", rate_, args.steps)
        sleep(args.window)
    usual = rates[-1][1]
    fleet.memory(usual)
    for turn_s in args.turn_s:
        fleet.staging(usual, f"staging_{turn_s:g}", turn_s)
    if args.profile:
        fleet.profile(usual, args.profile)
    fleet.undo(usual)
    fleet.staging(usual, turn_s=TURN_S)
    fleet.sweeping()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=16.0, help="of weights, at least")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--steps", type=int, default=12, help="versions of each share")
    parser.add_argument("--warm-up", type=int, default=2, help="versions of each share before")
    parser.add_argument("--turns", type=int, default=3, help="of each alternation")
    parser.add_argument("--stagings", type=int, default=10, help="of each version whose staging is weighed")
    parser.add_argument("--window", type=float, default=2.0, help="seconds of whatever is weighed against nothing")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=400, help="of each answer")
    parser.add_argument("--folder", type=Path, help="for store and node: about three times the weights")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds that any one thing may take")
    parser.add_argument(
        "--turn-s", type=float, nargs="*", default=[], help="other turns of the interpreter to stage in, too"
    )
    parser.add_argument("--profile", type=Path, help="folder for profiles of a publish and of a stage")
    parser.add_argument("--ahead", action="store_true", help="publish everything before the engine starts")
    parser.add_argument("--skip-beside", action="store_true", help="leave out the other ways")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("cut off"))
    if args.device != "cpu":
        require_gpu()
        args.ahead = args.ahead or torch.cuda.device_count() == 1
    where = "cpu" if args.device == "cpu" else f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    with TemporaryDirectory(prefix="syncline-serve-", dir=args.folder) as name:
        root = Path(name)
        (root / "logs").mkdir()
        print(f"{where}, {len(os.sched_getaffinity(0))} cores; store and node on {_kind_of(root)}", flush=True)
        processes = Processes(root / "logs")
        fleet = Served(root, processes, args)
        fleet.keep(machine=where, arguments={k: str(v) for k, v in vars(args).items()})
        try:
            with processes:
                measure(fleet, args)
            if not args.skip_beside:
                fleet.beside()
        finally:
            print(table(fleet.facts), flush=True)
            if args.json:
                for log in (root / "logs").iterdir():
                    shutil.copy(log, args.json.with_suffix(f".{log.stem}.log"))


def _kind_of(folder: Path) -> str:
    """The file system that a folder is on."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    return max((point, kind) for point, kind in mounts if str(folder.resolve()).startswith(point))[1]


if __name__ == "__main__":
    sys.exit(main())
