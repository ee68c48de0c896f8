"""What `/metrics` of a real gateway says after real requests, and that nothing on it can grow without end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from syncline.metrics import LABELS, GatewayFamilies, Metrics
from syncline_agent.gateway.bounds import Lag
from syncline_agent.gateway.measuring import BEGUN, GatewayMetrics
from syncline_agent.testing.lanes import Lane, open_lane, run

ASK = {"model": "m", "prompt": "x", "max_tokens": 4}


async def families(lane: Lane) -> dict[str, Metric]:
    async with lane.http.get("/metrics") as answer:
        return {family.name: family for family in text_string_to_metric_families(await answer.text())}


def value(family: Metric, ending: str = "", **labels: str) -> float:
    (found,) = (s.value for s in family.samples if s.name == family.name + ending and s.labels == labels)
    return found


def test_every_family_is_there_with_what_real_requests_left(tmp_path: Path) -> None:
    lanes: list[Lane] = []
    held = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        if body["prompt"] == "crossing":
            lanes[0].agent.commit(8, spans={f"cmpl-{request.headers['X-Request-Id']}-0": 2})
        if body["prompt"] == "long":
            await held.wait()
        choice = {"index": 0, "text": "abcd", "finish_reason": "length"}
        return web.json_response({"id": "cmpl-1", "choices": [choice], "usage": {"completion_tokens": 4}})

    async def go() -> None:
        pool = tmp_path / "target.json"
        pool.write_text('{"run": "demo", "maxVersionLag": 3}')
        async with open_lane(tmp_path, answer, target=pool) as lane:
            lanes.append(lane)
            long = asyncio.create_task(lane.ask(ASK | {"prompt": "long"}))
            while not lane.engine.asked:
                await asyncio.sleep(0.01)
            await lane.ask(ASK | {"prompt": "crossing"})
            await lane.ask(ASK | {"weight_version": {"exact": 6}})
            waiting = asyncio.create_task(lane.ask(ASK | {"weight_version": {"min": 9, "wait_seconds": 60}}))
            await lane.http.post("/sleep")
            pool.write_text("{")
            while not value((told := await families(lane))["syncline_gateway_target_error"]) or not value(
                told["syncline_gateway_waiting"]
            ):
                await asyncio.sleep(0.01)
            requests = told["syncline_gateway_requests"]
            for outcome, reason in (("answered", ""), ("refused", "gone_by"), ("refused", "not_open")):
                assert 1.0 == value(requests, "_total", outcome=outcome, reason=reason)
            assert (1.0, 2.0) == tuple(value(told["syncline_gateway_request_spans"], n) for n in ("_count", "_sum"))
            assert 8.0 == value(told["syncline_gateway_answered_version"])
            assert 1.0 == value(told["syncline_gateway_waited_seconds"], "_count")
            in_flight = told["syncline_gateway_in_flight"]
            assert {name: float(name == "1_before") for name in BEGUN} == {
                s.labels["begun"]: s.value for s in in_flight.samples
            }
            assert (1.0, 0.0) == tuple(value(told[f"syncline_gateway_{name}"]) for name in ("ready", "lag_versions"))
            assert value(told["syncline_gateway_lag_seconds"]) >= 0.0
            lane.agent.commit(9, spans={}, ended=[])
            held.set()
            assert [200, 200] == [(await task)[0] for task in (long, waiting)]
            told = await families(lane)
            assert 2.0 == value(told["syncline_gateway_waited_seconds"], "_count")
            assert not any(s.value for s in told["syncline_gateway_in_flight"].samples)
            there = {name for name in told if not name.endswith("_created")}
            assert there == set(names(GatewayFamilies().registry.collect()))

    run(go())


@pytest.mark.parametrize("begun", [{7: 2, 6: 1, 5: 3, 2: 1, 4: 1, 9: 5, None: 2}])
def test_requests_in_flight_are_told_by_versions_ago_whatever_versions_there_are(begun: dict[int | None, int]) -> None:
    metrics = GatewayMetrics()
    metrics.begun.update(begun)

    def told(applied: int | None) -> list[float]:
        metrics.look(applied=applied, ready=True, lag=Lag(), target_error=False)
        samples = {s.labels["begun"]: s.value for s in next(iter(metrics.in_flight.collect())).samples}
        return [samples[name] for name in BEGUN]

    assert [2, 1, 3, 2, 5, 2] == told(7)
    assert [0, 0, 0, 0, 0, 15] == told(None)
    assert [5, 0, 2, 6, 0, 2] == told(9)


def names(of: Iterable[Metric]) -> list[str]:
    return [family.name for family in of]


def test_no_process_has_a_label_that_is_not_bounded_nor_a_name_of_another() -> None:
    both = Metrics(), GatewayFamilies()
    for metrics in both:
        for family in vars(metrics).values():
            assert set(getattr(family, "_labelnames", ())) <= LABELS
    library, gateway = (names(metrics.registry.collect()) for metrics in both)
    assert not set(library) & set(gateway)
    assert all(name.startswith("syncline_gateway_") for name in gateway)


def test_the_page_about_the_gateway_names_every_family_and_no_other() -> None:
    page = Path(__file__).parents[2] / "docs" / "gateway.md"
    section = page.read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    said = [line.split("`")[1].partition("{")[0] for line in section.splitlines() if line.startswith("| `")]
    known = [
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in GatewayFamilies().registry.collect()
    ]
    assert sorted(known) == sorted(said)
