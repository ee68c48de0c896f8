"""`python -m bench.serving.streams`: clients that read completions token by token, for ever, and note when each token came.

Told to stop, they begin no more requests, wait for those in flight and write down all that were whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
from bench.serving.orders import answer_in_thread

PROMPT = [5, 7, 11, 13, 17, 19, 23, 29]
_LAST = b'"weight_version"'


class Clients:
    """Some streams against one engine."""

    def __init__(self, url: str, *, streams: int, tokens: int, vocab: int) -> None:
        self._url, self._streams, self._tokens, self._vocab = url, streams, tokens, vocab
        self._stopping = False
        self.requests: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.done = threading.Event()

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            await asyncio.gather(*(self._stream(session, number) for number in range(self._streams)))
        self.done.set()

    async def _stream(self, session: aiohttp.ClientSession, number: int) -> None:
        turn = 0
        while not self._stopping:
            # The first requests are of different lengths, so that streams do not begin and end together.
            tokens = self._tokens if turn else 1 + self._tokens * (number + 1) // self._streams
            try:
                await self._request(session, number, turn, tokens)
            except (aiohttp.ClientError, OSError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)
            turn += 1

    async def _request(self, session: aiohttp.ClientSession, number: int, turn: int, tokens: int) -> None:
        body = {
            "prompt": [token % self._vocab for token in PROMPT],
            "max_tokens": tokens,
            "stream": True,
            "seed": number * 100_000 + turn,
        }
        times: list[float] = []
        async with session.post(f"{self._url}/v1/completions", json=body) as response:
            if response.status != 200:
                self.errors.append((await response.text())[:300])
                await asyncio.sleep(0.2)
                return
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                times.append(monotonic())
                if b'"error"' in line:
                    self.errors.append(line.decode()[:300])
                elif _LAST in line:
                    spans = json.loads(line[6:])["choices"][0]["weight_version"]["spans"]
                    self.requests.append({"stream": number, "times": times, "spans": spans})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True, help="of each answer")
    parser.add_argument("--vocab", type=int, required=True)
    parser.add_argument("--orders", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    clients = Clients(args.url, streams=args.streams, tokens=args.tokens, vocab=args.vocab)

    def stop(within_s: float) -> dict[str, int]:
        clients.stop()
        clients.done.wait(within_s)
        args.out.write_text(json.dumps({"requests": clients.requests, "errors": clients.errors}), encoding="utf-8")
        return {"requests": len(clients.requests), "errors": len(clients.errors)}

    answer_in_thread(args.orders, {"stop": stop})
    asyncio.run(clients.run())
    threading.Event().wait()  # answered until ended


if __name__ == "__main__":
    main()
