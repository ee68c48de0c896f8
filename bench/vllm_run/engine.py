"""`python -m bench.vllm_run.engine FOLDER`: one vLLM on a checkpoint, told what to do by a JSON object a line, and its answers.

With SYNCLINE_ARM_SOCKET set it is the engine that is followed; without, the one that says which tokens are right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import count
from time import monotonic
from typing import Any, TextIO

from bench.vllm_run.asked import device_memory

STREAMED = 256
"""Tokens of each request of a stream."""
Answer = dict[str, Any]


class Engine:
    """An AsyncLLM, whose core is a process of its own."""

    def __init__(self, folder: str, *, kv_bytes: int, sleeps: bool, eager: bool, more: Mapping[str, Any]) -> None:
        llm: Any = import_module("vllm.v1.engine.async_llm").AsyncLLM
        arguments: Any = import_module("vllm.engine.arg_utils").AsyncEngineArgs
        self._params: Any = import_module("vllm.sampling_params")
        self._llm = llm.from_engine_args(
            arguments(
                model=folder,
                skip_tokenizer_init=True,
                dtype="bfloat16",
                max_model_len=2048,
                max_num_seqs=32,
                max_num_batched_tokens=2048,
                kv_cache_memory_bytes=kv_bytes or None,
                gpu_memory_utilization=0.2,  # must be free when it starts, and several share a GPU
                enable_sleep_mode=sleeps,
                enforce_eager=eager,
                **({} if eager else {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}),
                **more,
            )
        )
        self._names = count(1)
        self._streaming = False
        self._streams: list[asyncio.Task[None]] = []
        self._times: list[list[list[float]]] = []
        self._ended: dict[str, int] = {}

    async def do(self, order: Answer) -> Answer:
        match order["do"]:
            case "draw":
                return {"drawn": [await self._draw(prompt, order["tokens"]) for prompt in order["prompts"]]}
            case "stream":
                self._begin(order["streams"])
                return {}
            case "times":
                return await self._end()
            case "memory":
                return {"memory": await self._llm.collective_rpc(device_memory)}
            case "sleep":
                await self._llm.sleep(order["level"])
                return {}
            case "wake":
                await self._llm.wake_up(order["tags"])
                return {}
            case "call":
                await self._llm.collective_rpc(order["name"])
                return {}
            case "end":
                await self._end()
                self._llm.shutdown()
                return {}
            case other:
                raise ValueError(f"{other} is no order")

    async def _draw(self, prompt: list[int], tokens: int) -> Answer:
        """Greedy tokens of a prompt, and how likely each was, bit for bit."""
        asked = self._params.SamplingParams(
            temperature=0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            logprobs=1,
            output_kind=self._params.RequestOutputKind.FINAL_ONLY,
        )
        told: Any = None
        async for output in self._llm.generate({"prompt_token_ids": prompt}, asked, f"draw-{next(self._names)}"):
            told = output.outputs[0]
        ids = list(told.token_ids)
        likely = (
            [] if told.logprobs is None else [at[token].logprob for token, at in zip(ids, told.logprobs, strict=True)]
        )
        return {"tokens": ids, "logprobs": [value.hex() for value in likely], "finish": str(told.finish_reason)}

    def _begin(self, streams: int) -> None:
        self._streaming, self._times, self._ended = True, [[] for _ in range(streams)], {}
        self._streams = [asyncio.create_task(self._stream(number)) for number in range(streams)]

    async def _stream(self, number: int) -> None:
        """Requests one after the other, and when each token came."""
        asked = self._params.SamplingParams(
            temperature=0,
            max_tokens=STREAMED,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._params.RequestOutputKind.DELTA,
        )
        while self._streaming:
            name = f"stream-{next(self._names)}"
            times: list[float] = []
            prompt = [2 + (number * 977 + at * 131) % 500 for at in range(24)]
            finish = "lost"
            async for output in self._llm.generate({"prompt_token_ids": prompt}, asked, name):
                told = output.outputs[0]
                if told.token_ids:
                    times.append(monotonic())
                finish = str(told.finish_reason or finish)
            self._times[number].append(times)
            self._ended[finish] = self._ended.get(finish, 0) + 1
            if finish != "length":
                await asyncio.sleep(0.01)

    async def _end(self) -> Answer:
        self._streaming = False
        await asyncio.gather(*self._streams)
        self._streams = []
        return {"times": self._times, "ended": self._ended}


async def serve(engine: Engine, answers: TextIO) -> None:
    """Orders until the last."""
    while True:
        line = await asyncio.to_thread(sys.stdin.readline)
        order = json.loads(line or '{"do": "end"}')
        try:
            told = await engine.do(order)
        except Exception as error:  # said, and the next order may fare better
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), file=answers, flush=True)
        if order["do"] == "end":
            return


async def run(told: argparse.Namespace, answers: TextIO) -> None:
    engine = Engine(told.folder, kv_bytes=told.kv_bytes, sleeps=told.sleeps, eager=told.eager, more=told.more)
    print(json.dumps({"ready": monotonic()}), file=answers, flush=True)
    await serve(engine, answers)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--kv-bytes", type=int, default=0)
    parser.add_argument("--sleeps", action="store_true")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--more", type=json.loads, default={}, help="of vLLM's own arguments, as JSON")
    told = parser.parse_args(arguments)
    # What vLLM and its children print belongs to the log; answers keep the real output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asyncio.run(run(told, answers))


if __name__ == "__main__":
    main()
