"""Packs the two recorded files into this folder, losslessly, in parts small enough for git.

Run once per recording: `python examples/data/grpo-a/pack.py FOLDER`, where FOLDER holds base.safetensors and
steps.safetensors. It writes `base.pack.NN` and `steps.pack.NN` and nothing else; `syncline.testing.grpo_a` is the
reader and README.md the layout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
PART_BYTES = 4 << 20


def main(recorded: Path) -> None:
    base_head, base_entries, base_body = read(recorded / "base.safetensors")
    steps_head, steps_entries, steps_body = read(recorded / "steps.safetensors")

    write("base", base_head + planes(np.frombuffer(base_body, "<u2")))

    order = json.loads(steps_entries["__metadata__"]["order"])
    tensors = [base_body[slice(*base_entries[name]["data_offsets"])] for name, _ in order]
    flat = np.frombuffer(b"".join(tensors), "<u2").copy()
    gaps: list[NDArray[np.uint16]] = []
    flips: list[NDArray[np.uint16]] = []
    for number in range(1, 1 + sum(name.endswith(".index") for name in steps_entries)):
        positions = np.frombuffer(steps_body[slice(*steps_entries[f"step{number:03d}.index"]["data_offsets"])], "<i4")
        bits = np.frombuffer(steps_body[slice(*steps_entries[f"step{number:03d}.bits"]["data_offsets"])], "<u2")
        gap = np.diff(positions, prepend=np.int32(-1)) - 1
        if gap.min() < 0 or gap.max() > 0xFFFF:
            raise SystemExit(f"step {number}: positions must rise, by at most 65536 at a time")
        gaps.append(gap.astype("<u2"))
        flips.append(np.bitwise_xor(flat[positions], bits))
        flat[positions] = bits
    write("steps", steps_head + planes(np.concatenate(gaps)) + planes(np.concatenate(flips)))


def read(path: Path) -> tuple[bytes, dict[str, Any], bytes]:
    """(length prefix and header verbatim, header parsed, data)."""
    raw = path.read_bytes()
    size = 8 + int.from_bytes(raw[:8], "little")
    return raw[:size], json.loads(raw[8:size]), raw[size:]


def planes(units: NDArray[np.uint16]) -> bytes:
    """All low bytes, then all high bytes: exponents lie together and compress, mantissas do not spoil them."""
    return np.ascontiguousarray(units.view(np.uint8).reshape(-1, 2).T).tobytes()


def write(name: str, raw: bytes) -> None:
    for stale in HERE.glob(f"{name}.pack.*"):
        stale.unlink()
    packed = zstandard.ZstdCompressor(level=19).compress(raw)
    for part, start in enumerate(range(0, len(packed), PART_BYTES)):
        (HERE / f"{name}.pack.{part:02d}").write_bytes(packed[start : start + PART_BYTES])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: pack.py FOLDER_WITH_THE_TWO_RECORDED_FILES")
    main(Path(sys.argv[1]))
