"""Streams through the gateway beside the bare engine on the same machine in one run: tokens on time, latency that is added, memory.

The engine is a process that paces its tokens and stamps each with the moment it was sent; a token is on time when it has arrived
within one interval of its pace after that. Engine, gateway and clients are three processes. Targets: 99 % of 200 streams of 50
tokens a second on time, 1 ms (p50) and 5 ms (p99) added, and memory that requests leave as it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import aiohttp
from bench.processes import Processes, answer, free_port
from bench.results import save, variant

TARGET_ON_TIME = 0.99
TARGET_P50_MS, TARGET_P99_MS = 1.0, 5.0
TOGETHER = 32
"""Short requests at once, where memory is looked at."""


async def read_stream(http: aiohttp.ClientSession, url: str, *, pace: float, tokens: int) -> list[float]:
    """One stream; seconds from each token's sending until it was here."""
    body = {"model": "m", "prompt": "x", "stream": True, "max_tokens": tokens, "pace": pace}
    late: list[float] = []
    async with http.post(f"{url}/v1/completions", json=body) as got:
        assert got.status == 200
        async for line in got.content:
            if line.startswith(b"data: {"):
                now = monotonic()
                late.append(now - json.loads(line[6:])["sent"])
    return late


async def paced(url: str, *, streams: int, pace: float, seconds: float) -> list[float]:
    """All tokens of so many streams, begun one after another within an interval."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one(number: int) -> list[float]:
            await asyncio.sleep(number / streams / pace)
            return await read_stream(http, url, pace=pace, tokens=int(pace * seconds))

        return [late for of_one in await asyncio.gather(*map(one, range(streams))) for late in of_one]


async def unpaced(url: str, *, streams: int, tokens: int) -> float:
    """Tokens a second that all streams together carry."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        began = monotonic()
        read = (read_stream(http, url, pace=0, tokens=tokens) for _ in range(streams))
        got = sum(len(late) for late in await asyncio.gather(*read))
        return got / (monotonic() - began)


async def short(url: str, requests: int) -> None:
    """Whole answers of one token."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def some(number: int) -> None:
            for _ in range(number):
                async with http.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"}) as got:
                    assert got.status == 200
                    await got.read()

        await asyncio.gather(*(some(requests // TOGETHER) for _ in range(TOGETHER)))


def main(arguments: Sequence[str] = ()) -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(prog="python -m bench gateway", description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--pace", type=float, default=50.0, help="tokens a second of each")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long they stream")
    parser.add_argument("--requests", type=int, default=100_000, help="short ones, over which memory is looked at")
    given = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="syncline-gateway-") as name:
        root = Path(name)
        with Processes(root) as processes:
            bare_port, gateway_port = free_port(), free_port()
            processes.start("bench.lane.upstream", [name, str(bare_port)])
            bare, through = f"http://127.0.0.1:{bare_port}", f"http://127.0.0.1:{gateway_port}"
            memory = processes.start(
                "syncline_agent.gateway",
                ["--engine-url", bare, "--engine-kind", "vllm", "--node-dir", name, "--port", str(gateway_port)],
            )
            processes.wait(
                lambda: (answer(gateway_port) or {}).get("ready"), what="the gateway", timeout_s=60, every_s=0.1
            )
            late: dict[str, list[float]] = {}
            rate: dict[str, float] = {}
            for which, url in (("bare", bare), ("gateway", through)):
                asyncio.run(paced(url, streams=8, pace=given.pace, seconds=1))
                late[which] = sorted(
                    asyncio.run(paced(url, streams=given.streams, pace=given.pace, seconds=given.seconds))
                )
                rate[which] = asyncio.run(unpaced(url, streams=given.streams, tokens=200))
            held: list[int] = []
            for requests in (given.requests // 10, given.requests - given.requests // 10):
                asyncio.run(short(through, requests))
                memory.reset()
                asyncio.run(short(through, TOGETHER))
                held.append(memory.resident)
            memory.stop()
    save("gateway", _table(given, late, rate, held), _samples(late, rate, held), unlike=variant(parser, given))


def _at(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def _on_time(values: Sequence[float], pace: float) -> float:
    return sum(value <= 1 / pace for value in values) / len(values)


def _table(given: argparse.Namespace, late: dict[str, list[float]], rate: dict[str, float], held: list[int]) -> str:
    lines = [
        f"{given.streams} streams of {given.pace:g} tokens a second, {given.seconds:g} s, {len(late['bare'])} tokens each way",
        "",
        f"{'':36}{'bare':>10}{'gateway':>10}{'added':>10}  target",
    ]
    shares = {which: _on_time(values, given.pace) for which, values in late.items()}
    lines.append(
        f"{'tokens on time':36}{shares['bare']:10.2%}{shares['gateway']:10.2%}{'':10}  >= {TARGET_ON_TIME:.0%}"
    )
    for share, target in ((0.5, TARGET_P50_MS), (0.99, TARGET_P99_MS)):
        bare, through = (_at(late[which], share) * 1e3 for which in ("bare", "gateway"))
        lines.append(
            f"{f'ms from sent to here, p{share * 100:g}':36}{bare:10.2f}{through:10.2f}{through - bare:10.2f}  <= {target:g} added"
        )
    lines.append(f"{'tokens a second, unpaced':36}{rate['bare']:10.0f}{rate['gateway']:10.0f}")
    first, last = (value / 1e6 for value in held)
    lines.append(
        f"resident MB after {given.requests // 10} and {given.requests} requests: {first:.1f}, {last:.1f}  (flat)"
    )
    return "\n".join(lines)


def _samples(late: dict[str, list[float]], rate: dict[str, float], held: list[int]) -> dict[str, Any]:
    quantiles = {
        which: {f"p{share * 100:g}": _at(values, share) for share in (0.5, 0.9, 0.99, 0.999, 1.0)}
        for which, values in late.items()
    }
    return {"seconds": quantiles, "tokens_a_second": rate, "resident_bytes": held}
