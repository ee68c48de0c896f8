"""Who leads, at a real API server, by clocks that the test moves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from syncline.clock import ManualClock, SystemClock
from syncline.logs import logger
from syncline_operator.kube.access import find_access
from syncline_operator.kube.client import KubeClient
from syncline_operator.kube.lease import Election, LeaseSettings
from syncline_operator.kube.resources import LEASES, ObjectKey
from syncline_operator.metrics import OperatorMetrics
from syncline_operator.testing.control_plane import Cluster
from syncline_operator.testing.relay import Relay


class Candidates:
    """As many operators as are asked for, each with a clock of its own that knows nothing of the others'."""

    def __init__(self, client: KubeClient, namespace: str, lease: str) -> None:
        self._client = client
        self.key = ObjectKey(LEASES, namespace, lease)
        self.told: list[tuple[str, bool]] = []

    def new(self, identity: str, *, epoch: float) -> tuple[Election, ManualClock]:
        clock = ManualClock(epoch)
        settings = LeaseSettings(self.key.namespace, self.key.name)
        return Election(
            self._client,
            settings,
            identity=identity,
            clock=clock,
            randomness=random.Random(1),
            log=logger("test"),
            changed=lambda leads: self.told.append((identity, leads)),
        ), clock

    async def spec(self) -> dict[str, object]:
        return (await self._client.get(self.key))["spec"]


@pytest.fixture
def relay(cluster: Cluster, tmp_path: Path) -> Iterator[Relay]:
    with Relay(cluster, tmp_path) as relay:
        yield relay


def run(relay: Relay, namespace: str, lease: str, scenario: Callable[[Candidates], Awaitable[None]]) -> None:
    async def go() -> None:
        access = await find_access({"KUBECONFIG": str(relay.kubeconfig)})
        async with KubeClient(access, metrics=OperatorMetrics(), clock=SystemClock()) as client:
            await scenario(Candidates(client, namespace, lease))

    asyncio.run(go())


def test_the_first_leads_and_the_next_waits_until_the_lease_has_run_out(relay: Relay, namespace: str) -> None:
    async def scenario(candidates: Candidates) -> None:
        first, first_time = candidates.new("first", epoch=1_700_000_000)
        second, second_time = candidates.new("second", epoch=1_800_000_000)  # a clock that is years ahead
        assert (False, False) == (first.leads, second.leads)
        await first.look()
        await second.look()
        assert (True, False) == (first.leads, second.leads)
        for _ in range(20):  # renewed all the time: nobody else's turn, whatever the clocks say
            for clock in (first_time, second_time):
                clock.advance(2)
            await first.look()
            await second.look()
            assert (True, False) == (first.leads, second.leads)
        second_time.advance(14.9)
        await second.look()
        assert not second.leads
        second_time.advance(0.2)
        await second.look()
        assert second.leads
        assert ("second", 1) == (
            (await candidates.spec())["holderIdentity"],
            (await candidates.spec())["leaseTransitions"],
        )
        await first.look()
        assert not first.leads
        assert [("first", True), ("second", True), ("first", False)] == candidates.told

    run(relay, namespace, "in-turn", scenario)


def test_a_leader_that_stood_still_knows_at_its_first_look_at_the_clock(relay: Relay, namespace: str) -> None:
    async def scenario(candidates: Candidates) -> None:
        leader, time = candidates.new("leader", epoch=1_700_000_000)
        await leader.look()
        assert leader.leads
        time.advance(9.9)
        assert leader.leads
        time.advance(0.2)  # nobody else can have taken it yet: that is what 15 s against 10 is for
        assert not leader.leads
        await leader.look()
        assert leader.leads

    run(relay, namespace, "still", scenario)


def test_a_leader_that_reaches_no_server_stops_before_another_begins(relay: Relay, namespace: str) -> None:
    async def scenario(candidates: Candidates) -> None:
        leader, time = candidates.new("leader", epoch=1_700_000_000)
        await leader.look()
        relay.answer_next(503, times=5)
        for _ in range(4):
            time.advance(2)
            await leader.look()
            assert leader.leads
        time.advance(2.1)
        await leader.look()
        assert not leader.leads
        await leader.look()
        assert leader.leads
        assert [("leader", True), ("leader", False), ("leader", True)] == candidates.told

    run(relay, namespace, "cut-off", scenario)


def test_of_two_that_take_it_at_once_one_gets_it(relay: Relay, namespace: str) -> None:
    async def scenario(candidates: Candidates) -> None:
        for _ in range(8):
            several = [candidates.new(f"candidate-{number}", epoch=1_700_000_000)[0] for number in range(3)]
            await asyncio.gather(*(one.look() for one in several))
            leading = [one for one in several if one.leads]
            assert 1 == len(leading)
            await leading[0].give_back()
            assert not leading[0].leads

    run(relay, namespace, "at-once", scenario)


def test_a_lease_that_was_given_back_is_free_at_once(relay: Relay, namespace: str) -> None:
    async def scenario(candidates: Candidates) -> None:
        first, _ = candidates.new("first", epoch=1_700_000_000)
        second, _ = candidates.new("second", epoch=1_700_000_000)
        await first.look()
        await second.look()
        await second.give_back()  # was never its own
        assert "first" == (await candidates.spec())["holderIdentity"]
        await first.give_back()
        await second.look()
        assert (False, True) == (first.leads, second.leads)

    run(relay, namespace, "given-back", scenario)


def test_times_that_let_two_lead_are_refused() -> None:
    with pytest.raises(ValueError, match="renew_s < sure_s < lasts_s"):
        LeaseSettings("any", lasts_s=10, sure_s=10)
