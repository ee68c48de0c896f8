"""Streams through the gateway beside the bare engine on the same machine in one run: tokens on time, latency that is added, memory.

Engine, agent, gateway and clients are a process each; what they do beside the gateway is bare sockets, so that as little as may be of
two cores is theirs. The engine says in each token when it was due and when it was sent. Bare and through the gateway take turns. A token
is on time when it is here within one interval of its pace after it was due; those of the first and last moments count like all.
Targets: 99 % of 200 streams of 50 tokens a second on time, 1 ms (p50) and 5 ms (p99) added, and memory that requests leave as it was.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.lane.answers import Token
from bench.lane.clients import Got, Order
from bench.processes import Memory, Processes, answer, free_port
from bench.results import save, variant

TARGET_ON_TIME = 0.99
TARGET_P50_MS, TARGET_P99_MS = 1.0, 5.0
TOGETHER = 32
"""Short requests at once, where memory is looked at."""
WAYS = ("bare", "gateway")


@dataclass
class Measured:
    """Of one way, over all turns."""

    tokens: list[Token] = field(default_factory=list[Token])
    seconds: float = 0.0
    """Of streams at their pace; so are the next."""
    processor_s: dict[str, float] = field(default_factory=dict[str, float])
    """By process."""
    rates: list[float] = field(default_factory=list[float])
    """Tokens a second, unpaced, by turn."""

    def late(self) -> list[float]:
        """Seconds from sent to here, in order."""
        return sorted(here - sent for _, sent, here in self.tokens)

    def on_time(self, pace: float) -> float:
        return sum(here - due <= 1 / pace for due, _, here in self.tokens) / len(self.tokens)


class Lane:
    """The processes, and what clients get of them."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self.ports = {way: free_port() for way in WAYS}
        engine = f"http://127.0.0.1:{self.ports['bare']}"
        flags = ["--engine-url", engine, "--engine-kind", "vllm", "--node-dir", str(folder)]
        self.parts: dict[str, Memory] = {
            "engine": processes.start("bench.lane.upstream", [str(self.ports["bare"])]),
            "agent": processes.start("bench.lane.agent", [str(folder)]),
            "gateway": processes.start("syncline_agent.gateway", [*flags, "--port", str(self.ports["gateway"])]),
        }
        for part in self.parts.values():
            part.stop()  # samples of memory that is not looked at would take a core's time
        port = self.ports["gateway"]
        processes.wait(lambda: (answer(port) or {}).get("ready"), what="the gateway", timeout_s=60, every_s=0.1)

    def get(self, order: Order) -> tuple[Got, dict[str, float]]:
        """What clients got, and processor seconds by process meanwhile."""
        asked, got = self._folder / "order.json", self._folder / "got.json"
        asked.write_text(json.dumps(asdict(order)), encoding="utf-8")
        before = {name: part.processor_s for name, part in self.parts.items()}
        ended = self._processes.run("bench.lane.clients", [str(asked), str(got)], timeout_s=600)
        if ended != "done":
            raise SystemExit(f"the clients: {ended}")
        spent = {name: part.processor_s - before[name] for name, part in self.parts.items()}
        told = json.loads(got.read_text(encoding="utf-8"))
        return Got(**told), {**spent, "clients": told["processor_s"]}


