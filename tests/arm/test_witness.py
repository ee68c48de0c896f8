"""Who must say which version a token came from hears of a commit before any token of its version can leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from syncline.errors import EngineUnavailable, EngineUncertain
from syncline.testing.weight_run import WeightRun
from syncline.versions import Policy
from syncline_agent.arm.client import SETTLE_S
from syncline_agent.arm.server import ArmServer
from syncline_agent.engine import Applied, Crossing, StageRequest
from syncline_agent.testing.islands import TIMES, IslandRank, Islands, ScriptedGate, wait_until


def versions(told: Sequence[Crossing]) -> list[tuple[int | None, int | None]]:
    return [(c.before and c.before.version, c.after and c.after.version) for c in told]


class Gate(ScriptedGate):
    """One request in flight, one that has ended."""

    def ended(self) -> tuple[str, ...]:
        return ("request-9",)


def test_a_commit_and_an_undo_are_told_while_what_they_led_to_is_kept_inside(
    run: WeightRun, node: Path, join: Callable[..., IslandRank], ask: Callable[..., StageRequest]
) -> None:
    gate = Gate()
    told: list[tuple[Crossing, bool]] = []
    with ArmServer(node / "arm.sock", timeouts=TIMES, witness=lambda c: told.append((c, gate.withholds))) as server:
        join(0, 2, gate=gate)
        join(1, 2)
        assert server.wait_connected(10)
        server.stage(ask(1, 2))
        server.commit(2, Policy.KEEP)
        server.undo(1)
        (_, serves), (there, kept), (back, still_kept) = told
        assert not serves
    assert there.before is not None and there.after is not None and back.before is not None and back.after is not None
    assert [(1, 2), (2, 1)] == [(c.before.version, c.after.version) for c in (there, back) if c.before and c.after]
    assert (run.digest(2), True) == (there.after.digest, there.after.proven)
    assert not back.after.proven
    assert ({"request-0": 3}, ["request-9"]) == (there.spans, there.ended)
    assert (True, True) == (kept, still_kept)


def told_of_a_commit_broken_at(
    call: str, why: str, node: Path, join: Callable[..., IslandRank], ask: Callable[..., StageRequest]
) -> list[Crossing]:
    """What was told by the time that the commit of version 2 had failed because the gate broke at `call`."""
    gate = Gate()
    told: list[Crossing] = []

    def breaks() -> None:
        raise EngineUncertain(why)

    with ArmServer(node / "arm.sock", timeouts=TIMES, witness=told.append) as server:
        join(0, 2, gate=gate)
        join(1, 2)
        assert server.wait_connected(10)
        server.stage(ask(1, 2))
        gate.breaks[call] = breaks
        with pytest.raises(EngineUncertain, match=why):
            server.commit(2, Policy.KEEP)
        return list(told)


def test_of_a_commit_that_failed_after_its_first_write_nobody_can_tell_what_came_before(
    node: Path, join: Callable[..., IslandRank], ask: Callable[..., StageRequest]
) -> None:
    _, failed = told_of_a_commit_broken_at("resume", "the loop is gone", node, join, ask)
    assert failed.before is not None
    assert (1, None, None, None) == (failed.before.version, failed.after, failed.spans, failed.ended)


def test_a_commit_that_was_given_up_before_its_first_write_is_none(
    node: Path, join: Callable[..., IslandRank], ask: Callable[..., StageRequest]
) -> None:
    told = told_of_a_commit_broken_at("write", "it does not stand", node, join, ask)
    assert [(None, 1)] == versions(told)


def test_an_engine_that_leaves_and_comes_with_another_version_is_told_before_what_it_keeps_inside_leaves(
    node: Path, islands: Islands
) -> None:
    told: list[Crossing] = []
    with ArmServer(node / "arm.sock", timeouts=TIMES, witness=told.append) as server:
        first = islands.start(2)
        assert server.wait_connected(10)
        assert [(None, 1)] == versions(told)
        for client in (first.client, *(rank.client for rank in first.ranks)):
            client.stop()
        wait_until(lambda: len(told) == 2)
        assert [(1, None)] == versions(told[1:])
        gate = Gate()
        heard: list[int] = []
        gate.breaks["prove"] = lambda: heard.append(len(told))
        islands.join(0, 2, gate=gate, version=2)
        islands.join(1, 2, version=2)
        wait_until(lambda: gate.serves == 2)
        assert ([(None, 2)], [3]) == (versions(told[2:]), heard)
        assert all((None, None) == (crossing.spans, crossing.ended) for crossing in told)


def test_an_engine_says_what_it_holds_only_when_what_an_agent_left_half_way_has_come_to_its_end(
    node: Path, islands: Islands, ask: Callable[..., StageRequest]
) -> None:
    """Else the next agent would name the version before for tokens of the one that is in memory."""
    told: list[Crossing] = []
    reading, read, ended = threading.Event(), threading.Event(), threading.Event()
    gate = Gate()
    rank = islands.join_whole(gate=gate)
    confirm = rank.live.confirm

    def slow(target: int) -> Applied:
        reading.set()
        assert read.wait(60)
        return confirm(target)

    rank.live.confirm = slow  # type: ignore[method-assign]
    server = ArmServer(node / "arm.sock", timeouts=TIMES).start()
    assert server.wait_connected(10)
    server.stage(ask(1, 2))

    def commit() -> None:
        with pytest.raises(EngineUncertain):
            server.commit(2, Policy.KEEP)
        ended.set()

    threading.Thread(target=commit, daemon=True).start()
    assert reading.wait(10)
    server.stop()
    assert ended.wait(10)
    with ArmServer(node / "arm.sock", timeouts=TIMES, witness=told.append) as later:
        assert not later.wait_connected(SETTLE_S + 1)
        read.set()
        assert later.wait_connected(30)
        assert [(None, 2)] == versions(told)


def test_of_an_engine_that_its_agent_gives_up_is_told_before_it_can_know(
    node: Path, islands: Islands, ask: Callable[..., StageRequest]
) -> None:
    told: list[Crossing] = []
    alone: list[bool] = []
    given_up = threading.Event()
    gate = Gate()
    gate.breaks["hold"] = lambda: given_up.wait(10)

    def witness(crossing: Crossing) -> None:
        told.append(crossing)
        alone.append(rank.client.connection != "connected")

    with ArmServer(node / "arm.sock", timeouts=replace(TIMES, ready_s=0.5), witness=witness) as server:
        rank = islands.join_whole(gate=gate)
        assert server.wait_connected(10)
        server.stage(ask(1, 2))
        with pytest.raises(EngineUnavailable, match="no answer"):
            server.commit(2, Policy.KEEP)
        assert ([(None, 1), (1, None)], False) == (versions(told), alone[1])
        given_up.set()
        wait_until(lambda: versions(told)[2:] == [(None, 1)])  # it is back


def test_requests_whose_names_no_message_holds_keep_no_engine_from_following(
    node: Path, islands: Islands, ask: Callable[..., StageRequest]
) -> None:
    class Named(Gate):
        def hold(self, policy: Policy) -> Mapping[str, int]:
            super().hold(policy)
            return {"\x01" * 3000 + str(number): 1 for number in range(1000)}

    told: list[Crossing] = []
    with ArmServer(node / "arm.sock", timeouts=TIMES, witness=told.append) as server:
        islands.join_whole(gate=Named())
        assert server.wait_connected(10)
        server.stage(ask(1, 2))
        assert 2 == server.commit(2, Policy.KEEP).version
        assert ({}, None) == (told[-1].spans, told[-1].ended)
