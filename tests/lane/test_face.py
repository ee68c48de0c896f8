"""What the agent tells a gateway, over the socket that a gateway reads."""

from __future__ import annotations

import asyncio
import stat
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout, UnixConnector, web

from syncline.clock import ManualClock
from syncline.errors import Rejected
from syncline.metrics import Metrics
from syncline_agent.engine import Applied, Crossing
from syncline_agent.lane.advertised import Advertised, Advertising
from syncline_agent.lane.commits import CommitLog
from syncline_agent.lane.epochs import Epochs
from syncline_agent.lane.face import listen_at, make_face
from syncline_agent.lane.pins import Pins
from syncline_agent.reporting import Reporter
from syncline_agent.status import Identity

SIX, SEVEN = (Applied("run", "main", version, f"d{version}", True) for version in (6, 7))


def ask(
    path: Path,
    commits: CommitLog,
    report: Reporter,
    what: Callable[[ClientSession], Awaitable[Any]],
    *,
    pins: Pins | None = None,
    wake: Callable[[], None] = lambda: None,
    advertising: Advertising | None = None,
    epochs: Epochs | None = None,
) -> Any:
    """What `what` finds at a face of these parts."""

    async def go() -> Any:
        heard = advertising or Advertising(ManualClock())
        face = make_face(
            report.read,
            commits,
            pins=pins or Pins(ManualClock()),
            wake=wake,
            advertising=heard,
            epochs=epochs or Epochs(),
        )
        runner = web.AppRunner(face, access_log=None)
        await runner.setup()
        try:
            await listen_at(runner, path)
            async with ClientSession("http://agent", connector=UnixConnector(str(path))) as session:
                return await what(session)
        finally:
            await runner.cleanup()

    return asyncio.run(go())


@pytest.fixture
def report() -> Reporter:
    return Reporter(Identity("c", "n", "pool", "node-0"), Metrics())


def test_a_gateway_reads_what_is_served_and_where_the_log_stands(tmp_path: Path, report: Reporter) -> None:
    commits = CommitLog("a1")
    commits.note(Crossing(SIX, SEVEN, {}, []))
    report.say(run="r", applied=SEVEN, in_service=True, head=9, target=9, lag_versions=2, lag_seconds=0.12345)

    async def state(session: ClientSession) -> Any:
        async with session.get("/v1/state") as answer:
            return answer.status, await answer.json()

    path = tmp_path / "gateway.sock"
    path.write_text("left by an agent that was killed")
    code, told = ask(path, commits, report, state)
    assert 200 == code
    served = {"lineage": "run", "view": "main", "version": 7, "digest": "d7", "proven": True, "epoch": None}
    assert served == told["applied"]
    assert ("a1", 1, True, 9, 2, 0.123) == tuple(
        told[name] for name in ("log", "last", "in_service", "target", "lag_versions", "lag_seconds")
    )
    assert ("r", "pool", "node-0", None) == tuple(told[name] for name in ("run", "pool", "node", "pod"))


def test_a_gateway_reads_which_tokens_came_before_a_commit(tmp_path: Path, report: Reporter) -> None:
    commits = CommitLog("a1")
    commits.note(Crossing(None, SIX, {}, []))
    commits.note(Crossing(SIX, SEVEN, {"cmpl-x": 12}, ["cmpl-y"]))
    commits.note(Crossing(SEVEN, None, None, None))

    async def page(session: ClientSession) -> Any:
        async with session.get("/v1/commits", params={"after": "1"}) as answer:
            return await answer.json()

    told = ask(tmp_path / "gateway.sock", commits, report, page)
    assert ("a1", 1, 3, [2, 3]) == (told["log"], told["first"], told["last"], [c["seq"] for c in told["commits"]])
    crossed, failed = told["commits"]
    assert (6, 7) == (crossed["before"]["version"], crossed["after"]["version"])
    assert ({"cmpl-x": 12}, ["cmpl-y"]) == (crossed["spans"], crossed["ended"])
    assert (7, None, None, None) == (failed["before"]["version"], failed["after"], failed["spans"], failed["ended"])


def test_a_gateway_reads_the_writer_s_epoch_of_what_is_and_was_applied_as_far_as_it_is_known(
    tmp_path: Path, report: Reporter
) -> None:
    commits, epochs = CommitLog("a1"), Epochs()
    commits.note(Crossing(SIX, SEVEN, {}, []))
    report.say(run="r", applied=SEVEN)
    epochs.learn("run", "main", 7, 3)
    epochs.learn("another", "main", 6, 2)

    async def both(session: ClientSession) -> Any:
        async with session.get("/v1/state") as state, session.get("/v1/commits") as page:
            commit = (await page.json())["commits"][0]
            return (await state.json())["applied"]["epoch"], commit["before"]["epoch"], commit["after"]["epoch"]

    assert (3, None, 3) == ask(tmp_path / "gateway.sock", commits, report, both, epochs=epochs)


def test_a_gateway_that_waits_hears_of_a_commit_made_in_another_thread(tmp_path: Path, report: Reporter) -> None:
    commits = CommitLog("a1")

    async def wait(session: ClientSession) -> Any:
        asked = asyncio.create_task(session.get("/v1/commits", params={"wait": "60"}))
        while not commits.listened:
            await asyncio.sleep(0.01)
        committing = threading.Thread(target=commits.note, args=[Crossing(SIX, SEVEN, {}, [])])
        committing.start()
        answer = await asked
        committing.join()
        return await answer.json()

    assert [1] == [c["seq"] for c in ask(tmp_path / "gateway.sock", commits, report, wait)["commits"]]
    assert not commits.listened


