"""Makes the checkpoint that the demo starts from: `python -m syncline_cli.demo.warm_start <folder>`, minutes on 2 cores.

It first learns to add from right answers, then imitates the task's poor demonstrations, which leaves a policy that could
answer but mostly gives up. The result ships beside this module, so that the demo need not spend those minutes.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from syncline_agent.reference.config import ModelConfig
from syncline_agent.reference.model import sequence_logits, token_logprobs
from syncline_cli.demo.checkpoint import write_checkpoint
from syncline_cli.demo.task import LONGEST_ANSWER, LONGEST_PROMPT, TOKENIZER, Problem, draw_demonstration, draw_problem

FOLDER = Path(__file__).parent / "warm_start_model"
"""The shipped result."""

MODEL = ModelConfig(
    vocab=TOKENIZER.vocab,
    hidden=192,
    intermediate=448,
    layers=4,
    heads=6,
    kv_heads=2,
    head_dim=32,
    max_positions=32,
    rope_theta=10_000.0,
    tied=True,
)
BATCH = 128
RIGHT_STEPS, POOR_STEPS = 900, 250
PEAK_RATE, POOR_RATE = 1.5e-3, 3e-4


def first_weights(config: ModelConfig, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Random FP32 weights to start from; what feeds the residual stream starts small."""
    weights: dict[str, torch.Tensor] = {}
    for name, shape in config.tensors().items():
        if len(shape) == 1:
            weights[name] = torch.ones(shape) if "norm" in name else torch.zeros(shape)
            continue
        into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        scale = 0.02 if "embed" in name else (0.4 if into_residual else 0.8) / math.sqrt(shape[1])
        weights[name] = torch.randn(shape, generator=generator) * scale
    return weights


def imitate(
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    rng: random.Random,
    *,
    answer: Callable[[random.Random, Problem], str],
    steps: int,
    rate: float,
    batch: int = BATCH,
) -> Iterable[float]:
    """Supervised steps in place on FP32 weights, with a short rise and a cosine fall of the rate; yields each loss."""
    leaves = [tensor.requires_grad_() for tensor in weights.values()]
    optimizer = torch.optim.AdamW(leaves, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        tokens, taught = _batch(rng, answer, batch)
        now = token_logprobs(sequence_logits(config, weights, tokens)[:, :-1], tokens[:, 1:])
        loss = -(now * taught).sum() / taught.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(leaves, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 40) * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)
        optimizer.step()
        yield float(loss.detach())


def _batch(
    rng: random.Random, answer: Callable[[random.Random, Problem], str], batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [batch, length] and where tokens[:, 1:] belong to an answer."""
    length = 1 + LONGEST_PROMPT + LONGEST_ANSWER
    tokens = torch.full((batch, length), TOKENIZER.pad)
    taught = torch.zeros(batch, length - 1, dtype=torch.bool)
    for row in range(batch):
        problem = draw_problem(rng)
        prompt = TOKENIZER.encode(problem.prompt)
        told = [*prompt, *TOKENIZER.encode(answer(rng, problem), beginning=False), TOKENIZER.end]
        tokens[row, : len(told)] = torch.tensor(told)
        taught[row, len(prompt) - 1 : len(told) - 1] = True
    return tokens, taught


def main(folder: Path, *, seed: int = 1) -> None:
    rng = random.Random(seed)
    weights = first_weights(MODEL, torch.Generator().manual_seed(seed))
    phases = (
        ("right answers", lambda _, problem: problem.answer, RIGHT_STEPS, PEAK_RATE),
        ("poor demonstrations", draw_demonstration, POOR_STEPS, POOR_RATE),
    )
    for what, answer, steps, rate in phases:
        for step, loss in enumerate(imitate(MODEL, weights, rng, answer=answer, steps=steps, rate=rate), start=1):
            if step % 50 == 0:
                print(f"{what}: step {step} of {steps}, loss {loss:.3f}", flush=True)
    write_checkpoint(folder, MODEL, {n: t.detach().bfloat16() for n, t in weights.items()}, tokenizer=TOKENIZER, step=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
