"""A long poll of a real distributor wakes the follower, and so does another target; without them nothing breaks."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import structlog

from syncline.store.open import open_store
from syncline_agent.doorbell import LOOK_SECONDS, TROUBLE_SECONDS, Doorbell, TargetBell
from syncline_agent.driving import Driven
from syncline_distributor import Publisher


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    made = Publisher(open_store(str(tmp_path / "store")), "run")
    made.open()
    yield made
    made.close()


@pytest.fixture
def distributor(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    flags = [
        "--store",
        str(tmp_path / "store"),
        "--run",
        "run",
        "--state-dir",
        str(tmp_path / "state"),
        "--port",
        str(port),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "syncline_distributor", "serve", *flags], stderr=subprocess.DEVNULL
    )
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(30)


def test_a_new_version_rings_while_the_poll_waits(publisher: Publisher, distributor: str) -> None:
    rings: list[int] = []
    bell = Doorbell(distributor, lambda: None, lambda: rings.append(1))
    publisher.publish({"w": np.zeros(8, np.uint16)})
    for _ in range(1000):  # until the service listens
        if bell.tick() == 0.0 and rings:
            break
        threading.Event().wait(0.05)
    assert [1] == rings
    later = threading.Timer(0.5, lambda: publisher.publish({"w": np.ones(8, np.uint16)}))
    later.start()
    assert 0.0 == bell.tick()
    later.join()
    assert [1, 1] == rings


def test_a_distributor_that_is_not_there_costs_a_pause() -> None:
    bell = Doorbell(f"http://127.0.0.1:{free_port()}", lambda: None, lambda: pytest.fail("nothing rang"))
    assert TROUBLE_SECONDS == bell.tick()


def test_a_driven_machine_that_is_woken_ticks_at_once() -> None:
    ticked = threading.Semaphore(0)

    def tick() -> float:
        ticked.release()
        return 3600.0

    machine = Driven("machine", tick, structlog.get_logger())
    machine.start()
    assert ticked.acquire(timeout=10)
    machine.wake()
    assert ticked.acquire(timeout=10)
    machine.stop()
    assert not machine.alive


def test_another_target_rings_once_and_one_that_cannot_be_read_breaks_nothing(tmp_path: Path) -> None:
    path, rings = tmp_path / "target.json", []
    bell = TargetBell(path, lambda: rings.append(path.exists()))

    def looked() -> list[bool]:
        rings.clear()
        assert [LOOK_SECONDS] * 2 == [bell.tick(), bell.tick()]
        return list(rings)

    assert [] == looked()
    path.write_text("one")
    assert [True] == looked()
    path.write_text("two")  # within one tick of the file system's clock, and as long
    assert [True] == looked()
    assert [] == looked()
    path.unlink()
    path.mkdir()
    assert [True] == looked()


def test_an_agent_hears_of_another_target_long_before_it_looks_by_itself(tmp_path: Path) -> None:
    woken = threading.Event()
    path = tmp_path / "target.json"
    machine = Driven("target", TargetBell(path, woken.set).tick, structlog.get_logger())
    machine.start()
    path.write_text("{}")
    assert woken.wait(30)
    machine.stop()
