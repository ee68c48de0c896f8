"""A reader of the wire format written from FORMAT.md alone, to find what that page leaves open.

It must never import Syncline: an error shared by writer and reader would be invisible to both. This file is sections 1 and 8 (the store,
and a version read from it); the records are in reader_records, the bits in reader_bits, the frames in reader_chunks and reader_context.

    python reader.py <store folder> <run> [--view main] [--version N] [--no-skips] [--audit] [--by-word] [--out file.safetensors]
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3
from reader_bits import U64, Tensor, cut, digest, numpy
from reader_chunks import Frame, chunk, decode
from reader_records import NAME_PATTERN, Refused, canonical, name, need, record


@dataclass(frozen=True, slots=True)
class View:
    """A version's weights, every one of their bits proven."""

    version: int
    digest: str
    path: list[str]
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]]
    aliases: dict[str, list[str]]


class Store:
    """One view of one run in a folder."""

    def __init__(self, folder: Path, run: str, view: str, summed_by_word: bool = numpy is None) -> None:
        self.folder, self.run, self.view, self.summed_by_word = folder, run, view, summed_by_word
        need(name(run) and name(view) and view != "run.json", f"{run}/{view}", "is no run and view")
        header = self.record(f"{run}/run.json", "run", run=run)
        self.lineage, self.tiling = header["lineage"], header["tiling"]
        least, most = self.tiling["min_units"], self.tiling["max_units"]
        need(most == least or most >= 2 * least - 1, f"{run}/run.json", "max_units is too small for min_units")

    def get(self, key: str, size: int | None = None, hashed: str | None = None) -> bytes:
        try:
            data = (self.folder / key).read_bytes()
        except OSError as problem:
            raise Refused(f"{key}: {problem.strerror}") from None
        need(size is None or len(data) == size, key, f"has {len(data)} bytes, not {size}")
        need(hashed is None or blake3(data).hexdigest() == hashed, key, "has another BLAKE3 than the manifest says")
        return data

    def has(self, key: str) -> bool:
        return (self.folder / key).exists()

    def record(self, key: str, kind: str, **expected: Any) -> dict[str, Any]:
        return record(key, self.get(key), kind, **expected)

    def key(self, place: str) -> str:
        return f"{self.run}/{self.view}/{place}"

    def versions(self) -> list[int]:
        return [int(path.stem) for path in self.names("versions") if re.fullmatch(r"[0-9]{12}", path.stem)]

    def vetoed(self, version: int) -> bool:
        """By a veto of its own, or of the version whose weights it has because nothing was changed since."""
        at: int | None = version
        while at is not None:
            if self.marked(at):
                return True
            try:
                found = self.manifest(f"versions/{at:012}.json", "version", at)
            except Refused:
                return False
            at = None if found["chunks"] else found["base"]
        return False

    def marked(self, version: int) -> bool:
        """A veto that cannot be read counts, one of another lineage does not."""
        place = f"vetoes/{version:012}.json"
        if not self.has(self.key(place)):
            return False
        try:
            return self.record(self.key(place), "veto", version=version)["lineage"] == self.lineage
        except Refused:
            return True

    def manifest(self, place: str, kind: str, at: int) -> dict[str, Any]:
        return self.record(self.key(place), kind, run=self.run, view=self.view, version=at, lineage=self.lineage)

    def version(self, at: int) -> dict[str, Any]:
        found = self.manifest(f"versions/{at:012}.json", "version", at)
        if self.has(self.key(f"versions/{at - 1:012}.json")):
            before = self.manifest(f"versions/{at - 1:012}.json", "version", at - 1)
            need(
                found["epoch"] >= before["epoch"],
                self.key(f"versions/{at:012}.json"),
                "epoch is lower than that of the version before",
            )
        return found

    def companion(self, place: str, kind: str, owner: dict[str, Any]) -> dict[str, Any]:
        """An anchor or skip manifest, which names the version manifest it belongs to."""
        found = self.manifest(place, kind, owner["version"])
        need(
            found["manifest"] == blake3(canonical(owner)).hexdigest(),
            self.key(place),
            "belongs to another version manifest",
        )
        need(found["digest"] == owner["digest"], self.key(place), "digest is not the version's")
        if kind == "skip":
            need(found["tensors"] == owner["tensors"], self.key(place), "tensor table is not the version's")
        return found

    def anchor(self, owner: dict[str, Any]) -> dict[str, Any] | None:
        place = f"anchors/{owner['version']:012}/manifest.json"
        if owner["anchor"] is None and not self.has(self.key(place)):
            return None
        return owner["anchor"] or self.companion(place, "anchor", owner)["anchor"]

    def skips(self, owner: dict[str, Any]) -> list[dict[str, Any]]:
        at = owner["version"]
        found = [self.companion(f"skips/{at:012}/{path.name}", "skip", owner) for path in self.names(f"skips/{at:012}")]
        for path, skip in zip(self.names(f"skips/{at:012}"), found, strict=True):
            need(path.stem == f"{skip['base']:012}", self.key(f"skips/{at:012}/{path.name}"), "base is not the key's")
            if self.has(self.key(f"versions/{skip['base']:012}.json")):
                base = self.version(skip["base"])
                need(base["digest"] == skip["base_digest"], str(path), "base_digest is not the base's")
        return sorted(found, key=lambda skip: skip["base"])

    def names(self, place: str) -> list[Path]:
        return sorted((self.folder / self.key(place)).glob("*.json"))

    def table(self, reference: dict[str, Any]) -> tuple[list[Tensor], dict[str, list[str]]]:
        key = self.key(f"chunks/{reference['blake3']}")
        entries = record(key, self.get(key, reference["size"], reference["blake3"]), "tensors")["tensors"]
        names = [entry["name"] for entry in entries]
        need(names == sorted(names), key, "tensors are not sorted")
        need(all(entry["aliases"] == sorted(entry["aliases"]) for entry in entries), key, "aliases are not sorted")
        every = names + [alias for entry in entries for alias in entry["aliases"]]
        need(len(every) == len(set(every)), key, "a name occurs twice")
        return [cut(key, entry, self.tiling) for entry in entries], {
            entry["name"]: entry["aliases"] for entry in entries
        }

    def anchored(self, at: int, body: dict[str, Any], tensors: list[Tensor]) -> list[bytearray]:
        """The whole weights from an anchor's safetensors files, in table order."""
        found: dict[str, bytearray] = {}
        wanted = {tensor.name: tensor for tensor in tensors}
        for file in body["files"]:
            key = self.key(f"anchors/{at:012}/{body['nonce']}/{file['name']}")
            data = self.get(key, file["size"], file["blake3"])
            if not file["name"].endswith(".safetensors"):
                continue
            start = 8 + struct.unpack_from("<Q", data)[0]
            for tensor_name, entry in json.loads(data[8:start]).items():
                if tensor_name == "__metadata__":
                    continue
                need(
                    tensor_name in wanted and tensor_name not in found,
                    key,
                    f"{tensor_name} is no tensor of the table, or stands twice",
                )
                tensor, (low, high) = wanted[tensor_name], entry["data_offsets"]
                same = (entry["dtype"], tuple(entry["shape"])) == (tensor.dtype, tensor.shape)
                found[tensor_name] = bytearray(data[start + low : start + high])
                need(
                    same and len(found[tensor_name]) == tensor.units * tensor.width,
                    key,
                    f"{tensor_name} is not as the table says",
                )
        need(found.keys() == wanted.keys(), self.key(f"anchors/{at:012}/{body['nonce']}"), "lacks tensors of the table")
        return [found[tensor.name] for tensor in tensors]

    def frames(self, owner: dict[str, Any], tensors: list[Tensor]) -> Iterator[tuple[str, Frame]]:
        seen: set[tuple[int, int]] = set()
        for reference in owner["chunks"]:
            key = self.key(f"chunks/{reference['blake3']}")
            places: set[int] = set()
            for frame in chunk(key, self.get(key, reference["size"], reference["blake3"])):
                need(frame.tensor < len(tensors), key, f"no tensor {frame.tensor}")
                tensor = tensors[frame.tensor]
                need(frame.index < tensor.bands * tensor.pieces, key, f"{tensor.name} has no frame {frame.index}")
                need(
                    (frame.tensor, frame.index) not in seen,
                    key,
                    f"frame {frame.index} of {tensor.name} stands twice in the delta",
                )
                seen.add((frame.tensor, frame.index))
                places.add(frame.tensor)
                yield key, frame
            bounds = (reference["first_tensor"], reference["last_tensor"])
            need(
                bool(places) and bounds == (min(places), max(places)),
                key,
                "first_tensor or last_tensor is not the chunk's",
            )

    def apply(self, owner: dict[str, Any], tensors: list[Tensor], weights: list[bytearray]) -> None:
        for key, frame in self.frames(owner, tensors):
            tensor, held = tensors[frame.tensor], weights[frame.tensor]
            base, stride, length = (number * tensor.width for number in tensor.frame(frame.index))
            runs = [slice(base + turn * stride, base + turn * stride + length) for turn in range(tensor.outer)]
            new = decode(key, frame, b"".join(held[run] for run in runs), tensor.dtype)
            for turn, run in enumerate(runs):
                held[run] = new[turn * length : (turn + 1) * length]

    def check(self, owner: dict[str, Any], tensors: list[Tensor], weights: list[bytearray]) -> None:
        key = self.key(f"versions/{owner['version']:012}.json")
        lanes = [digest(t.name, data, t.width, self.summed_by_word) for t, data in zip(tensors, weights, strict=True)]
        told = base64.b64decode(owner["tensor_digests"], validate=True)
        need(
            base64.b64encode(told).decode() == owner["tensor_digests"] and len(told) == 16 * len(tensors),
            key,
            "tensor_digests",
        )
        for place, (tensor, lane) in enumerate(zip(tensors, lanes, strict=True)):
            need(struct.pack("<2Q", *lane) == told[16 * place : 16 * place + 16], key, f"digest of {tensor.name}")
        total = struct.pack("<2Q", *(sum(lane[side] for lane in lanes) & U64 for side in (0, 1)))
        need(total.hex() == owner["digest"], key, "view digest")

    def read(self, at: int | None = None, use_skips: bool = True) -> View:
        """Version `at`, or the newest that no veto names."""
        if at is None:
            allowed = [version for version in self.versions() if not self.vetoed(version)]
            need(bool(allowed), self.key("versions/"), "no version that is not vetoed")
            at = allowed[-1]
        goal = step = self.version(at)
        deltas: list[dict[str, Any]] = []
        while (body := self.anchor(step)) is None or (step is not goal and self.vetoed(step["version"])):
            key = self.key(f"versions/{step['version']:012}.json")
            deltas.append(([*self.skips(step), step] if use_skips else [step])[0])
            need(deltas[-1]["base"] is not None, key, "is vetoed, and no delta leads to it")
            base = self.version(deltas[-1]["base"])
            need(base["tensors"] == step["tensors"], key, "base has another tensor table")
            need(base["epoch"] <= step["epoch"], key, "epoch is lower than that of the base")
            step = base
        tensors, aliases = self.table(goal["tensors"])
        weights = self.anchored(step["version"], body, tensors)
        path = [f"anchor {step['version']}"]
        for delta in reversed(deltas):
            self.apply(delta, tensors, weights)
            path.append(f"{'skip ' if delta['kind'] == 'skip' else ''}delta {delta['base']} to {delta['version']}")
        self.check(goal, tensors, weights)
        held = {t.name: (t.dtype, t.shape, bytes(data)) for t, data in zip(tensors, weights, strict=True)}
        return View(goal["version"], goal["digest"], path, held, aliases)

    def audit(self) -> dict[str, int]:
        """Checks every object of the run by its key alone; how many there are of each kind."""
        node, found = f"({NAME_PATTERN})", dict[str, int]()
        kinds = {
            r"versions/([0-9]{12})\.json": "version",
            r"anchors/([0-9]{12})/manifest\.json": "anchor",
            r"anchors/([0-9]{12})/[0-9a-f]{32}/.+": "anchor file",
            r"skips/([0-9]{12})/([0-9]{12})\.json": "skip",
            r"chunks/([0-9a-f]{64})": "chunk",
            r"head": "head",
            r"vetoes/([0-9]{12})\.json": "veto",
            rf"consumers/{node}/{node}/{node}/{node}\.json": "consumer",
            rf"leases/{node}\.json": "lease",
            r"clock": "clock",
        }
        root = self.folder / self.run / self.view
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            place = path.relative_to(root).as_posix()
            kind, match = next(
                ((kind, m) for pattern, kind in kinds.items() if (m := re.fullmatch(pattern, place))), (None, None)
            )
            if kind is None or match is None:
                raise Refused(f"{self.key(place)}: no key of this format")
            found[kind] = found.get(kind, 0) + 1
            if kind in ("version", "anchor", "skip"):
                self.manifest(place, kind, int(match[1]))
            elif kind == "veto":
                self.record(self.key(place), kind, version=int(match[1]), lineage=self.lineage)
            elif kind == "consumer":
                cluster, namespace, pool, node_name = place.removesuffix(".json").split("/")[1:]
                self.record(
                    self.key(place),
                    kind,
                    lineage=self.lineage,
                    cluster=cluster,
                    namespace=namespace,
                    pool=pool,
                    node=node_name,
                )
            elif kind in ("head", "lease"):
                self.record(self.key(place), kind, lineage=self.lineage)
            elif kind == "chunk":
                self.get(self.key(place), hashed=match[1])
        return found


def safetensors(view: View) -> bytes:
    header: dict[str, Any] = {}
    at = 0
    for tensor_name, (dtype, shape, data) in view.tensors.items():
        header[tensor_name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at := at + len(data)]}
    front = json.dumps(header).encode()
    front += b" " * (-len(front) % 8)
    return struct.pack("<Q", len(front)) + front + b"".join(data for _, _, data in view.tensors.values())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("run")
    parser.add_argument("--view", default="main")
    parser.add_argument("--version", type=int)
    parser.add_argument("--no-skips", action="store_true", help="apply every delta")
    parser.add_argument("--audit", action="store_true", help="also check every other object of the view")
    parser.add_argument("--by-word", action="store_true", help="sum digests without numpy")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    try:
        store = Store(options.store, options.run, options.view, options.by_word or numpy is None)
        objects = store.audit() if options.audit else {}
        view = store.read(options.version, not options.no_skips)
    except Refused as problem:
        print(f"refused: {problem}", file=sys.stderr)
        return 1
    if options.out is not None:
        options.out.write_bytes(safetensors(view))
    told = {
        "version": view.version,
        "digest": view.digest,
        "path": view.path,
        "aliases": view.aliases,
        "objects": objects,
    }
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
