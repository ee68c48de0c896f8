"""An anchor through a real SeaweedFS: written and materialized, each beside a bare transfer of the same bytes.

Bare means the same store adapter, the same number of streams and the same kind of preallocated files, and nothing else:
no hash, no digest, no sync. A bare read that is synced stands beside it, because a checkpoint must survive a power
loss and an unsynced file only says how fast memory is. Both kinds take turns; the best of the repetitions counts.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import local
from time import perf_counter

from bench.model import BenchModel
from bench.results import save, variant

from syncline.chain import ChainReader
from syncline.checkpoint import materialize
from syncline.checkpoint.download import PART_BYTES, STREAMS
from syncline.store.base import WeightStore
from syncline.store.keys import RunKeys
from syncline.store.open import open_store
from syncline.testing.seaweed import start_seaweed
from syncline.wire.records import AnchorBody
from syncline_distributor import Publisher
from syncline_distributor.bases import DiskBase
from syncline_distributor.folder_weights import FolderWeights
from syncline_distributor.settings import PublishSettings
from syncline_distributor.whole import BodyWriter

RUN = "bench"
TARGET = 0.8
Seconds = dict[str, list[float]]


def main(arguments: Sequence[str] = ()) -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(prog="python -m bench anchor", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument(
        "--shard-gigabytes", type=float, default=4.0, help="files of the anchor (the default's default)"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to work; about seven times the model's size")
    given = parser.parse_args(arguments)
    shard_bytes = int(given.shard_gigabytes * 1e9)
    with TemporaryDirectory(prefix="syncline-anchor-", dir=given.folder) as name:
        root = Path(name)
        seaweed = start_seaweed(root / "seaweed")
        try:
            store = open_store(seaweed.url, environ=seaweed.environ)
            model = BenchModel(given.gigabytes, shard_bytes=shard_bytes)
            model.write(root / "checkpoint", step=1)
            seconds: Seconds = {}
            _measure_writes(store, root, shard_bytes, given.repeats, seconds)
            _measure_reads(store, root, shard_bytes, given.repeats, seconds)
        finally:
            seaweed.stop()
    save(
        "anchor",
        _table(model, seconds),
        {"seconds": seconds, "bytes": model.size_bytes},
        unlike=variant(parser, given, beside=["folder"]),
    )


def _measure_writes(store: WeightStore, root: Path, shard_bytes: int, repeats: int, seconds: Seconds) -> None:
    keys = RunKeys(RUN).view()
    for repeat in range(repeats):

        def anchor(nonce: str = f"{repeat:032x}") -> None:
            with FolderWeights(root / "checkpoint") as weights:
                writer = BodyWriter(store, keys, spool=root, max_shard_bytes=shard_bytes)
                writer.write(1, nonce, table=weights.table, read=weights.units, files={})

        def bare(folder: str = f"bare-{repeat}") -> None:
            for file in (root / "checkpoint").glob("*.safetensors"):
                store.put_large(f"{folder}/{file.name}", file)

        for name, work in (("anchor written", anchor), ("bare parallel upload", bare)):
            _timed(seconds, name, work)
            for info in list(store.list_after("")):
                store.delete(info.key)


def _measure_reads(store: WeightStore, root: Path, shard_bytes: int, repeats: int, seconds: Seconds) -> None:
    publisher = Publisher(
        store, RUN, settings=PublishSettings(max_shard_bytes=shard_bytes), base=DiskBase(root / "state")
    )
    manifest = publisher.publish(root / "checkpoint").manifest
    publisher.close()
    shutil.rmtree(root / "state")
    shutil.rmtree(root / "checkpoint")
    assert manifest.anchor is not None
    body, reader = manifest.anchor, ChainReader(store, RUN)
    keys = {file.name: reader.keys.anchor_file(manifest.version, body.nonce, file.name) for file in body.files}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        for _ in range(repeats):
            _timed_download(seconds, store, keys, body, root / "bare")
            phases: dict[str, float] = {}

            def tell(phase: str, done: int, total: int, seen: dict[str, float] = phases) -> None:
                del done, total
                seen.setdefault(phase, perf_counter())

            _timed(seconds, "materialized", lambda tell=tell: materialize(
                reader, manifest.version, root / "node", executor=executor, progress=tell
            ))  # fmt: skip
            seconds.setdefault("downloaded, verified and synced", []).append(phases["prove"] - phases["fetch"])
            shutil.rmtree(root / "node")


def _timed_download(seconds: Seconds, store: WeightStore, keys: dict[str, str], body: AnchorBody, folder: Path) -> None:
    folder.mkdir()
    _timed(seconds, "bare parallel read", lambda: _download(store, keys, body, folder))
    start = perf_counter()
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    seconds.setdefault("bare parallel read, synced", []).append(
        seconds["bare parallel read"][-1] + perf_counter() - start
    )
    shutil.rmtree(folder)


def _download(store: WeightStore, keys: dict[str, str], body: AnchorBody, folder: Path) -> None:
    scratch = local()

    def part(key: str, descriptor: int, offset: int, size: int) -> None:
        if not hasattr(scratch, "buffer"):
            scratch.buffer = bytearray(PART_BYTES)
        view = memoryview(scratch.buffer)[:size]
        store.get_range_into(key, offset, view)
        os.pwrite(descriptor, view, offset)

    descriptors: list[int] = []
    with ThreadPoolExecutor(STREAMS) as pool:
        parts = []
        for file in body.files:
            descriptor = os.open(folder / file.name, os.O_RDWR | os.O_CREAT)
            descriptors.append(descriptor)
            os.posix_fallocate(descriptor, 0, file.size)
            for offset in range(0, file.size, PART_BYTES):
                size = min(PART_BYTES, file.size - offset)
                parts.append(pool.submit(part, keys[file.name], descriptor, offset, size))
        for done in parts:
            done.result()
    for descriptor in descriptors:
        os.close(descriptor)


def _timed(seconds: Seconds, name: str, work: Callable[[], object]) -> None:
    os.sync()  # what was written before must not be paid for here
    start = perf_counter()
    work()
    seconds.setdefault(name, []).append(perf_counter() - start)


def _table(model: BenchModel, seconds: Seconds) -> str:
    best = {name: min(values) for name, values in seconds.items()}
    gigabytes = model.size_bytes / 1e9
    lines = [
        f"{gigabytes:.2f} GB of BF16 through SeaweedFS on loopback, {STREAMS} streams, best of "
        f"{len(seconds['materialized'])}; shares are of the bare transfer's speed",
        "",
        f"{'':36}{'s':>9}{'GB/s':>8}{'bare':>8}{'synced':>8}  target (bare)",
    ]
    read, synced, upload = (
        best[name] for name in ("bare parallel read", "bare parallel read, synced", "bare parallel upload")
    )

    def row(name: str, floor: float | None, durable: float | None, *, bound: bool = False) -> None:
        took = best[name]
        shares = "".join(f"{'' if f is None else format(f / took, '.2f'):>8}" for f in (floor, durable))
        verdict = ""
        if bound and floor is not None:
            verdict = f"  >= {TARGET:g} {'met' if floor / took >= TARGET else 'MISSED'}"
        lines.append(f"{name:36}{took:9.3f}{gigabytes / took:8.2f}{shares}{verdict}")

    row("bare parallel upload", None, None)
    row("anchor written", upload, None, bound=True)
    row("bare parallel read", None, None)
    row("bare parallel read, synced", read, None)
    row("downloaded, verified and synced", read, synced, bound=True)
    row("materialized", read, synced)
    return "\n".join(lines)
