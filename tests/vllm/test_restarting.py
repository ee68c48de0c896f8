"""A vLLM that dies while it writes is started again on the node's checkpoint, on as many ranks as one likes, and follows on."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from syncline.testing.small_qwen import write_adapter
from syncline.testing.vllm_server import ONE_PROCESS


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    write_adapter(folder)
    return folder


@pytest.mark.timeout(900)
def test_an_engine_with_an_adapter_follows_dies_and_follows_on_in_the_slices_of_two_ranks(
    fleet: Any, fresh: Any, adapter: Path
) -> None:
    # An engine of one process, which is rank and gate at once, with a LoRA adapter around the base that is followed
    fleet.publish()
    fleet.start_agent()
    server = fleet.start_server(
        executor=ONE_PROCESS,
        adapters={"adapter": adapter},
        SYNCLINE_KILL_AT="apply.scattering#2",
        VLLM_ALLOW_RUNTIME_LORA_UPDATING="1",
    )
    drawn: dict[int, dict[str, list[list[int]]]] = {}
    fleet.wait_serving(1)
    assert re.search("arm joined .*gate=True .*rank=0", (fleet.folder / "agent.log").read_text())
    for version in (1, 2):
        fleet.wait_serving(version)
        drawn[version] = {model: fleet.drawn(model) for model in ("m", "adapter")}
        assert fleet.digests[version] == fleet.verify()["digest"]
        if version == 1:
            fleet.publish_next()
    assert "delta" == fleet.status()["apply_path"]
    late = server.http.post("/v1/load_lora_adapter", json={"lora_name": "late", "lora_path": str(adapter)})
    assert 200 == late.status_code, late.text
    assert drawn[2]["adapter"] == fleet.drawn("late")
    fleet.publish_next()
    assert 4 == len({str(tokens) for by_model in drawn.values() for tokens in by_model.values()})
    fleet.wait(server.process.poll, "ended")  # half-way through its second write
    server.kill()
    assert drawn[2] == fresh.tokens(fleet.checkpoint(2), adapter=adapter)

    # Started again it loads what lies on the node, however far that is, and shares it among its ranks
    ranks = min(2, len(os.sched_getaffinity(0)))
    server = fleet.start_server(ranks=ranks)
    assert ranks == fleet.wait_serving(3)["engine"]["ranks"]
    fleet.follow(fleet.publish_next())
    fourth = fleet.drawn()
    fleet.target("Pinned", 3)
    fleet.follow(3, "undo")
    assert fleet.digests[3] == fleet.verify()["digest"]
    assert fourth != fleet.drawn()
    assert 2 == server.told(1 << 30).count("Loading weights took")  # rank 0 says it, at each start
    server.kill()
    assert fourth == fresh.tokens(fleet.checkpoint(4), ranks=ranks)["m"]
