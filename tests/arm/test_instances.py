"""Two engines of one pod at one socket: the later one is refused by name and comes again slowly, the first one goes on."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from syncline.clock import ManualClock
from syncline.errors import EngineUnavailable, ProtocolViolation
from syncline.testing.weight_run import WeightRun
from syncline.versions import Policy
from syncline_agent.arm import messages
from syncline_agent.arm.channel import Channel
from syncline_agent.arm.client import ArmClient, ArmIdentity, Backoff
from syncline_agent.arm.connected import Arm
from syncline_agent.arm.island import SECOND_S, Island
from syncline_agent.arm.server import ArmServer
from syncline_agent.engine import StageRequest
from syncline_agent.testing.islands import HELLO, TIMES, Islands, ScriptedGate, is_proven, silence, wait_until

Ask = Callable[..., StageRequest]


def test_a_second_engine_of_the_pod_is_refused_by_name_while_the_first_follows_on(
    run: WeightRun, server: ArmServer, islands: Islands, ask: Ask
) -> None:
    first = islands.start(2, instance="first")
    wait_until(lambda: is_proven(server, 1))
    second = islands.start(2, instance="second")
    arms = [second.client, *(rank.client for rank in second.ranks)]
    wait_until(lambda: all(arm.refused for arm in arms))
    said = f"pod pod has two engines on this socket; end the older one (process {os.getpid()} and its children)"
    assert {f"refused: {said}"} == {arm.connection for arm in arms}
    described = server.describe()
    assert (said, None) == (described.second, described.error)
    server.stage(ask(1, 2))
    assert 2 == server.commit(2, Policy.KEEP).version
    assert is_proven(server, 2)
    assert first.holds(run.weights(2))
    assert second.holds(run.weights(1))
    assert ["connected"] * 3 == [arm.connection for arm in (first.client, *(rank.client for rank in first.ranks))]
    assert [] == second.gate.calls


@pytest.mark.parametrize("later", ["second", None], ids=["another", "one that does not say"])
def test_the_second_engine_takes_over_when_no_arm_of_the_first_is_left(
    server: ArmServer, islands: Islands, later: str | None
) -> None:
    first = islands.start(2, instance="first")
    wait_until(lambda: is_proven(server, 1))
    second = islands.start(2, instance=later)
    first.client.stop()
    first.ranks[0].client.stop()
    wait_until(lambda: "two engines on this socket" in silence(server))
    assert second.gate.serves is None
    first.ranks[1].client.stop()
    wait_until(lambda: second.gate.serves == 1)
    assert is_proven(server, 1)


def test_an_engine_of_one_process_that_no_agent_let_in_serves_nothing_until_one_does(
    server: ArmServer, islands: Islands
) -> None:
    first = islands.start(2, instance="first")
    wait_until(lambda: is_proven(server, 1))
    gate = ScriptedGate()
    gate.serves = 1  # with all weights in it, which it proved itself
    second = islands.join_whole(gate=gate)
    wait_until(lambda: second.client.refused and gate.serves is None)
    first.client.stop()
    for rank in first.ranks:
        rank.client.stop()
    wait_until(lambda: gate.serves == 1)
    assert is_proven(server, 1)


def test_a_sweep_of_its_own_does_not_bring_an_engine_that_was_turned_away_into_service(
    server: ArmServer, islands: Islands
) -> None:
    islands.start(2, instance="first")
    wait_until(lambda: is_proven(server, 1))
    gate = ScriptedGate()
    second = islands.join_whole(gate=gate)
    wait_until(lambda: ["fail"] == gate.calls)
    assert second.live.sweep().proven
    second.client.notify()
    second.client.stop()  # whatever it was to do is done
    assert ["fail"] == gate.calls


def test_an_engine_that_cannot_go_out_of_service_when_it_is_turned_away_tries_again(
    server: ArmServer, islands: Islands
) -> None:
    islands.start(2, instance="first")
    wait_until(lambda: is_proven(server, 1))
    gate = ScriptedGate()
    gate.serves = 1

    def unreachable() -> None:
        raise EngineUnavailable("the engine does not answer")

    gate.breaks["fail"] = unreachable
    islands.join_whole(gate=gate)
    wait_until(lambda: gate.serves is None)
    assert ["fail", "fail"] == gate.calls


def test_an_engine_that_an_agent_had_let_in_serves_on_when_the_next_one_will_not_have_it(
    node: Path, islands: Islands
) -> None:
    gate = ScriptedGate()
    with ArmServer(node / "arm.sock", timeouts=TIMES) as server:
        rank = islands.join_whole(gate=gate)
        wait_until(lambda: is_proven(server, 1))
        gate.serves = 1
    with ArmServer(node / "arm.sock", pool="another", timeouts=TIMES):
        wait_until(lambda: rank.client.refused)
        rank.client.stop()
    assert (1, []) == (gate.serves, [call for call in gate.calls if call == "fail"])


def test_it_is_told_of_a_second_engine_only_while_it_keeps_coming() -> None:
    clock = ManualClock()
    island = Island(clock)
    island.join(_arm("first", process=7), lambda: None)
    with pytest.raises(ProtocolViolation, match="two engines"):
        island.join(_arm("second", process=8), lambda: None)
    assert "end the older one (process 7 and its children)" in str(island.second_engine)
    clock.advance(SECOND_S + 1)
    assert island.second_engine is None


@pytest.mark.parametrize("instance", ["same", None])
def test_two_processes_of_one_rank_do_not_take_each_other_s_place(instance: str | None) -> None:
    island, first = Island(), _arm(instance, process=7)
    island.join(first, lambda: None)
    with pytest.raises(ProtocolViolation, match=r"two engines on this socket; end the older one \(process 7"):
        island.join(_arm(instance, process=8), lambda: None)
    again = _arm(instance, process=7)
    island.join(again, lambda: None)
    assert (True, [again]) == (first.gone, island.present())


def test_what_vllm_leaves_behind_is_said_for_vllm_and_no_process_where_none_is_known() -> None:
    island = Island()
    island.join(_arm("first", process=0, engine="vllm"), lambda: None)
    with pytest.raises(ProtocolViolation, match="sees no processes: vLLM's core outlives kill -9 of its server"):
        island.join(_arm("second", process=8, engine="vllm"), lambda: None)


def _arm(instance: str | None, *, process: int, engine: str = "e") -> Arm:
    ours, _ = socket.socketpair()
    return Arm(Channel(ours), HELLO.model_copy(update={"instance": instance, "engine": engine}), process=process)


@dataclass(frozen=True)
class Told(Backoff):
    """Waits next to nothing, and remembers which wait it was."""

    tries: list[int] = field(default_factory=list[int])

    def seconds(self, tries: int, draw: float) -> float:
        self.tries.append(tries)
        return 0.001


def test_an_arm_whose_connections_are_brief_waits_longer_each_time_until_one_lasts(tmp_path: Path) -> None:
    clock, told = ManualClock(), Told()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(tmp_path / "arm.sock"))
    listening.listen()
    listening.settimeout(10)
    arm = ArmClient(
        tmp_path / "arm.sock",
        ArmIdentity("test", "pool", "pod", None),
        None,
        ScriptedGate(),
        randomness=random.Random(1),
        backoff=told,
        clock=clock,
    )
    arm.start()
    try:
        for lasts_s in (0.0, 0.5, 1.0, told.longest_s, 0.0):
            channel = Channel(listening.accept()[0])
            channel.receive(timeout_s=10)
            channel.send(messages.Welcome(protocol=messages.PROTOCOL))
            wait_until(lambda: arm.connection == "connected")
            clock.advance(lasts_s)
            seen = len(told.tries)
            channel.close()
            wait_until(lambda seen=seen: len(told.tries) > seen)
    finally:
        listening.close()
        arm.stop()
    assert [1, 2, 3, 0, 1] == told.tries[:5]
