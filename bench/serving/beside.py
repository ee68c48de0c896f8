"""`python -m bench.serving.beside`: what else could be done on the engine's GPU with the weights that it served: reload them, probe a
loader's layout, and take the same step as an XOR mask or as a list of places and values.

Each on a model that is loaded here; what is measured on a part of it says so and is scaled by bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from bench.gpu import milliseconds
from bench.serving import shapes
from safetensors import safe_open

from syncline.checkpoint import Checkpoint
from syncline_agent.arm.layout import Layout, shape_of
from syncline_agent.arm.live import LiveWeights
from syncline_agent.arm.probing import probe
from syncline_agent.arm.torch_stores import memory_of_stores
from syncline_agent.reference.config import ModelConfig
from syncline_agent.reference.parameters import Parameters
from syncline_agent.reference.slicing import Parameter, slices
from syncline_agent.reference.weights import read_json

PART_BYTES = 2 << 30
"""Of the weights, for the peers."""
Facts = dict[str, float]


class Model:
    """The reference engine's fused parameters, filled by name as an engine's own loader does."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self._device = device
        self.checkpoint = Checkpoint.open(folder)
        self.table = self.checkpoint.table
        config = ModelConfig.from_hf(read_json(folder / "config.json"))
        self.parameters = Parameters(slices(config, self.table), self.table, device=device)
        self._places: dict[int, list[tuple[Parameter, torch.Tensor, int]]] = {}
        named = zip(self.parameters.slices.parameters.values(), self.parameters.stores, strict=True)
        for parameter, store in named:
            for number, piece in enumerate(parameter.pieces):
                self._places.setdefault(piece.tensor, []).append((parameter, store, number))

    @property
    def size_bytes(self) -> int:
        return self.table.size_bytes

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in tensors:
            index = self.table.index[name]
            spec = self.table.tensors[index]
            units = tensor.view(torch.int16).reshape(shape_of(spec))
            for parameter, store, number in self._places[index]:
                piece = parameter.pieces[number]
                box = units[tuple(slice(low, low + n) for low, n in zip(piece.start, piece.size, strict=True))]
                store[tuple(slice(at, at + n) for at, n in zip(piece.at, piece.size, strict=True))] = box

    def read(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Of the files, which the page cache holds, to the device."""
        for file in sorted(self.folder.glob("*.safetensors")):
            with safe_open(str(file), framework="pt", device=self._device) as opened:
                for name in opened.keys():  # noqa: SIM118  (no mapping)
                    yield name, opened.get_tensor(name)


def took(work: Callable[[], object], device: str) -> float:
    began = monotonic()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return monotonic() - began


def loading(model: Model, device: str) -> Facts:
    """Load, load again, probe; and the weights are proven after all of it."""
    facts = {"load_seconds": took(lambda: model.load(model.read()), device)}
    facts["reload_seconds"] = took(lambda: model.load(model.read()), device)
    named = [(name, model.parameters[name]) for name in model.parameters.slices.parameters]
    began = monotonic()
    probed = probe(model.table, named, model.load)
    facts["probe_seconds"] = monotonic() - began
    if probed.troubles or not Layout.of(model.table, probed.blocks).is_whole:
        raise SystemExit(f"probing did not find the whole layout: {probed.troubles}")
    model.load(model.read())
    marker = model.checkpoint.marker
    assert marker is not None
    tiling = marker.tiling.tiling
    memory = memory_of_stores(model.parameters.layout(), tiling, model.parameters.flat_stores())
    LiveWeights(model.table, tiling, memory).prove(marker.lineage, marker.view, marker.version, marker.digest)
    return facts


def peers(model: Model, *, rate: float) -> Facts:
    """XOR mask and sparse index + value of one step, on a part of the weights, scaled to all of them."""
    flat = torch.cat([store.reshape(-1) for store in _part(model)])
    moved = flat.clone()
    shapes.move({"": moved.view(torch.bfloat16)}, rate=rate, seed=1)
    mask = (flat ^ moved).view(torch.uint8)
    changed = int((flat != moved).sum())
    scale = model.size_bytes / mask.numel()
    facts: Facts = {"part_gb": mask.numel() / 1e9, "share_changed": changed / flat.numel()}
    live = flat.view(torch.int64)
    wide = mask.view(torch.int64)
    facts["xor_ms"] = scale * milliseconds(lambda: live.bitwise_xor_(wide))
    places = torch.nonzero(flat != moved).view(-1)
    values = moved[places]
    facts["sparse_ms"] = scale * milliseconds(lambda: flat.index_copy_(0, places, values))
    facts["sparse_gb"] = scale * changed * (4 + 2) / 1e9
    facts |= {name: value * (scale if name.endswith(("ms", "gb")) else 1) for name, value in _masked(mask).items()}
    return facts


def _part(model: Model) -> list[torch.Tensor]:
    parts: list[torch.Tensor] = []
    for store in model.parameters.stores:
        if sum(part.nbytes for part in parts) < PART_BYTES and store.element_size() == 2 and store.numel() % 4 == 0:
            parts.append(store)
    return parts


def _masked(mask: torch.Tensor) -> Facts:
    try:
        from nvidia import nvcomp  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    except ImportError:
        print("nvCOMP is not installed: no figure of its LZ4", flush=True)
        return {}
    codec = nvcomp.Codec(algorithm="LZ4")
    packed = codec.encode(nvcomp.as_array(mask))
    if not torch.equal(torch.as_tensor(codec.decode(packed), device="cuda").view(torch.uint8).view(-1), mask):
        raise SystemExit("nvCOMP's LZ4 did not bring the mask back")
    return {"lz4_gb": packed.buffer_size / 1e9, "lz4_decode_ms": milliseconds(lambda: codec.decode(packed))}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    model = Model(args.checkpoint, args.device)
    facts: dict[str, Any] = {"loading": loading(model, args.device)}
    args.out.write_text(json.dumps(facts), encoding="utf-8")
    if args.device != "cpu":
        torch.cuda.empty_cache()
        for share, rate in shapes.RATE_OF_SHARE.items():
            facts[f"peers_{share:g}"] = peers(model, rate=rate)
            args.out.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
