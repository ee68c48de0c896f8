"""Real engine processes given what they cannot take: each says so by name, serves on, and is whole when it is mended."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syncline.errors import EngineUnavailable
from syncline.versions import Policy
from syncline.wire.records import TilingPart
from syncline_agent.arm import messages
from syncline_agent.arm.channel import Channel
from syncline_agent.arm.server import ArmServer
from syncline_agent.reference.config import ModelConfig
from syncline_agent.testing.plain_model import model

Start = Callable[..., Any]
pytestmark = pytest.mark.timeout(300)  # processes that load torch, on a machine that others load
ROOM = 1 << 20


def version_of(engine: Any) -> int:
    choice = engine.complete(prompt=[1, 4, 14], max_tokens=2)["choices"][0]
    return choice["weight_version"]["end"]


def data_bytes(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmData:")]
    return int(line.split()[1]) << 10


def processes_of(pid: int) -> list[int]:
    """An engine's, its first rank's first."""
    lists = [task / "children" for task in Path(f"/proc/{pid}/task").iterdir()]
    return [pid, *sorted(int(child) for of_thread in lists for child in of_thread.read_text().split())]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stage_that_finds_no_host_memory_is_refused_before_any_write_and_works_when_there_is_some(
    node_of: Callable[..., Any], start_engine: Start, ranks: int
) -> None:
    wide = ModelConfig(
        vocab=1 << 17, hidden=32, intermediate=64, layers=1, heads=2, kv_heads=2, head_dim=16, max_positions=64
    )
    node = node_of(model(wide), tiling=TilingPart(min_units=1 << 15, max_units=1 << 20, ways=4))
    with ArmServer(node.socket) as agent:
        engine = start_engine("--tp", str(ranks), node=node)
        request, pid = node.request(1, 3), processes_of(engine.process.pid)[-1]
        whole = resource.prlimit(pid, resource.RLIMIT_DATA)
        resource.prlimit(pid, resource.RLIMIT_DATA, (data_bytes(pid) + ROOM, whole[1]))
        with pytest.raises(EngineUnavailable, match=r"no host memory for the changes.*nothing was written"):
            agent.stage(request)
        resource.prlimit(pid, resource.RLIMIT_DATA, whole)
        assert 1 == version_of(engine)
        assert agent.sweep().proven
        agent.stage(request)
        assert 3 == agent.commit(3, Policy.KEEP).version
        assert (3, node.run.digest(3), True) == tuple(
            getattr(agent.sweep(), field) for field in ("version", "digest", "proven")
        )
        assert 3 == version_of(engine)


class OtherRelease:
    """An agent's end of the socket that gives every hello the same answer."""

    def __init__(self, path: Path, answer: messages.Message) -> None:
        path.unlink(missing_ok=True)
        self._answer = answer
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            with connected:
                channel = Channel(connected)
                assert isinstance(channel.receive(timeout_s=10), messages.Hello)
                channel.send(self._answer)

    def stop(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


OURS = messages.PROTOCOL
LATER = {
    f"refused: the peer speaks protocol {OURS}, this side {OURS + 1}": messages.Refused(
        message=f"the peer speaks protocol {OURS}, this side {OURS + 1}"
    ),
    f"refused: the agent speaks protocol {OURS + 1}, this side {OURS}; run agent and engine of one release": (
        messages.Welcome(protocol=OURS + 1)
    ),
}
"""What agents of a later release answer, by what an engine says of it."""


def test_an_agent_of_another_protocol_is_named_and_one_of_this_protocol_is_followed(
    tiny: Any, start_engine: Start
) -> None:
    engine = start_engine(ready=False)
    for said, answer in LATER.items():
        other = OtherRelease(tiny.socket, answer)
        try:
            wait_until(lambda said=said: said == engine.http.get("/readyz").json()["reason"])
            assert 503 == engine.http.get("/readyz").status_code
        finally:
            other.stop()
    tiny.socket.unlink()
    with ArmServer(tiny.socket) as agent:
        assert agent.wait_connected(30)
        engine.wait_ready()
        agent.stage(tiny.request(1, 2))
        assert 2 == agent.commit(2, Policy.KEEP).version
        assert 2 == version_of(engine)


def wait_until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1200):
        if true():
            return
        pause.wait(0.05)
    raise AssertionError("not within 60 s")
