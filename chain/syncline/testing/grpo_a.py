"""Sixteen real GRPO steps: the weights that an engine would serve before step 1 and after each step, exact to the bit.

Reads the pack in examples/data/grpo-a (its README says what was trained and how the pack is laid out). It never writes
there and never changes an array that it gave out. The pack ships with the source tree, not with the wheel: tests,
benchmarks and the demo run from a checkout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from syncline.errors import NotFound

STEPS: Final = 16
FOLDER: Final = Path(__file__).resolve().parents[3] / "examples" / "data" / "grpo-a"

Bits = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Step:
    """What one optimizer step changed: rising positions in the concatenation of all tensors, and the new bits there."""

    number: int
    positions: NDArray[np.int32]
    bits: Bits


def order() -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes in the order in which a step's positions count them (the model's own, not the file's)."""
    entries = json.loads(_header(_unpack("steps"))["__metadata__"]["order"])
    return {name: tuple(shape) for name, shape in entries}


def base() -> dict[str, Bits]:
    """The BF16 view before step 1, as bits, in the order of `base.safetensors`."""
    raw = _unpack("base")
    body = _join_planes(raw[_header_size(raw) :])
    return {
        name: body[entry["data_offsets"][0] // 2 : entry["data_offsets"][1] // 2].reshape(entry["shape"])
        for name, entry in _tensors(raw).items()
    }


def changes() -> Iterator[Step]:
    """Each step as it was recorded."""
    flat = _concatenate(base())
    for number, positions, flips in _recorded():
        flat[positions] ^= flips
        yield Step(number, positions, flat[positions])


def steps() -> Iterator[dict[str, Bits]]:
    """The whole view after each step, in the order of `base()`; every one is memory of its own (11 MB)."""
    names = list(base())
    flat = _concatenate(base())
    for number, positions, flips in _recorded():
        del number
        flat = flat.copy()
        flat[positions] ^= flips
        view = _split(flat)
        yield {name: view[name] for name in names}


def config() -> dict[str, Any]:
    """A Hugging Face Qwen2 config that fits the shapes.

    Assumed, since the data does not say: 8 query and 2 key/value heads of 32 (only their products, 256 and 64, are
    known), the rotary base and the norm's epsilon. Bits, sizes and names do not depend on them.
    """
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 16,
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def write_original_files(folder: Path) -> None:
    """Write `base.safetensors` and `steps.safetensors` byte for byte as they were recorded."""
    raw = _unpack("base")
    size = _header_size(raw)
    (folder / "base.safetensors").write_bytes(raw[:size] + _join_planes(raw[size:]).tobytes())
    raw = _unpack("steps")
    recorded = list(changes())
    columns = [step.positions.tobytes() for step in recorded] + [step.bits.tobytes() for step in recorded]
    (folder / "steps.safetensors").write_bytes(raw[: _header_size(raw)] + b"".join(columns))


def _recorded() -> Iterator[tuple[int, NDArray[np.int32], Bits]]:
    """(step, positions, bits that flip there), decoded from gaps and XOR planes."""
    raw = _unpack("steps")
    entries = _tensors(raw)
    planes = np.frombuffer(raw, np.uint8, offset=_header_size(raw)).reshape(2, -1)
    gaps, flips = _join_planes(planes[0].tobytes()), _join_planes(planes[1].tobytes())
    start = 0
    for number in range(1, STEPS + 1):
        end = start + prod(entries[f"step{number:03d}.index"]["shape"])
        positions = np.cumsum(gaps[start:end].astype(np.int32) + 1, dtype=np.int32) - np.int32(1)
        yield number, positions, flips[start:end]
        start = end


def _concatenate(view: dict[str, Bits]) -> Bits:
    return np.concatenate([view[name].reshape(-1) for name in order()])


def _split(flat: Bits) -> dict[str, Bits]:
    view: dict[str, Bits] = {}
    start = 0
    for name, shape in order().items():
        end = start + prod(shape)
        view[name] = flat[start:end].reshape(shape)
        start = end
    return view


def _join_planes(planes: bytes) -> Bits:
    """Low bytes, then high bytes -> 16-bit little-endian units."""
    return np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(2, -1).T).view("<u2").reshape(-1)


def _tensors(raw: bytes) -> dict[str, Any]:
    return {name: entry for name, entry in _header(raw).items() if name != "__metadata__"}


def _header(raw: bytes) -> dict[str, Any]:
    return json.loads(raw[8 : _header_size(raw)])


def _header_size(raw: bytes) -> int:
    """Length prefix and JSON of a safetensors file; the pack keeps both verbatim."""
    return 8 + int.from_bytes(raw[:8], "little")


def _unpack(name: str) -> bytes:
    parts = sorted(FOLDER.glob(f"{name}.pack.*"))
    if not parts:
        raise NotFound(
            f"no {name}.pack.* in {FOLDER}: the real steps ship with the source tree; run from a checkout of it"
        )
    return zstandard.ZstdDecompressor().decompress(b"".join(part.read_bytes() for part in parts))
