"""The demo's trainer: GRPO with Adam on FP32 masters, whose BF16 view is what engines serve.

It owns the optimizer and the newest weights; it never talks to an engine, a store or a clock. Gradients are taken at the
BF16 view, so the policy that is improved is the one that was sampled. Rollouts may be some versions old: the ratio to the
probability that the engine reported is clipped, as in PPO.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from syncline.errors import Rejected
from syncline_agent.reference.config import ModelConfig
from syncline_agent.reference.model import load_weights, sequence_logits, token_logprobs
from syncline_agent.reference.tokenizer import CharacterTokenizer
from syncline_cli.demo.checkpoint import write_checkpoint
from syncline_cli.demo.rollout import Rollout, pad


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """How it learns.

    Adam's epsilon stands far above the gradients (about 1.5e-3 in the root mean square), so an element moves in proportion
    to its gradient, 4e-6 for a typical one: the many that matter little keep their bits. A step of this small model then
    changes 2 to 3 % of them, and the reward nearly doubles within 24 steps. With a negligible epsilon every element moves
    by the whole rate, and more changed bits teach a small part of that.
    """

    learning_rate: float = 6e-4
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 0.2
    clip_low: float = 0.2
    clip_high: float = 0.3
    temperature: float = 1.0
    """That the rollouts were sampled with."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one optimizer step saw and did."""

    step: int
    reward: float
    """Mean over all rollouts of the batch."""
    changed: int
    """BF16 elements whose bits this step changed."""
    changed_share: float
    useful: float
    """Share of rollouts whose group has different rewards: only those teach."""
    clipped: float
    """Share of their tokens that the ratio's limits left without a gradient."""
    gradient_norm: float


class Trainer:
    """FP32 masters, Adam's moments, and the BF16 view of the masters."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        tokenizer: CharacterTokenizer,
        settings: TrainerSettings | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.settings = settings or TrainerSettings()
        self.steps = 0
        self._masters = {name: weights[name].detach().float().clone() for name in config.tensors()}
        self._first = {name: torch.zeros_like(master) for name, master in self._masters.items()}
        self._second = {name: torch.zeros_like(master) for name, master in self._masters.items()}
        self._view = {name: master.bfloat16() for name, master in self._masters.items()}

    @classmethod
    def load(cls, folder: Path, *, settings: TrainerSettings | None = None) -> Self:
        """Start from a checkpoint folder, at step 0 and with fresh moments."""
        config, weights = load_weights(folder)
        return cls(config, weights, tokenizer=CharacterTokenizer.load(folder), settings=settings)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The BF16 view after the last step, a tied head under its embedding's name only.

        A step makes new tensors, so a view that somebody keeps never changes under them.
        """
        return dict(self._view)

    def export(self, folder: Path) -> None:
        """Write the view as a checkpoint folder that exists whole or not at all."""
        write_checkpoint(folder, self.config, self._view, tokenizer=self.tokenizer, step=self.steps)

    def step(self, rollouts: Sequence[Rollout]) -> StepMetrics:
        """One optimizer step on a batch in which each problem was answered several times.

        A batch that teaches nothing (every group's rewards equal) still counts as a step, and changes no weight.
        """
        taught = advantages(rollouts)
        clipped, norm, changed = 0.0, 0.0, 0
        if taught:
            gradients, clipped = self._gradients(taught)
            norm = float(torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt())
            changed = self._adam(gradients)
        self.steps += 1
        return StepMetrics(
            step=self.steps,
            reward=sum(r.reward for r in rollouts) / len(rollouts),
            changed=changed,
            changed_share=changed / sum(tensor.numel() for tensor in self._view.values()),
            useful=len(taught) / len(rollouts),
            clipped=clipped,
            gradient_norm=norm,
        )

    def _gradients(self, taught: list[tuple[Rollout, float]]) -> tuple[dict[str, torch.Tensor], float]:
        leaves = {name: tensor.float().requires_grad_() for name, tensor in self._view.items()}
        batch = pad([rollout for rollout, _ in taught])
        logits = sequence_logits(self.config, leaves, batch.tokens)[:, :-1]
        now = token_logprobs(logits, batch.tokens[:, 1:], temperature=self.settings.temperature)
        ratio = torch.exp((now - batch.logprobs).masked_fill(~batch.drawn, 0.0))
        limited = ratio.clamp(1.0 - self.settings.clip_low, 1.0 + self.settings.clip_high)
        advantage = torch.tensor([a for _, a in taught])[:, None]
        gain = torch.minimum(ratio * advantage, limited * advantage)
        loss = -(gain * batch.drawn).sum() / batch.drawn.sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        without_gradient = (gain < ratio * advantage) & batch.drawn
        return dict(zip(leaves, gradients, strict=True)), float(without_gradient.sum() / batch.drawn.sum())

    @torch.no_grad()
    def _adam(self, gradients: dict[str, torch.Tensor]) -> int:
        """Move the masters and renew the view; returns how many BF16 elements changed."""
        settings, number, changed = self.settings, self.steps + 1, 0
        first_scale = 1.0 - settings.beta1**number
        second_scale = 1.0 - settings.beta2**number
        for name, gradient in gradients.items():
            first = self._first[name].lerp_(gradient, 1.0 - settings.beta1)
            second = self._second[name].lerp_(gradient.square(), 1.0 - settings.beta2)
            move = (first / first_scale) / ((second / second_scale).sqrt_().add_(settings.epsilon))
            view = self._masters[name].sub_(move, alpha=settings.learning_rate).bfloat16()
            changed += int((view.view(torch.int16) != self._view[name].view(torch.int16)).sum())
            self._view[name] = view
        return changed


def advantages(rollouts: Sequence[Rollout]) -> list[tuple[Rollout, float]]:
    """Each rollout's reward against its group's mean, in the group's standard deviations; groups of equal rewards are left out."""
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout)
    alone = sorted(number for number, group in groups.items() if len(group) < 2)
    if alone or not groups:
        raise Rejected(
            f"groups {alone[:4]} of {len(groups)} have one rollout; GRPO compares several answers to a problem"
        )
    taught: list[tuple[Rollout, float]] = []
    for group in groups.values():
        mean = sum(r.reward for r in group) / len(group)
        deviation = (sum((r.reward - mean) ** 2 for r in group) / len(group)) ** 0.5
        if deviation > 0.0:
            taught += [(r, (r.reward - mean) / deviation) for r in group]
    return taught
