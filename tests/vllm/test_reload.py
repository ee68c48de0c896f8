"""vLLM by its own reload route: where its arm refuses what it packs, and where nobody asks for the arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from syncline.testing.small_qwen import ENDING, PROMPTS
from syncline.testing.vllm_server import ONE_PROCESS

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
    fleet: Any, fresh: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: dict[int, list[list[int]]] = {}

    def follow(version: int, *, proven: bool = True, path: str | None = "reload") -> dict[str, Any]:
        status = fleet.wait_serving(version, proven=proven)
        assert path in (None, status["apply_path"])
        drawn[version] = fleet.drawn()
        return status

    # Linear weights are packed, as vLLM does on a CPU: the arm refuses, and what is loaded cannot be proven
    fleet.publish()
    fleet.start_agent()
    server = fleet.start_server(executor=ONE_PROCESS, SYNCLINE_VLLM_CPU_LINEAR="packed")
    refused = fleet.wait(lambda: (fleet.status()["engine"] or {}).get("error"), "refused the layout")
    assert "repacks" in refused
    fleet.kill_agent()
    monkeypatch.setenv("SYNCLINE_ENGINE_URL", str(server.http.base_url))
    monkeypatch.setenv("SYNCLINE_SERVE_UNPROVEN", "yes")
    fleet.start_agent()
    assert "_proj" in follow(1, proven=False, path=None)["engine"]["unprovable"]
    with server.endless(PROMPTS[0]) as stream:
        stream.wait_for(20)
        fleet.publish_next()
        follow(2, proven=False)
        stream.wait_for(20)
        fleet.publish_next(ends=True)
        follow(3, proven=False)
        assert (None, "stop", ENDING) == (stream.wait_ended().error, stream.finish, stream.tokens[-1])
    assert drawn[1][0] == stream.tokens[:12]
    assert ["main@1", "main@2", "main@3"] == [version.partition(".")[0] for version, _, _ in stream.spans]
    server.kill()
    fleet.kill_agent()

    # Linear weights lie as they were loaded: proven, under each policy, and after an agent that died in a reload
    monkeypatch.delenv("SYNCLINE_SERVE_UNPROVEN")
    monkeypatch.setenv("SYNCLINE_ENGINE", "reload")
    server = fleet.start_server(executor=ONE_PROCESS, SYNCLINE_ARM_SOCKET="", PYTHONPATH=plugin(tmp_path / "plugin"))
    monkeypatch.setenv("SYNCLINE_ENGINE_URL", str(server.http.base_url))
    fleet.start_agent()
    follow(3, path=None)
    for policy in ("drain", "abort"):
        fleet.target(policy=policy)
        follow(fleet.publish_next())
    fleet.target("Pinned", 4)
    follow(4)
    fleet.kill_agent()
    fleet.start_agent(kill_at="apply.scattered")
    fleet.target()
    assert -9 == fleet.agent_died()
    assert server.http.get("/is_paused").json()["is_paused"]
    fleet.start_agent()
    follow(5, path=None)
    assert not server.http.get("/is_paused").json()["is_paused"]
    server.kill()
    assert drawn[5] == fresh.tokens(fleet.checkpoint(5))["m"]
    assert 5 == len({str(tokens) for tokens in drawn.values()})