def main(arguments: Sequence[str] = ()) -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(prog="python -m bench gateway", description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--pace", type=float, default=50.0, help="tokens a second of each")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long they stream, each turn")
    parser.add_argument("--begin", type=float, default=1.0, help="seconds within which they begin, one after another")
    parser.add_argument("--turns", type=int, default=5, help="each way")
    parser.add_argument(
        "--unpaced", type=int, default=1000, help="tokens of each stream where they come as they are taken"
    )
    parser.add_argument("--requests", type=int, default=100_000, help="short ones, over which memory is looked at")
    given = parser.parse_args(arguments)
    measured = {way: Measured() for way in WAYS}
    with TemporaryDirectory(prefix="syncline-gateway-") as name, Processes(Path(name)) as processes:
        lane = Lane(processes, Path(name))
        for way in WAYS:
            lane.get(Order(lane.ports[way], 8, given.pace, int(given.pace)))
        for _ in range(given.turns):
            for way in WAYS:
                _turn(lane, way, given, measured[way])
        held: list[int] = []
        for requests in (given.requests // 10, given.requests - given.requests // 10):
            lane.get(Order(lane.ports["gateway"], TOGETHER, requests=requests))
            lane.parts["gateway"].reset()
            lane.get(Order(lane.ports["gateway"], TOGETHER, requests=TOGETHER))
            held.append(lane.parts["gateway"].resident)
    save("gateway", _table(given, measured, held), _samples(measured, held), unlike=variant(parser, given))


def _turn(lane: Lane, way: str, given: argparse.Namespace, into: Measured) -> None:
    port = lane.ports[way]
    paced = Order(port, given.streams, given.pace, int(given.pace * given.seconds), begin_s=given.begin)
    got, spent = lane.get(paced)
    into.tokens += got.tokens
    into.seconds += got.seconds
    for name, seconds in spent.items():
        into.processor_s[name] = into.processor_s.get(name, 0.0) + seconds
    got, _ = lane.get(Order(port, given.streams, tokens=given.unpaced))
    into.rates.append(len(got.tokens) / got.seconds)


def _at(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def _table(given: argparse.Namespace, measured: dict[str, Measured], held: list[int]) -> str:
    bare, through = (measured[way] for way in WAYS)
    cores = len(os.sched_getaffinity(0))
    turns = f"{given.turns} turns of {given.seconds:g} s and {len(bare.tokens)} tokens each way"
    lines = [
        f"{given.streams} streams of {given.pace:g} tokens a second, begun within {given.begin:g} s; {turns}",
        "",
        f"{'':40}{'bare':>10}{'gateway':>10}{'added':>10}  target",
        f"{'tokens on time':40}{bare.on_time(given.pace):10.2%}{through.on_time(given.pace):10.2%}{'':10}  >= {TARGET_ON_TIME:.0%}",
    ]
    late = [one.late() for one in (bare, through)]
    for share, target in ((0.5, TARGET_P50_MS), (0.99, TARGET_P99_MS)):
        one, other = (_at(values, share) * 1e3 for values in late)
        what = f"ms from sent to here, p{share * 100:g}"
        lines.append(f"{what:40}{one:10.2f}{other:10.2f}{other - one:10.2f}  <= {target:g} added")
    behind = [_at(sorted(sent - due for due, sent, _ in one.tokens), 0.99) * 1e3 for one in (bare, through)]
    lines.append(f"{'ms from due to sent by the engine, p99':40}{behind[0]:10.2f}{behind[1]:10.2f}")
    best = [max(one.rates) for one in (bare, through)]
    lines.append(f"{'tokens a second, unpaced, best turn':40}{best[0]:10.0f}{best[1]:10.0f}")
    lines += ["", f"of {cores} cores at that pace; microseconds a token"]
    for name in through.processor_s:
        shares = [
            f"{one.processor_s[name] / one.seconds / cores:8.1%}{one.processor_s[name] / len(one.tokens) * 1e6:8.1f}"
            for one in (bare, through)
        ]
        lines.append(f"  {name:18}{'':10}{''.join(f'{share:>20}' for share in shares)}")
    first, last = (value / 1e6 for value in held)
    lines += [
        "",
        f"resident MB after {given.requests // 10} and {given.requests} requests: {first:.1f}, {last:.1f}  (flat)",
    ]
    return "\n".join(lines)


def _samples(measured: dict[str, Measured], held: list[int]) -> dict[str, Any]:
    return {
        way: {
            "seconds_late": {f"p{share * 100:g}": _at(one.late(), share) for share in (0.5, 0.9, 0.99, 0.999, 1.0)},
            "tokens": len(one.tokens),
            "seconds": one.seconds,
            "processor_s": one.processor_s,
            "unpaced_tokens_a_second": one.rates,
        }
        for way, one in measured.items()
    } | {"resident_bytes": held}
