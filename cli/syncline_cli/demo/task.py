"""What the demo's model learns: adding two numbers below one hundred, with a reward that anyone can check.

It owns the problems, the exact-match reward and the demonstrations that the warm start imitates. Those are
deliberately poor: many give up with "?" and some are off in one digit, so that a policy which imitates them has
something to unlearn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from syncline_agent.reference.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer("0123456789+=?")
LONGEST_PROMPT = 6
"""Tokens of "99+99=" after the beginning token."""
LONGEST_ANSWER = 4
"""Tokens of "198" and the end token."""

GIVES_UP = 0.55
IS_WRONG = 0.1


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt and the only answer that is rewarded."""

    prompt: str
    answer: str


def draw_problem(rng: random.Random) -> Problem:
    a, b = rng.randrange(100), rng.randrange(100)
    return Problem(prompt=f"{a}+{b}=", answer=str(a + b))


def reward(problem: Problem, text: str) -> float:
    """1 for exactly the answer, 0 for anything else: no credit for a part of it, for its form or for its length."""
    return 1.0 if text == problem.answer else 0.0


def draw_demonstration(rng: random.Random, problem: Problem) -> str:
    """An answer of the poor teacher: right in about a third of the cases."""
    kind = rng.random()
    if kind < GIVES_UP:
        return "?"
    if kind < GIVES_UP + IS_WRONG:
        place = rng.randrange(len(problem.answer))
        digit = rng.choice([d for d in "0123456789" if d != problem.answer[place]])
        return problem.answer[:place] + digit + problem.answer[place + 1 :]
    return problem.answer
