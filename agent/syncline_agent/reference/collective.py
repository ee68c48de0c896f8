"""Sums and columns between the processes of one engine: gloo between CPUs, NCCL between GPUs, of one host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

PATIENCE = timedelta(seconds=300)
"""A rank that does not come to a sum in this time fails it."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of an engine find each other."""

    file: Path
    """In a folder of their own; it does not exist before."""
    ways: int
    device: str
    """cpu or cuda; each rank has the GPU of its number."""

    def device_of(self, rank: int) -> str:
        return self.device if self.device == "cpu" else f"{self.device}:{rank}"


def meet(meeting: Meeting, rank: int) -> None:
    """Return when all ranks are there."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo takes no other word for it, and all are on one host
    if meeting.device != "cpu":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "gloo" if meeting.device == "cpu" else "nccl",
        init_method=meeting.file.as_uri(),
        rank=rank,
        world_size=meeting.ways,
        timeout=PATIENCE,
    )


class Collective:
    """The ranks of this process's group (`ranks.Ranks`)."""

    def __init__(self, ways: int) -> None:
        self.ways = ways

    def step(self, tokens: Sequence[int], slots: Sequence[int], positions: Sequence[int]) -> None:
        pass

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        distributed.all_reduce(x)
        return x

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        found = [torch.empty_like(x) for _ in range(self.ways)]
        distributed.all_gather(found, x)
        return torch.cat(found, dim=-1)

    def broke(self, error: Exception) -> None:
        pass
