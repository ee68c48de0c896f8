"""A vLLM of core and worker follows a run in place: what it serves, what becomes of requests, what an agent's death does.

One vLLM serves all of these tests; each begins where it serves the newest version.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from syncline.testing.small_qwen import ENDING, PROMPTS

SOME = 20
"""Tokens that have come: the request is in the engine, and an endless one has not ended."""


@pytest.mark.timeout(900)
def test_each_version_is_served_as_a_vllm_that_was_started_on_it_would(serving: Any, fresh: Any) -> None:
    first = max(serving.digests)
    drawn = {first: serving.drawn()}
    for version in range(first + 1, first + 4):
        assert version == serving.publish_next()
        serving.follow(version)
        drawn[version] = serving.drawn()
    assert 4 == len({str(tokens) for tokens in drawn.values()})
    assert drawn == {version: fresh.tokens(serving.checkpoint(version))["m"] for version in drawn}
    assert serving.digests[version] == serving.verify()["digest"]

    # A prompt that lies in the prefix cache is found there, under the present version's name only
    hits = serving.server.metric("vllm:prefix_cache_hits_total")
    assert drawn[version][2] == serving.server.complete(PROMPTS[2])
    assert hits < serving.server.metric("vllm:prefix_cache_hits_total")

    # Back by one, further back, and a training that went on from there
    serving.target("Pinned", version - 1)
    serving.follow(version - 1, "undo")
    assert drawn[version - 1] == serving.drawn()
    serving.target("Pinned", first + 1)
    serving.follow(first + 1, "checkpoint")
    assert drawn[first + 1] == serving.drawn()
    fork = serving.publish(parent=first + 1)
    serving.target()
    serving.follow(fork)
    assert serving.drawn() == drawn[version]  # its weights are the newest again
    log = serving.server.told(1 << 30)
    assert (1, 1) == tuple(map(log.count, ("Loading weights took", "layout probed")))


@pytest.mark.timeout(600)
def test_requests_go_on_through_commits_and_say_which_version_drew_which_tokens(serving: Any) -> None:
    first = serving.publish_next()
    serving.follow(first)
    before = serving.drawn()[0]
    with serving.server.endless(PROMPTS[0]) as stream, serving.server.endless(PROMPTS[1]) as other:
        other.wait_for(SOME)
        stream.wait_for(SOME)
        for _ in range(2):
            serving.follow(serving.publish_next())
            stream.wait_for(SOME)
        last = serving.publish_next(ends=True)
        serving.follow(last)
        for ended in (stream.wait_ended(), other.wait_ended()):
            assert (None, "stop", ENDING) == (ended.error, ended.finish, ended.tokens[-1])
            assert [first, first + 1, first + 2, last] == [int(version) for version, _, _ in ended.spans]
            ends = [end for _, _, end in ended.spans]
            assert ([0, *ends[:-1]], len(ended.tokens)) == ([start for _, start, _ in ended.spans], ends[-1])
            assert len(ended.tokens) == ended.spans[-1][1] + 1  # the newest weights drew the ending, at once
    assert before == stream.tokens[: len(before)]
    with serving.server.stream(PROMPTS[0], 12) as stream:
        assert [(str(last), 0, 1)] == stream.wait_ended().spans


@pytest.mark.timeout(600)
def test_the_log_of_commits_names_each_choice_and_those_whose_client_hung_up(serving: Any) -> None:
    serving.follow(serving.publish_next())
    names = [f"{choice}_cmpl-several-0" for choice in range(2)]
    with serving.server.choices(PROMPTS[0], 2, name="several") as seen:
        while seen.get(0, 0) < SOME or seen.get(1, 0) < SOME:
            seen.read()
        serving.follow(serving.publish_next())
        crossed = serving.commits()[-1]
        assert all(crossed["spans"][name] >= SOME for name in names)
        assert not set(names) & set(crossed["ended"])
    serving.wait(lambda: serving.server.metric("vllm:num_requests_running") == 0 or None, "ended what nobody reads")
    serving.follow(serving.publish_next())
    crossed = serving.commits()[-1]
    assert (set(names), {}) == (set(names) & set(crossed["ended"]), crossed["spans"])


@pytest.mark.timeout(600)
def test_a_commit_that_aborts_ends_what_is_in_flight_and_serves_what_comes(serving: Any) -> None:
    first = serving.publish_next()
    serving.follow(first)
    serving.target(policy="abort")
    with serving.server.endless(PROMPTS[0]) as stream, serving.server.endless(PROMPTS[1]) as other:
        other.wait_for(SOME)
        stream.wait_for(SOME)
        version = serving.publish_next()
        for ended in (stream.wait_ended(), other.wait_ended()):
            assert (None, "abort") == (ended.error, ended.finish)
            assert ENDING not in ended.tokens
    serving.follow(version)
    with serving.server.stream(PROMPTS[0], 12) as stream:
        assert ("length", [(str(version), 0, 12)]) == (stream.wait_ended().finish, stream.spans)


@pytest.mark.timeout(600)
def test_a_commit_that_drains_waits_for_what_is_in_flight_while_what_comes_waits_for_it(serving: Any) -> None:
    first = serving.publish_next()
    serving.follow(first)
    serving.target(policy="drain")
    server = serving.server
    with server.endless(PROMPTS[0]) as stream:
        stream.wait_for(SOME)
        version = serving.publish_next()
        serving.wait(lambda: "setting pause state to PAUSED_NEW" in server.told(1 << 30) or None, "began to drain")
        with server.stream(PROMPTS[1], 12) as later:
            serving.wait(lambda: server.metric("vllm:num_requests_waiting") or None, "kept a request waiting")
            stream.wait_for(SOME)
            assert (first, "Commit") == (serving.status()["applied"]["version"], serving.status()["phase"])
            assert not stream.ended and not later.tokens
            server.end(stream)
            drained = stream.wait_ended()
            assert [(str(first), 0, len(drained.tokens))] == drained.spans
            assert (None, "length", [(str(version), 0, 12)]) == (later.wait_ended().error, later.finish, later.spans)
    serving.follow(version)


@pytest.mark.timeout(600)
def test_what_new_bits_drew_stays_inside_when_the_agent_dies_before_it_read_them_back(serving: Any, fresh: Any) -> None:
    first = serving.publish_next()
    serving.follow(first)
    drawn = serving.drawn()
    serving.kill_agent()
    assert drawn == serving.drawn()  # an engine serves on by itself
    serving.start_agent(kill_at="apply.resumed")
    serving.wait_serving(first)
    with serving.server.endless(PROMPTS[0]) as stream:
        stream.wait_for(SOME)
        version = serving.publish_next(ends=True)
        assert -signal.SIGKILL == serving.agent_died()
        assert stream.wait_ended().error is not None
        assert ENDING not in stream.tokens
    assert 500 == serving.server.ask(PROMPTS[0], 4).status_code
    serving.start_agent()
    serving.wait_serving(version)
    assert [[ENDING] * 12] * len(PROMPTS) == serving.drawn()

    # The commits of the agent that came after it are as those of any other
    version = serving.publish_next()
    serving.follow(version)
    serving.target(policy="abort")
    with serving.server.endless(PROMPTS[0]) as stream:
        stream.wait_for(SOME)
        version = serving.publish_next()
        assert (None, "abort") == (stream.wait_ended().error, stream.finish)
    serving.follow(version)
    assert fresh.tokens(serving.checkpoint(version))["m"] == serving.drawn()
