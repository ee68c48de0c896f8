"""`syncline demo`: a real asynchronous RL loop on this machine, and the proof that every engine holds the trainer's bits.

One trainer learns by GRPO in its own process; two engines generate every rollout; weights travel only through store, distributor
and agents. It fails (exit code 9) when a digest differs or the reward did not rise, and when a log-probability differs by more than 0.05.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from syncline.chain import ChainReader
from syncline.checkpoint import materialize
from syncline.clock import SystemClock
from syncline.errors import LinkMissing
from syncline.store.open import open_store
from syncline_cli.context import head_or_none
from syncline_cli.demo import display, fleet
from syncline_cli.demo.processes import Processes
from syncline_cli.output import EXIT_DIFFERENT, Output

START_TIMEOUT_S = 120.0
CATCH_UP_TIMEOUT_S = 60.0


def demo(
    store: Annotated[
        str, typer.Option("--store", help="local: a folder; s3: a SeaweedFS that the demo starts.")
    ] = "local",
    steps: Annotated[int, typer.Option("--steps", help="Optimizer steps.")] = 24,
    seed: Annotated[int, typer.Option("--seed", help="Of the trainer and the sampling.")] = 1,
    start: Annotated[
        Path | None, typer.Option("--start", help="Checkpoint to train from; default: the one that ships.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Keep everything here; default: a temporary folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document at the end.")] = False,
) -> None:
    """Run a small RL training with two engines through Syncline, and prove the result."""
    output = Output(as_json=as_json)
    home = Path(tempfile.mkdtemp(prefix="syncline-demo-")) if folder is None else folder
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise typer.BadParameter(f"{folder} is not empty", param_hint="--dir")
    good = False
    try:
        with fleet.store_of(store, home) as (url, environment):
            os.environ.update(environment)
            with Processes(home / "logs") as processes:
                good = _run(output, processes, home, url, environment, steps=steps, seed=seed, start=start)
    finally:
        if folder is None and good:
            shutil.rmtree(home, ignore_errors=True)
        elif not good:
            output.note(f"logs and stores are kept in {home}")
    if not good:
        raise typer.Exit(EXIT_DIFFERENT)


def _run(
    output: Output,
    processes: Processes,
    home: Path,
    url: str,
    environment: dict[str, str],
    *,
    steps: int,
    seed: int,
    start: Path | None,
) -> bool:
    clock = SystemClock()
    began = clock.monotonic()
    output.line(f"store {url}; starting distributor, 2 agents, 2 engines, trainer")
    running = fleet.start(processes, home, url, environment)
    events = home / "events.jsonl"
    events.touch()
    processes.start(
        "trainer",
        "syncline_cli.demo.training",
        [
            *("--source", str(running.source), "--events", str(events), "--store", url, "--run", fleet.RUN),
            *("--engines", *(n.engine for n in running.nodes), "--steps", str(steps), "--seed", str(seed)),
            *(() if start is None else ("--start", str(start))),
        ],
        environment=environment,
    )
    follower = _Follower(output, running, ChainReader(open_store(url), fleet.RUN))
    with events.open(encoding="utf-8") as lines:
        deadline = clock.monotonic() + START_TIMEOUT_S
        while follower.end is None:
            processes.check()
            moved = False
            while text := lines.readline():
                follower.take(json.loads(text))
                moved = True
            follower.look()
            if moved:
                deadline = clock.monotonic() + START_TIMEOUT_S
            elif clock.monotonic() > deadline:
                raise LinkMissing(f"nothing happened for {START_TIMEOUT_S:.0f} s; see the logs in {home / 'logs'}")
            clock.sleep(0.05)
    end = follower.end
    fleet.await_version(running, processes, end["version"], timeout_s=CATCH_UP_TIMEOUT_S, clock=clock)
    follower.look()
    follower.flush()
    return _conclude(output, running, home, follower, end, clock.monotonic() - began)


class _Follower:
    """Joins the trainer's events, the manifests in the store and the agents' `/status` to one row a step."""

    def __init__(self, output: Output, running: fleet.Fleet, reader: ChainReader) -> None:
        self.rows: list[display.Row] = []
        self.end: dict[str, Any] | None = None
        self._output = output
        self._fleet = running
        self._reader = reader
        self._seen = 0
        self._served: dict[int, dict[str, float]] = {}
        self._pauses: dict[int, float] = {}
        self._clock = SystemClock()
        self._shown = 0

    def take(self, event: dict[str, Any]) -> None:
        if event["event"] == "start":
            self._output.line(f"{event['elements']:,} BF16 elements\n{display.HEADER}")
        elif event["event"] == "step":
            names = ("step", "reward", "changed_share", "difference", "lag", "mixed", "written")
            self.rows.append(display.Row(**{k: event[k] for k in names}))
        else:
            self.end = event

    def look(self) -> None:
        """Ask the store what was published and the agents what they serve."""
        head = head_or_none(self._reader)
        for version in range(self._seen + 1, (head.version if head else 0) + 1):
            manifest = self._reader.manifest(version)
            for row in self.rows:
                if row.step == manifest.step:
                    row.version, row.statistics = version, manifest.statistics
            if manifest.step is not None and manifest.step > 0 and not any(r.step == manifest.step for r in self.rows):
                break  # the trainer's event is still on its way
            self._seen = version
        for node in self._fleet.nodes:
            status = self._fleet.status(node)
            if status is None or status["applied"] is None:
                continue
            last = status["last_sync"]
            if last is not None:
                self._pauses[last["version"]] = max(self._pauses.get(last["version"], 0.0), last["pause_seconds"])
            for version in range(1, status["applied"]["version"] + 1):
                self._served.setdefault(version, {}).setdefault(node.name, self._clock.now())
        for row in self.rows:
            served = self._served.get(row.version or 0, {})
            if row.sync_seconds is None and len(served) == len(self._fleet.nodes):
                row.sync_seconds = max(served.values()) - row.written
            row.pause_seconds = self._pauses.get(row.version or 0, row.pause_seconds)
        while self._shown < len(self.rows) and self.rows[self._shown].sync_seconds is not None:
            self._show_next()

    def flush(self) -> None:
        """Show what is left."""
        while self._shown < len(self.rows):
            self._show_next()

    def _show_next(self) -> None:
        self._output.line(display.line(self.rows[self._shown]))
        self._shown += 1


def _conclude(
    output: Output, running: fleet.Fleet, home: Path, follower: _Follower, end: dict[str, Any], seconds: float
) -> bool:
    reader = ChainReader(open_store(running.store), fleet.RUN)
    manifest = reader.manifest(end["version"])
    digests = {"trainer's tensors": end["digest"], f"manifest of version {manifest.version}": manifest.digest}
    for node in running.nodes:
        digests[f"live memory of {node.name}'s engine"] = running.verify(node)["digest"]
    with ThreadPoolExecutor() as pool:
        rebuilt = materialize(reader, manifest.version, home / "rebuilt", executor=pool)
        digests["checkpoint rebuilt from the store"] = rebuilt.digest(executor=pool).hex
    first, last = display.fifths(follower.rows)
    same, rose = len(set(digests.values())) == 1, last > first
    facts = [*display.summary(follower.rows), ("wall time", f"{seconds:.0f} s")]
    output.table(["what", "measured"], [list(f) for f in facts], title="Summary")
    display.show_proof(output, digests)
    output.result({"proven": same, "reward_rose": rose, "digests": digests, "summary": dict(facts)})
    output.line(
        "PROVEN: every copy holds the trainer's bits" if same else "DIFFERENT: a copy does not hold the trainer's bits"
    )
    if not rose:
        output.line(f"FAILED: the mean reward did not rise ({first:.3f} -> {last:.3f})")
    return same and rose
