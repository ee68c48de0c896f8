"""vLLM's core outlives `kill -9` of its server: the server that is started next is not served by what the dead one left."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

from syncline.testing.small_qwen import PROMPTS
from syncline.testing.vllm_server import ONE_PROCESS


@pytest.mark.timeout(600)
def test_a_core_whose_server_was_killed_is_named_and_the_next_vllm_follows_once_that_is_gone(fleet: Any) -> None:
    fleet.publish()
    fleet.start_agent()
    first = fleet.start_server(executor=ONE_PROCESS)
    fleet.wait_serving(1)
    os.kill(first.process.pid, signal.SIGKILL)
    assert -signal.SIGKILL == first.process.wait(30)
    try:
        second = fleet.start_server(executor=ONE_PROCESS)
        told = fleet.wait(lambda: fleet.status()["engine"]["error"], "named the core that is left")
        found = re.search(r"end the older one \(process (\d+) and its children: vLLM's core outlives kill -9", told)
        assert found is not None, told
        assert f"proven: version 1; {told}\n" == fleet.readyz().text
        assert 500 == second.ask(PROMPTS[0], 4).status_code
        os.kill(int(found[1]), signal.SIGKILL)
        fleet.follow(fleet.publish_next())
        assert 12 == len(second.complete(PROMPTS[0]))
        assert fleet.digests[2] == fleet.verify()["digest"]
    finally:
        first.kill()