def test_a_wait_that_brings_nothing_ends_with_an_empty_page(tmp_path: Path, report: Reporter) -> None:
    async def wait(session: ClientSession) -> Any:
        async with session.get("/v1/commits", params={"wait": "1"}) as answer:
            return await answer.json()

    told = ask(tmp_path / "gateway.sock", CommitLog("a1"), report, wait)
    assert {"log": "a1", "first": 1, "last": 0, "commits": []} == told


def test_who_has_read_another_log_does_not_wait_for_this_one(tmp_path: Path, report: Reporter) -> None:
    async def wait(session: ClientSession) -> Any:
        asked = session.get("/v1/commits", params={"after": "7", "wait": "60"}, timeout=ClientTimeout(total=30))
        async with asked as answer:
            return await answer.json()

    told = ask(tmp_path / "gateway.sock", CommitLog("a2"), report, wait)
    assert {"log": "a2", "first": 1, "last": 0, "commits": []} == told


@pytest.mark.parametrize("query", ["after=-1", "after=x", "wait=1.5", "after=" + "9" * 30])
def test_a_query_that_is_none_is_refused_with_its_name(tmp_path: Path, report: Reporter, query: str) -> None:
    async def bad(session: ClientSession) -> Any:
        async with session.get(f"/v1/commits?{query}") as answer:
            return answer.status, (await answer.json())["error"]["message"]

    code, message = ask(tmp_path / "gateway.sock", CommitLog("a1"), report, bad)
    assert 400 == code
    assert query.split("=")[0] in message


def test_the_socket_is_for_the_agent_s_user_and_group(tmp_path: Path, report: Reporter) -> None:
    path = tmp_path / "gateway.sock"

    async def mode(_session: ClientSession) -> Any:
        return stat.S_IMODE(path.stat().st_mode)

    assert 0o660 == ask(path, CommitLog("a1"), report, mode)


def test_a_place_for_no_socket_is_named(tmp_path: Path, report: Reporter) -> None:
    async def nothing(_session: ClientSession) -> None:
        pass

    with pytest.raises(Rejected, match=r"cannot listen at .*--node-dir"):
        ask(tmp_path / "no" / "folder" / "gateway.sock", CommitLog("a1"), report, nothing)


def test_a_gateway_has_the_follower_look_at_once(tmp_path: Path, report: Reporter) -> None:
    looks: list[str] = []

    async def wake(session: ClientSession) -> Any:
        async with session.post("/v1/wake") as answer:
            return answer.status

    woken = ask(tmp_path / "gateway.sock", CommitLog("a1"), report, wake, wake=lambda: looks.append("now"))
    assert (204, ["now"]) == (woken, looks)


def test_a_gateway_pins_a_version_until_it_gives_the_pin_back(tmp_path: Path, report: Reporter) -> None:
    pins = Pins(ManualClock())

    async def pin(session: ClientSession) -> Any:
        async with session.post("/v1/pins", params={"seconds": "300"}) as answer:
            granted = answer.status, await answer.json()
        with pins.commit() as may:
            assert not may
        async with session.post("/v1/pins", params={"seconds": "1"}) as answer:
            refused = answer.status, (await answer.json())["error"]["type"]
        async with session.delete(f"/v1/pins/{granted[1]['pin']}") as answer:
            return granted, refused, answer.status, pins.out

    told = ask(tmp_path / "gateway.sock", CommitLog("a1"), report, pin, pins=pins)
    assert ((201, {"pin": 1, "seconds": 60.0}), (409, "Retryable"), 204, 0) == told


@pytest.mark.parametrize("seconds", ["", "x", "0", "-1", "nan", "inf"])
def test_a_pin_of_no_time_is_refused(tmp_path: Path, report: Reporter, seconds: str) -> None:
    async def pin(session: ClientSession) -> Any:
        async with session.post("/v1/pins", params={"seconds": seconds}) as answer:
            return answer.status, (await answer.json())["error"]["message"]

    code, message = ask(tmp_path / "gateway.sock", CommitLog("a1"), report, pin)
    assert 400 == code
    assert "seconds must be a number above 0" in message


def test_a_gateway_says_where_it_is_reached_until_it_withdraws_or_falls_silent(
    tmp_path: Path, report: Reporter
) -> None:
    clock = ManualClock()
    advertising = Advertising(clock)
    said = {"url": "http://10.0.0.3:8100", "waiting": 2, "at_engine": 5}

    async def what(session: ClientSession) -> list[int]:
        found: list[int] = []
        wrong = ("http://user@10.0.0.3", "ftp://x", "http://x?y", "10.0.0.3:80", "http://x/../y z", 7)
        for body in (
            *(said | {"url": url} for url in wrong),
            said | {"waiting": -1},
            said | {"at_engine": True},
            {},
            [],
        ):
            async with session.put("/v1/gateway", json=body) as answer:
                found.append(answer.status)
        assert advertising.now() is None
        async with session.put("/v1/gateway", json=said) as answer:
            found.append(answer.status)
        return found

    assert [400] * 10 + [204] == ask(tmp_path / "g.sock", CommitLog("a1"), report, what, advertising=advertising)
    assert Advertised("http://10.0.0.3:8100", 2, 5) == advertising.now()
    clock.advance(14.9)
    assert advertising.now() is not None
    clock.advance(0.2)
    assert advertising.now() is None
    advertising.hear(Advertised("http://10.0.0.3:8100", 0, 0))

    async def withdraw(session: ClientSession) -> int:
        async with session.delete("/v1/gateway") as answer:
            return answer.status

    assert 204 == ask(tmp_path / "h.sock", CommitLog("a1"), report, withdraw, advertising=advertising)
    assert advertising.now() is None
