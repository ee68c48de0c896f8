"""Rollouts from running engines, without waiting for the trainer: every engine has a few requests in flight at all times.

It speaks plain HTTP to `/v1/completions`, as any trainer would. What it collects is bounded: when the trainer is slow, the samplers wait.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Sequence
from itertools import count
from typing import Any

import httpx

from syncline.clock import Clock
from syncline.errors import EngineUnavailable
from syncline_cli.demo.rollout import Rollout, Span
from syncline_cli.demo.task import LONGEST_ANSWER, Problem, draw_problem, reward

ANSWERS = 8
"""Answers to a problem: a GRPO group."""
PROBLEMS = 8
"""Problems a request; an engine batches them."""


class Sampler:
    """Threads that keep engines busy and a bounded queue of groups."""

    def __init__(self, engines: Sequence[str], *, seed: int, temperature: float, capacity: int, clock: Clock) -> None:
        self._temperature = temperature
        self._clock = clock
        self._groups: queue.Queue[list[Rollout]] = queue.Queue(maxsize=capacity)
        self._numbers = count()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(url, random.Random(f"{seed}/{number}")), daemon=True)
            for number, url in enumerate(engines)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()

    def batch(self, groups: int, *, oldest: int) -> tuple[list[Rollout], int]:
        """As many groups as asked for, none with a token of a version below `oldest`; and how many were too old."""
        fresh: list[Rollout] = []
        dropped = 0
        while groups:
            group = self._next()
            if min(v for rollout in group for v in rollout.versions) < oldest:
                dropped += 1
                continue
            fresh += group
            groups -= 1
        return fresh, dropped

    def _next(self) -> list[Rollout]:
        while True:
            if self._failure is not None:
                raise EngineUnavailable(f"an engine stopped answering: {self._failure}") from self._failure
            try:
                return self._groups.get(timeout=0.5)
            except queue.Empty:
                continue

    def _run(self, url: str, rng: random.Random) -> None:
        try:
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
                self._await_ready(client)
                while not self._stop.is_set():
                    for group in self._ask(client, [draw_problem(rng) for _ in range(PROBLEMS)], rng):
                        self._put(group)
        except Exception as error:  # handed to the trainer's thread, which raises it
            self._failure = error

    def _await_ready(self, client: httpx.Client) -> None:
        while not self._stop.is_set():
            try:
                if client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            self._clock.sleep(0.2)

    def _ask(self, client: httpx.Client, problems: Sequence[Problem], rng: random.Random) -> list[list[Rollout]]:
        answer = client.post(
            "/v1/completions",
            json={
                "prompt": [p.prompt for p in problems],
                "n": ANSWERS,
                "max_tokens": LONGEST_ANSWER,
                "temperature": self._temperature,
                "seed": rng.getrandbits(31),
                "logprobs": 0,
                "return_token_ids": True,
            },
        )
        answer.raise_for_status()
        choices: list[dict[str, Any]] = sorted(answer.json()["choices"], key=lambda c: c["index"])
        groups: list[list[Rollout]] = []
        for at, problem in enumerate(problems):
            number = next(self._numbers)
            mine = choices[at * ANSWERS : (at + 1) * ANSWERS]
            groups.append([_rollout(number, problem, choice) for choice in mine])
        return groups

    def _put(self, group: list[Rollout]) -> None:
        while not self._stop.is_set():
            try:
                self._groups.put(group, timeout=0.5)
                return
            except queue.Full:
                continue


def _rollout(group: int, problem: Problem, choice: dict[str, Any]) -> Rollout:
    spans = choice["weight_version"]["spans"]
    return Rollout(
        group=group,
        prompt=tuple(choice["prompt_token_ids"]),
        tokens=tuple(choice["token_ids"]),
        logprobs=tuple(choice["logprobs"]["token_logprobs"]),
        spans=tuple(Span(s["first"], s["last"] + 1, s["version"]) for s in spans),
        reward=reward(problem, choice["text"]),
    )
