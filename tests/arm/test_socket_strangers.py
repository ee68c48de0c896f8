"""Who may connect to the agent's socket, and what becomes of whoever says something else than the protocol has."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from syncline.errors import EngineUnavailable, ProtocolViolation
from syncline_agent.arm import framing, messages
from syncline_agent.arm.channel import Channel
from syncline_agent.arm.server import GREETED_AT_ONCE, ArmServer
from syncline_agent.engine import StageRequest
from syncline_agent.testing.islands import HELLO, WholeRank, described_version, wait_until

Ask = Callable[..., StageRequest]


def test_socket_and_token_are_not_for_everybody(server: ArmServer, node: Path) -> None:
    assert 0o660 == stat.S_IMODE((node / "arm.sock").stat().st_mode)
    assert 0 == stat.S_IMODE((node / "arm.token").stat().st_mode) & 0o137
    assert 64 == len((node / "arm.token").read_text().strip())


def test_a_wrong_token_is_refused_and_the_right_one_welcome_later(
    server: ArmServer, node: Path, connect: Callable[..., WholeRank]
) -> None:
    token = (node / "arm.token").read_text()
    (node / "arm.token").write_text("wrong\n")
    rank = connect()
    wait_until(lambda: rank.client.refused)
    assert "wrong token" in rank.client.connection
    with pytest.raises(EngineUnavailable):
        server.describe()
    (node / "arm.token").write_text(token)
    assert server.wait_connected(10)
    wait_until(lambda: rank.client.connection == "connected")


def test_a_user_who_is_not_allowed_is_refused(node: Path, connect: Callable[..., WholeRank]) -> None:
    with ArmServer(node / "arm.sock", allowed_uids=[os.geteuid() + 1]):
        rank = connect()
        wait_until(lambda: rank.client.refused)
        assert f"user {os.geteuid()} may not connect" in rank.client.connection


def test_an_arm_that_comes_again_and_again_is_said_once_a_reason(node: Path, connect: Callable[..., WholeRank]) -> None:
    tries: list[object] = []
    with capture_logs() as lines, ArmServer(node / "arm.sock", pool="other") as server:
        greet = server._greet
        server._greet = lambda channel: (tries.append(channel), greet(channel))[1]  # pyright: ignore[reportAttributeAccessIssue]
        connect()
        wait_until(lambda: len(tries) >= 4)
        (node / "arm.token").write_text("wrong\n")
        wait_until(lambda: "wrong token" in lines[-1].get("reason", ""))
    turned_away = [line["reason"] for line in lines if line["event"] == "arm turned away"]
    assert [
        "this agent serves pool other, pod is of pool pool; give the agent --pool pool, or the engine pool other "
        "(SYNCLINE_POOL; --pool of the reference engine)"
    ] == turned_away[:1]
    assert 2 == len(turned_away)


@pytest.mark.parametrize("left", [b"", b"\n"])
def test_a_token_file_without_a_token_lets_nobody_in(
    node: Path, connect: Callable[..., WholeRank], left: bytes
) -> None:
    (node / "arm.token").write_bytes(left)
    with ArmServer(node / "arm.sock") as server:
        token = (node / "arm.token").read_text().strip()
        assert 64 == len(token)
        connect()
        assert server.wait_connected(5)  # who can read the new one is let in


def test_a_token_file_of_garbage_is_refused_by_name_when_the_agent_starts(node: Path) -> None:
    (node / "arm.token").write_bytes(b"\xff\xfe")
    with pytest.raises(ProtocolViolation, match=r"arm\.token holds no token"):
        ArmServer(node / "arm.sock").start()


def test_an_arm_of_another_pool_or_pod_is_refused_by_name(node: Path, connect: Callable[..., WholeRank]) -> None:
    with ArmServer(node / "arm.sock", pool="other") as server:
        rank = connect()
        wait_until(lambda: rank.client.refused)
        with pytest.raises(EngineUnavailable, match="the last arm was turned away: this agent serves pool other"):
            server.describe()
        assert "serves pool other" in rank.client.connection
        rank.client.stop()
    with ArmServer(node / "arm.sock", pool="pool") as server:
        connect(pod="first")
        assert server.wait_connected(10)
        second = connect(pod="second")
        wait_until(lambda: second.client.refused)
        assert "second" in second.client.connection
        assert "first" == server.describe().pod


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (framing.LENGTH.pack(2) + b"{}", "not a message"),
        (framing.LENGTH.pack(1 << 30), "beyond"),
        (framing.encode(messages.Done(id=1)), "not a hello"),
        (framing.LENGTH.pack(32) + b'{"type": "hello", "protocol": 9}', "speaks protocol 9"),
        (framing.LENGTH.pack(50) + b'{"type": "hello", "protocol": 1, "holds": "whole"}', "speaks protocol 1"),
        (framing.encode(HELLO.model_copy(update={"protocol": 2})), "speaks protocol 2"),
    ],
    ids=["no message", "too long", "no hello", "a later protocol", "an earlier protocol", "one that looks alike"],
)
def test_whoever_does_not_say_hello_properly_is_refused_in_words(
    server: ArmServer, node: Path, first: bytes, says: str
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(node / "arm.sock"))
        stranger.sendall(first)
        answer = Channel(stranger).receive(timeout_s=5)
    assert isinstance(answer, messages.Refused)
    assert says in answer.message


def test_connections_that_say_nothing_are_bounded_and_keep_nobody_out_for_long(
    server: ArmServer, node: Path, connect: Callable[..., WholeRank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline_agent.arm.server.HANDSHAKE_TIMEOUT_S", 60.0)  # of a machine that is busy
    with ExitStack() as held:
        silent = [held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in range(GREETED_AT_ONCE)]
        for one in silent:
            one.connect(str(node / "arm.sock"))
        rank = connect()
        wait_until(lambda: rank.client.connection != "connecting")
        assert "refused: 64 connections have not said hello yet; come again" == rank.client.connection
        with pytest.raises(EngineUnavailable, match="64 connections have not said hello yet"):
            server.describe()
        silent[0].close()
        assert server.wait_connected(10)


def test_a_peer_that_answers_and_hangs_up_without_reading_is_heard() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(framing.encode(messages.Refused(message="too many")))
    theirs.close()
    assert messages.Refused(message="too many") == Channel(ours).greet(HELLO, timeout_s=5)
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(EngineUnavailable, match="sending hello failed"):
        Channel(ours).greet(HELLO, timeout_s=5)


BAND = messages.BandPart(tensor="a.weight", axis=0, low=0, high=7, digest="ef" * 16)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rank": 2, "ranks": 2}, "rank 2 of 2 cannot be"),
        ({"rank": None, "gate": False}, "must be a gate and hold nothing"),
        ({"rank": None, "holds": [BAND]}, "must be a gate and hold nothing"),
        ({"holds": [BAND, BAND]}, "names a.weight, indices 0 to 6 of axis 0 twice"),
        ({"holds": [BAND.model_copy(update={"low": 7})]}, "holds nothing of a.weight"),
        ({"holds": [BAND, BAND.model_copy(update={"low": 6, "high": 9})]}, "neither the same nor apart"),
        ({"holds": [BAND, BAND.model_copy(update={"axis": 1, "low": 90, "high": 99})]}, "neither the same nor apart"),
    ],
)
def test_an_arm_that_cannot_be_served_is_refused_by_name(
    server: ArmServer, node: Path, change: dict[str, object], says: str
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(node / "arm.sock"))
        channel = Channel(stranger)
        channel.send(HELLO.model_copy(update={"token": (node / "arm.token").read_text().strip()} | change))
        answer = channel.receive(timeout_s=5)
    assert isinstance(answer, messages.Refused)
    assert says in answer.message


@pytest.mark.parametrize(
    "later",
    [
        messages.Done(id=12345),
        HELLO,
        messages.Sweep(id=1),
        messages.Refused(message="no"),
    ],
    ids=lambda m: m.type,
)
def test_an_arm_that_breaks_the_protocol_later_is_disconnected(
    server: ArmServer, node: Path, later: messages.Message
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(node / "arm.sock"))
        channel = Channel(stranger)
        channel.send(HELLO.model_copy(update={"token": (node / "arm.token").read_text().strip()}))
        assert isinstance(channel.receive(timeout_s=5), messages.Welcome)
        assert server.wait_connected(5)
        channel.send(later)
        with pytest.raises(EngineUnavailable):
            channel.receive(timeout_s=5)
        wait_until(lambda: not server.wait_connected(0))


STAGED = messages.Staged(id=1, target=2, changed=1, staged_bytes=1, seconds=0.0, digests=[])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (messages.Done(id=1), "rank 0 of o answered done, not Staged"),
        (messages.Held(id=1, spans={}, ended=[]), "rank 0 of o answered held, not Staged"),
        (STAGED, "rank 0 told 0 digests of the 1 bands that it holds"),
        (STAGED.model_copy(update={"digests": ["ef" * 16] * 2}), "rank 0 told 2 digests of the 1 bands"),
        (STAGED.model_copy(update={"digests": None}), "rank 0 told 0 digests of the 1 bands"),
        (STAGED.model_copy(update={"target": 3}), "rank 0 of o staged version 3, not 2"),
    ],
    ids=["done", "held", "too few", "too many", "none", "another"],
)
def test_an_answer_that_fits_no_call_commits_nothing(
    server: ArmServer, node: Path, ask: Ask, answer: messages.Answer, says: str
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger, ThreadPoolExecutor(1) as agent:
        stranger.connect(str(node / "arm.sock"))
        channel = Channel(stranger)
        token = (node / "arm.token").read_text().strip()
        channel.send(HELLO.model_copy(update={"token": token, "holds": [BAND]}))
        assert isinstance(channel.receive(timeout_s=5), messages.Welcome)
        assert server.wait_connected(5)
        staging = agent.submit(server.stage, ask(1, 2))
        call = channel.receive(timeout_s=5)
        assert isinstance(call, messages.Stage)
        channel.send(answer.model_copy(update={"id": call.id}))
        if answer.type == "staged":
            dropped = channel.receive(timeout_s=5)
            assert isinstance(dropped, messages.Discard)
            channel.send(messages.Done(id=dropped.id))
        with pytest.raises(ProtocolViolation, match=says):
            staging.result(10)


def test_a_stranger_who_says_hello_a_byte_at_a_time_is_turned_away_in_time() -> None:
    ended = threading.Event()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.sendall(framing.LENGTH.pack(200))

    def trickle() -> None:
        for _ in range(100):
            if ended.wait(0.05):
                return
            theirs.send(b"{")

    talker = threading.Thread(target=trickle)
    talker.start()
    try:
        with ours, pytest.raises(EngineUnavailable, match="silent"):
            Channel(ours).receive(timeout_s=0.3)
        assert talker.is_alive()
    finally:
        ended.set()
        talker.join(10)
        theirs.close()


def test_an_agent_that_once_cannot_accept_goes_on_accepting(
    server: ArmServer, connect: Callable[..., WholeRank]
) -> None:
    listening = server._listening
    assert listening is not None
    failures: list[int] = []

    class Exhausted:
        """A listening socket for whose first connection the process had no descriptor left."""

        def accept(self) -> tuple[socket.socket, object]:
            if len(failures) < 2:
                failures.append(errno.EMFILE)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return listening.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(listening, name)

    server._listening = Exhausted()  # type: ignore[assignment]
    first = connect(pod="pod")  # the call to accept that is under way takes this one
    assert server.wait_connected(10)
    first.client.stop()
    connect(pod="pod", version=2)
    wait_until(lambda: described_version(server) == 2)
    assert [errno.EMFILE] * 2 == failures


def test_a_token_file_of_garbage_does_not_end_the_arm(
    server: ArmServer, node: Path, connect: Callable[..., WholeRank]
) -> None:
    token = (node / "arm.token").read_bytes()
    (node / "arm.token").write_bytes(b"\xff\xfe\x00")
    connect()
    assert not server.wait_connected(0.3)
    (node / "arm.token").write_bytes(token)
    assert server.wait_connected(10)
