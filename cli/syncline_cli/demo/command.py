"""`syncline demo`: a real asynchronous RL loop on this machine, and the proof that every engine holds the trainer's bits.

One trainer learns by GRPO in its own process; two engines generate every rollout; weights travel only through store, distributor
and agents. It fails when a digest differs or the reward did not rise (exit code 9), and when a process ends by itself (1), as the trainer
does when a log-probability differs by more than 0.05.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from syncline.chain import ChainReader
from syncline.checkpoint import materialize
from syncline.clock import SystemClock
from syncline.delta.warming import compile_for
from syncline.errors import SynclineError
from syncline.store.open import open_store
from syncline_cli.context import head_or_none
from syncline_cli.demo import display, fleet
from syncline_cli.demo.processes import ProcessDied, Processes
from syncline_cli.output import EXIT_DIFFERENT, Output

STALL_TIMEOUT_S = 180.0
CATCH_UP_TIMEOUT_S = 60.0
JUDGED_STEPS = 5
"""With fewer steps there is no first and last fifth, and the reward is shown but not judged."""


class StoreKind(StrEnum):
    """Where the demo's weights go through."""

    LOCAL = "local"
    S3 = "s3"


class DemoStalled(SynclineError):
    """Nothing moved for too long, though every process lives."""


def demo(
    store: Annotated[
        StoreKind, typer.Option("--store", help="local: a folder; s3: a SeaweedFS that the demo starts.")
    ] = StoreKind.LOCAL,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Optimizer steps; with fewer than 5 the reward is not judged.")
    ] = 24,
    seed: Annotated[int, typer.Option("--seed", help="Of the trainer and the sampling.")] = 1,
    start: Annotated[
        Path | None,
        typer.Option(
            "--start", exists=True, file_okay=False, help="Checkpoint to train from; default: the one that ships."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", file_okay=False, help="Keep everything here; default: a temporary folder, removed after success."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document at the end.")] = False,
) -> None:
    """Run a small RL training with two engines through Syncline, and prove the result."""
    output = Output(as_json=as_json)
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise typer.BadParameter(f"{folder} is not empty", param_hint="--dir")
    home = Path(tempfile.mkdtemp(prefix="syncline-demo-")) if folder is None else folder
    good = False
    try:
        with fleet.store_of(store.value, home) as (url, environment), Processes(home / "logs") as processes:
            good = _run(output, processes, home, url, environment, steps=steps, seed=seed, start=start)
    except ProcessDied as died:
        for line in died.tail:
            output.note(line)
        raise
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
    with output.err.status("compiling the coder's loops (once an environment)"):
        compile_for(["BF16"])  # before the processes start, which would all compile the same
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
    reader = ChainReader(open_store(url, environ={**os.environ, **environment}), fleet.RUN)
    follower = Follower(output, running, reader)
    with events.open(encoding="utf-8") as lines:
        deadline = clock.monotonic() + STALL_TIMEOUT_S
        while follower.end is None:
            processes.check()
            moved = False
            while text := lines.readline():
                follower.take(json.loads(text))
                moved = True
            follower.look()
            if moved:
                deadline = clock.monotonic() + STALL_TIMEOUT_S
            elif clock.monotonic() > deadline:
                raise DemoStalled(f"nothing happened for {STALL_TIMEOUT_S:.0f} s; see the logs in {home / 'logs'}")
            clock.sleep(0.05)
    end = follower.end
    fleet.await_version(running, processes, end["version"], timeout_s=CATCH_UP_TIMEOUT_S, clock=clock)
    follower.look()
    follower.flush()
    with ThreadPoolExecutor() as pool:
        rebuilt = materialize(reader, end["version"], home / "rebuilt", executor=pool).digest(executor=pool).hex
    digests = {
        "trainer's tensors": str(end["digest"]),
        f"manifest of version {end['version']}": reader.manifest(end["version"]).digest,
        **{f"live memory of {node.name}'s engine": running.verify(node) for node in running.nodes},
        "checkpoint rebuilt from the store": rebuilt,
    }
    return conclude(output, follower.rows, digests, seconds=clock.monotonic() - began)


class Follower:
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
            self._output.line(f"{event['elements']:,} BF16 elements")
            self._output.line(display.HEADER)
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


def conclude(output: Output, rows: Sequence[display.Row], digests: Mapping[str, str], *, seconds: float) -> bool:
    """Show the summary and the proof; True when every digest is the same and the reward, where it is judged, rose."""
    first, last = display.fifths(rows)
    same, judged = len(set(digests.values())) == 1, len(rows) >= JUDGED_STEPS
    rose = last > first if judged else None
    facts = [*display.summary(rows), ("wall time", f"{seconds:.0f} s")]
    output.table(["what", "measured"], [list(f) for f in facts], title="Summary")
    display.show_proof(output, digests)
    output.result({"proven": same, "reward_rose": rose, "digests": dict(digests), "summary": dict(facts)})
    output.line(
        "PROVEN: every copy holds the trainer's bits" if same else "DIFFERENT: a copy does not hold the trainer's bits"
    )
    if rose is None:
        output.line(f"the reward of fewer than {JUDGED_STEPS} steps is not judged")
    elif not rose:
        output.line(f"FAILED: the mean reward did not rise ({first:.3f} -> {last:.3f})")
    return same and rose is not False
