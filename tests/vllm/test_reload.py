"""vLLM by its own reload route: where its arm refuses what it packs, and where nobody asks for the arm."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

PLAIN = """
def register():
    import torch
    from vllm.model_executor.layers import utils

    def plain(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = plain
"""
"""A plugin of vLLM's that leaves linear weights as they were loaded, as they lie on a GPU."""


def plugin(folder: Path) -> str:
    """An installed plugin in a folder of its own."""
    told = folder / "plain-0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: plain\nVersion: 0\n")
    (told / "entry_points.txt").write_text("[vllm.general_plugins]\nplain = plain:register\n")
    (folder / "plain.py").write_text(PLAIN)
    return str(folder)


@pytest.mark.timeout(900)
def test_vllm_is_reloaded_where_its_arm_refuses_and_proven_where_its_weights_are_plain(
    fleet: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: dict[int, list[list[int]]] = {}

    def follow(version: int, *, proven: bool) -> dict[str, Any]:
        def served() -> dict[str, Any] | None:
            status, applied = fleet.status(), fleet.status()["applied"]
            there = applied and (version, proven) == (applied["version"], applied["proven"])
            return status if there and status["phase"] == "Idle" and status["in_service"] else None

        status = fleet.wait(served, f"served {version}", 120.0)
        assert fleet.digests[version] == status["applied"]["digest"]
        drawn[version] = [server.complete(prompt) for prompt in prompts]
        return status

    # Linear weights are packed, as vLLM does on a CPU: the arm refuses, and what is loaded cannot be proven
    fleet.publish()
    fleet.start_agent()
    server = fleet.start_server(SYNCLINE_VLLM_CPU_LINEAR="packed")
    refused = fleet.wait(lambda: (fleet.status()["engine"] or {}).get("error"), "refused the layout")
    assert "repacks" in refused
    fleet.kill_agent()
    monkeypatch.setenv("SYNCLINE_ENGINE_URL", str(server.http.base_url))
    monkeypatch.setenv("SYNCLINE_SERVE_UNPROVEN", "yes")
    fleet.start_agent()
    assert "_proj" in follow(1, proven=False)["engine"]["unprovable"]
    fleet.model.step()
    begun = threading.Event()
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(server.stream, prompts[0], 110, begun)
        assert begun.wait(60)
        fleet.publish()
        assert "reload" == follow(2, proven=False)["apply_path"]
        streamed = reading.result(60)
    assert (None, "length", 110) == (streamed.error, streamed.finish, len(streamed.tokens))
    assert drawn[1][0] == streamed.tokens[:12]
    server.kill()
    fleet.kill_agent()

    # Linear weights lie as they were loaded: proven, under each policy, and after an agent that died in a reload
    monkeypatch.delenv("SYNCLINE_SERVE_UNPROVEN")
    monkeypatch.setenv("SYNCLINE_ENGINE", "reload")
    server = fleet.start_server(SYNCLINE_ARM_SOCKET="", PYTHONPATH=plugin(tmp_path / "plugin"))
    monkeypatch.setenv("SYNCLINE_ENGINE_URL", str(server.http.base_url))
    fleet.start_agent()
    follow(2, proven=True)
    for policy in ("drain", "abort"):
        fleet.target(policy=policy)
        fleet.model.step()
        assert "reload" == follow(fleet.publish(), proven=True)["apply_path"]
    fleet.target("Pinned", 3)
    follow(3, proven=True)
    fleet.kill_agent()
    fleet.start_agent(kill_at="apply.scattered")
    fleet.target()
    assert -9 == fleet.agent.wait(60)
    assert server.http.get("/is_paused").json()["is_paused"]
    fleet.start_agent()
    follow(4, proven=True)
    assert not server.http.get("/is_paused").json()["is_paused"]

    server.kill()
    for version, tokens in fleet.fresh_tokens([2, 4]).items():
        assert tokens == drawn[version]
    assert 4 == len({str(tokens) for tokens in drawn.values()})
