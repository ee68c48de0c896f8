"""The model that path and anchor move around: a Qwen2-shaped BF16 checkpoint of any size, and its next training steps.

A step moves each weight by one unit in its last place with the chance that Adam's step of one learning rate crosses a
rounding boundary there: the rate over the distance between two BF16 values of that exponent. Nothing but the files is
kept, so a step needs memory for a tensor a thread, whatever the model's size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from syncline.checkpoint import header_bytes
from syncline_agent.reference.config import ModelConfig

LEARNING_RATE = 1.95e-7
"""Changes one percent of normal weights of deviation 0.02."""
DEVIATION = 0.02
INDEX = "model.safetensors.index.json"

Bits = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor of the model and where its bytes are."""

    seed: int
    name: str
    shape: tuple[int, ...]
    file: str
    offset: int

    @property
    def units(self) -> int:
        return int(np.prod(self.shape))


class BenchModel:
    """Layout of the checkpoints, and how one is made from the one before."""

    def __init__(self, gigabytes: float, *, shard_bytes: int) -> None:
        one, two = _size(_config(1)), _size(_config(2))
        self.config = _config(max(1, round((gigabytes * 1e9 - one) / (two - one)) + 1))
        self.headers, self.places = _layout(self.config, shard_bytes)

    @property
    def size_bytes(self) -> int:
        return _size(self.config)

    @property
    def largest_tensor_bytes(self) -> int:
        return 2 * max(place.units for place in self.places)

    @property
    def largest_shard_bytes(self) -> int:
        ends = {place.file: place.offset + 2 * place.units for place in self.places}
        return max(ends.values())

    def write(self, folder: Path, *, step: int, previous: Path | None = None) -> None:
        """A whole checkpoint in a new folder, synced, so that nothing of it is left to write when it is measured."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config.to_hf(), indent=2), encoding="utf-8")
        if len(self.headers) > 1:
            index = {"metadata": {"total_size": self.size_bytes}, "weight_map": {p.name: p.file for p in self.places}}
            (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
        for file, header in self.headers.items():
            (folder / file).write_bytes(header)

        def one(place: Place) -> None:
            bits = _first(place) if previous is None else _moved(place, previous, step)
            _write_at(folder / place.file, bits, place.offset)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(one, self.places))
        for file in folder.iterdir():
            _sync(file)


def _config(layers: int) -> ModelConfig:
    return ModelConfig(
        vocab=16384,
        hidden=2048,
        intermediate=8192,
        layers=layers,
        heads=16,
        kv_heads=4,
        head_dim=128,
        max_positions=2048,
    )


def _size(config: ModelConfig) -> int:
    return 2 * sum(int(np.prod(shape)) for shape in config.tensors().values())


def _layout(config: ModelConfig, shard_bytes: int) -> tuple[dict[str, bytes], list[Place]]:
    groups: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    filled = 0
    for name, shape in config.tensors().items():
        size = 2 * int(np.prod(shape))
        if groups[-1] and filled + size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append((name, shape))
        filled += size
    headers: dict[str, bytes] = {}
    places: list[Place] = []
    for number, group in enumerate(groups, 1):
        file = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        headers[file] = header_bytes([(name, "BF16", list(shape)) for name, shape in group], {"format": "pt"})
        offset = len(headers[file])
        for name, shape in group:
            places.append(Place(len(places), name, shape, file, offset))
            offset += 2 * places[-1].units
    return headers, places


def _first(place: Place) -> Bits:
    if place.name.endswith("norm.weight"):
        return np.full(place.units, 0x3F80, np.uint16)
    random = np.random.default_rng(place.seed)
    bits = np.empty(place.units, np.uint16)
    for at in range(0, place.units, 1 << 20):
        values = random.standard_normal(min(1 << 20, place.units - at), np.float32) * np.float32(DEVIATION)
        bits[at : at + values.size] = (values.view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)
    return bits


def _moved(place: Place, previous: Path, step: int) -> Bits:
    bits = np.fromfile(previous / place.file, np.uint16, place.units, offset=place.offset)
    seeds = np.random.default_rng((place.seed, step)).integers(1, 1 << 63, dtype=np.uint64)
    _move(bits, _chances(), seeds)
    return bits


def _chances() -> NDArray[np.uint64]:
    """Chance of a change by the exponent's bits, in units of 2^-32."""
    spacing = np.exp2(np.clip(np.arange(256, dtype=np.float64), 1, 254) - 127 - 7)
    return np.minimum(LEARNING_RATE / spacing * 2.0**32, 2.0**32).astype(np.uint64)


@nb.njit(nogil=True)
def _move(bits: Any, chances: Any, seed: Any) -> None:
    state = seed
    for i in range(bits.size):
        state ^= state >> np.uint64(12)
        state ^= state << np.uint64(25)
        state ^= state >> np.uint64(27)
        drawn = state * np.uint64(0x2545F4914F6CDD1D)
        old = bits[i]
        if drawn >> np.uint64(32) < chances[(old >> np.uint16(7)) & np.uint16(0xFF)] and old & np.uint16(0x7FFF):
            bits[i] = old + np.uint16(1) if drawn & np.uint64(1) else old - np.uint16(1)


def _write_at(path: Path, bits: Bits, offset: int) -> None:
    with path.open("r+b", buffering=0) as file:
        for piece in _pieces(bits):
            os.pwrite(file.fileno(), piece, offset)
            offset += len(piece)


def _pieces(bits: Bits) -> Iterator[memoryview]:
    view = bits.view(np.uint8).data
    for at in range(0, len(view), 8 << 20):
        yield view[at : at + (8 << 20)]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
