"""Versions of tokens as a gateway reads them from the agent's log, beside those that the engine stamped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from syncline.versions import Policy
from syncline_agent.arm.server import ArmServer
from syncline_agent.lane.commits import CommitLog
from syncline_agent.lane.reading import token_spans

Start = Callable[..., Any]
CLIENTS = 6


def test_what_the_log_says_of_each_token_is_what_the_engine_stamped(tiny: Any, start_engine: Start) -> None:
    log = CommitLog("a")
    versions = [0, 1]
    """Applied after so many entries of the log; the first is of the engine that came."""
    with ArmServer(tiny.socket, witness=log.note) as agent:
        engine = start_engine("--slots", "4")  # so that some wait for a slot while a version changes
        assert agent.wait_connected(20)
        for _ in range(3):
            tiny.step()
        going = threading.Event()
        seen: list[tuple[int, int]] = []
        told: list[int] = []

        def ask(client: int) -> None:
            number = 0
            while not going.is_set():
                request, sent = f"client{client}-{number}", log.since(0).last
                answer = engine.complete(seed=client, max_tokens=20 + 17 * client, request_id=request)
                page = log.since(sent)
                stamped = answer["choices"][0]["weight_version"]["spans"]
                before = versions[sent]
                spans = token_spans(
                    f"{request}-0", answer["usage"]["completion_tokens"], before, [c.crossing for c in page.commits]
                )
                assert spans is not None
                whole = [(s["first"], s["last"] + 1, s["version"]) for s in stamped]
                assert whole == [(s.first, s.last, s.version) for s in spans]
                seen.append((len(spans), len(page.commits)))
                told.append(before)
                number += 1

        with ThreadPoolExecutor(CLIENTS) as clients:
            asking = [clients.submit(ask, client) for client in range(CLIENTS)]
            try:
                for version in range(2, 7):
                    agent.stage(tiny.request(version - 1, version))
                    versions.append(version)
                    agent.commit(version, Policy.KEEP)
                    threading.Event().wait(0.15)
                versions.append(5)
                agent.undo(5)
                assert agent.sweep().proven
                threading.Event().wait(0.15)
            finally:
                going.set()
            for future in asking:
                future.result(60)
    assert any(spans > 1 for spans, _ in seen), "no request was in flight while a version changed"
    assert any(spans == 1 and crossed for spans, crossed in seen), "none ended, or began, beside a commit"
    assert versions == [0, *(c.crossing.after.version for c in log.since(0).commits if c.crossing.after)]
