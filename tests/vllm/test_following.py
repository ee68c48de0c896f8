"""vLLM follows a run in place: every version's tokens are those of a vLLM that was started on it."""

from __future__ import annotations

import signal
from typing import Any

import pytest


@pytest.mark.timeout(900)
def test_vllm_serves_each_version_as_a_fresh_one_would_whatever_dies_between(
    fleet: Any, prompts: list[list[int]], traffic: Any, one_process: str
) -> None:
    drawn: dict[int, list[list[int]]] = {}

    def follow(version: int, path: str = "delta") -> None:
        status = fleet.wait_serving(version)
        assert path == status["apply_path"]
        drawn[version] = [server.complete(prompt) for prompt in prompts]

    # An engine of one process, which is rank and gate at once, and dies half-way through its second write
    fleet.publish()
    fleet.start_agent()
    server = fleet.start_server(executor=one_process, SYNCLINE_KILL_AT="apply.scattering#2")
    fleet.wait_serving(1)
    drawn[1] = [server.complete(prompt) for prompt in prompts]
    fleet.model.step()
    follow(fleet.publish())
    fleet.model.step()
    fleet.publish()
    fleet.wait(server.process.poll, "ended")
    server.kill()
    server = fleet.start_server()
    fleet.wait_serving(3)
    drawn[3] = [server.complete(prompt) for prompt in prompts]

    # Commits under requests that stream, with a prompt that lies in the prefix cache
    hits = server.metric("vllm:prefix_cache_hits_total")
    assert drawn[3][2] == server.complete(prompts[2])
    assert hits < server.metric("vllm:prefix_cache_hits_total")
    third = dict(fleet.model.newest)
    fleet.target("Pinned", 3)
    for version in (4, 5):
        fleet.model.step()
        assert version == fleet.publish()
    with traffic(server, prompts) as under_way:
        for version in (4, 5):
            under_way.wait_for_a_new_one()
            fleet.target("Pinned", version)
            follow(version)
    assert {(None, "length")} == {(streamed.error, streamed.finish) for streamed in under_way.streamed}
    told = [spans for spans in under_way.spans if spans]
    assert under_way.spans == told or server.release < (0, 32)
    for spans in told:
        assert [0, *(span["end"] for span in spans)] == [*(span["start"] for span in spans), traffic.SPANNING]
        assert sorted(spans, key=lambda span: int(span["version"])) == spans
    if told:
        assert {"3", "4", "5"} == {span["version"] for spans in told for span in spans}
        assert any(len(spans) > 1 for spans in told)

    # Back, forward, and a training that went on from an older version
    fleet.target("Pinned", 4)
    assert "undo" == fleet.wait_serving(4)["apply_path"]
    assert drawn[4] == [server.complete(prompt) for prompt in prompts]
    fleet.model.newest = third
    fleet.model.step()
    assert 6 == fleet.publish(parent=3)
    fleet.target()
    follow(6)
    answer = server.generate(prompts[0], 12)
    assert drawn[6][0] == answer["token_ids"]
    if told:
        assert [{"version": "6", "start": 0, "end": 12}] == answer["weight_versions"]

    # What a policy does to requests in flight
    for policy, ends in (("abort", {"abort", "length"}), ("drain", {"length"})):
        fleet.target("Pinned", max(drawn))
        fleet.model.step()
        version = fleet.publish()
        with traffic(server, prompts) as under_way:
            under_way.wait_for_a_new_one()
            fleet.target(policy=policy)
            follow(version)
        assert ends == {streamed.finish for streamed in under_way.streamed}
        if policy == "drain":
            assert all(len(spans) <= 1 for spans in under_way.spans)

    # An agent that dies when the new bits are written and not yet read back: nothing leaves until they are proven
    fleet.target()
    fleet.kill_agent()
    assert drawn[8][0] == server.complete(prompts[0])
    fleet.start_agent(kill_at="apply.resumed")
    fleet.wait_serving(8)
    fleet.model.step()
    fleet.publish()
    assert -signal.SIGKILL == fleet.agent.wait(60)
    with pytest.raises(AssertionError, match="Internal"):
        server.complete(prompts[0])
    assert "error" in server.http.post("/v1/completions", json=server.ask(prompts[0], 4)).json()
    fleet.start_agent()
    fleet.wait_serving(9)
    drawn[9] = [server.complete(prompt) for prompt in prompts]

    log = server.told(1 << 30)
    assert (2, 1, 1) == tuple(map(log.count, ("Loading weights took", "layout probed", "layout remembered")))
    server.kill()
    assert drawn == fleet.fresh_tokens(sorted(drawn))


@pytest.mark.timeout(600)
def test_two_ranks_follow_each_in_its_slices_and_are_proven_together(fleet: Any, prompts: list[list[int]]) -> None:
    fleet.publish()
    fleet.start_agent()
    server = fleet.start_server(ranks=2)
    assert 2 == fleet.wait_serving(1)["engine"]["ranks"]
    for version in (2, 3):
        fleet.model.step()
        fleet.publish()
        assert "delta" == fleet.wait_serving(version)["apply_path"]
    drawn = {3: [server.complete(prompt) for prompt in prompts]}
    fleet.target("Pinned", 2)
    assert "undo" == fleet.wait_serving(2)["apply_path"]
    drawn[2] = [server.complete(prompt) for prompt in prompts]
    assert fleet.digests[2] == fleet.verify()["digest"]
    assert 2 >= server.told(1 << 30).count("Loading weights took")
    server.kill()
    assert drawn[2] != drawn[3]
    assert {3: drawn[3]} == fleet.fresh_tokens([3], ranks=2)
