"""The demo's trainer process: `python -m syncline_cli.demo.training …`.

It writes a checkpoint a step into a folder and never touches engines' weights; how they get there is Syncline's business. Of every
rollout it recomputes the log-probabilities at the very version that is stamped on its tokens, from its own copy of that step's weights.
Events go to a file as JSON lines, which the demo shows.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from syncline.chain import ChainReader
from syncline.clock import SystemClock
from syncline.delta import digest_tensor
from syncline.errors import DigestMismatch
from syncline.store.open import open_store
from syncline.wire.digest import total
from syncline.wire.tensors import TensorSpec
from syncline_cli.context import head_or_none
from syncline_cli.demo.rollout import recheck
from syncline_cli.demo.sampler import ANSWERS, Sampler
from syncline_cli.demo.trainer import Trainer
from syncline_cli.demo.warm_start import FOLDER

LARGEST_DIFFERENCE = 0.05
"""Log-probabilities of engine and trainer may differ by so much; from equal bits they differ by about 1e-5."""
GROUPS = 32
"""Problems an optimizer step."""
KEPT_STEPS = 12
"""Weights of so many steps are kept to recompute rollouts; a rollout may be as many versions old."""
PUBLISH_AHEAD = 2
"""The trainer waits when so many of its checkpoints are not in the store yet."""


def main() -> None:
    """Train, export, recheck; the last event is the digest of the final weights."""
    parser = argparse.ArgumentParser(prog="syncline-demo-trainer")
    for name in ("source", "events", "store", "run"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--engines", nargs="+", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--start", type=Path, default=FOLDER)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    with Path(given.events).open("w", encoding="utf-8") as events:
        train(
            Trainer.load(given.start),
            Steps(Path(given.source), ChainReader(open_store(given.store), given.run)),
            engines=given.engines,
            steps=given.steps,
            seed=given.seed,
            tell=lambda event: print(json.dumps(event), file=events, flush=True),
        )


class Steps:
    """Steps written as checkpoints, and the versions that they became."""

    def __init__(self, source: Path, reader: ChainReader) -> None:
        self._source = source
        self._reader = reader
        self._clock = SystemClock()
        self._weights: dict[int, Mapping[str, torch.Tensor]] = {}
        self.step_of: dict[int, int] = {}

    def write(self, trainer: Trainer) -> float:
        """Export the trainer's weights; returns when (Unix seconds) they were complete."""
        trainer.export(self._source / f"step_{trainer.steps:06d}")
        self._weights[trainer.steps] = trainer.weights
        for old in [s for s in self._weights if s < trainer.steps - KEPT_STEPS]:
            del self._weights[old]
        return self._clock.now()

    def wait(self, step: int) -> int:
        """The version of a step, once it is in the store."""
        while True:
            self._learn()
            for version, known in self.step_of.items():
                if known == step:
                    return version
            self._clock.sleep(0.05)

    def weights(self) -> dict[int, Mapping[str, torch.Tensor]]:
        """Kept weights by version."""
        self._learn()
        return {v: self._weights[s] for v, s in self.step_of.items() if s in self._weights}

    def _learn(self) -> None:
        head = head_or_none(self._reader)
        if head is None:
            return
        for version in range(max(self.step_of, default=0) + 1, head.version + 1):
            step = self._reader.manifest(version).step
            self.step_of[version] = 0 if step is None else step


def train(trainer: Trainer, written: Steps, *, engines: list[str], steps: int, seed: int, tell: Any) -> None:
    """The loop: sample, recheck, learn, export."""
    tell(
        {
            "event": "start",
            "elements": sum(t.numel() for t in trainer.weights.values()),
            "written": written.write(trainer),
        }
    )
    sampler = Sampler(
        engines,
        seed=random.Random(seed).getrandbits(31),
        temperature=trainer.settings.temperature,
        capacity=GROUPS,
        clock=SystemClock(),
    )
    written.wait(0)
    sampler.start()
    for _ in range(steps):
        newest = written.wait(max(0, trainer.steps - PUBLISH_AHEAD + 1))
        rollouts, dropped = sampler.batch(GROUPS, oldest=newest - KEPT_STEPS + PUBLISH_AHEAD + 1)
        difference = recheck(trainer.config, written.weights(), rollouts, temperature=trainer.settings.temperature)
        if difference > LARGEST_DIFFERENCE:
            raise DigestMismatch(
                f"log-probabilities of rollouts differ by {difference:.4f} from the stamped version's: an engine served other weights"
            )
        behind = [trainer.steps - written.step_of[v] for rollout in rollouts for v in rollout.versions]
        result = trainer.step(rollouts)
        tell(
            {
                "event": "step",
                "step": result.step,
                "written": written.write(trainer),
                "reward": result.reward,
                "changed_share": result.changed_share,
                "difference": difference,
                "rollouts": len(rollouts),
                "mixed": sum(len(r.spans) > 1 for r in rollouts),
                "lag": sum(behind) / len(behind),
                "dropped": dropped * ANSWERS,
            }
        )
    version = written.wait(trainer.steps)
    sampler.stop()
    tell({"event": "end", "version": version, "digest": view_digest(trainer.weights), "step": trainer.steps})


def view_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """View digest straight from the trainer's tensors: no checkpoint file, store or manifest takes part."""
    digests = []
    for name, tensor in weights.items():
        spec = TensorSpec(name=name, dtype="BF16", shape=list(tensor.shape), axis=0)
        units = tensor.detach().contiguous().view(torch.int16).numpy().view("uint16").reshape(-1)
        digests.append(digest_tensor(spec, units))
    return total(digests).hex


if __name__ == "__main__":
    main()
