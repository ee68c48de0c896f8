"""SGLang's reload route: what its answers mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import structlog

from syncline.clock import ManualClock
from syncline.errors import EngineUnavailable, EngineUncertain, LayoutRefused
from syncline.testing.engine_routes import Reply
from syncline.testing.sglang_routes import FLUSH_REFUSED, SglangStandIn
from syncline.testing.weight_run import WeightRun
from syncline.versions import Policy
from syncline.wire.tensors import TensorSpec, TensorTable
from syncline_agent.engine import StageRequest
from syncline_agent.reload.engine import Place, ReloadEngine
from syncline_agent.reload.routes import Routes, RouteTimeouts
from syncline_agent.reload.sglang import SglangReloading

TABLE = TensorTable(tensors=[TensorSpec(name="w", dtype="BF16", shape=[16, 8], axis=0)])
QUICK = RouteTimeouts(look_s=5, pause_s=5, drain_s=5, load_s=5, checks_s=5)


class Node:
    """One engine on a node with a checkpoint of each version."""

    def __init__(self, folder: Path, client: httpx.Client, server: SglangStandIn) -> None:
        self.run = WeightRun(folder / "run", TABLE, {"w": np.arange(128, dtype=np.uint16)})
        self.server = server
        self.folder = folder
        for version in (1, 2):
            if version > self.run.newest:
                self.run.step()
            self.run.checkpoint(folder / f"v{version}", version)
        server.restart(folder / "v1")
        self.run.checkpoint(folder / "node" / "checkpoint", 1)
        self.engine = ReloadEngine(
            SglangReloading(Routes(server.url, client), QUICK),
            Place("pool", "pod", folder / "node"),
            clock=ManualClock(),
            log=structlog.get_logger(),
        )
        self.stage(1)
        self.engine.commit(1, Policy.ABORT)
        server.calls.clear()

    def stage(self, version: int) -> None:
        self.engine.stage(
            StageRequest(
                lineage=self.run.lineage,
                view="main",
                base=1,
                base_digest=self.run.digest(1),
                target=version,
                target_digest=self.run.digest(version),
                table=self.run.table_file,
                tiling=self.run.tiling.tiling,
                checkpoint=self.folder / f"v{version}",
            )
        )

    def holds(self, version: int) -> bool:
        return {"w": self.run.weights(version)["w"].tobytes()} == self.server.weights


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with httpx.Client(trust_env=False) as client, SglangStandIn(ranks=2) as server:
        yield Node(tmp_path, client, server)


def test_requests_go_back_to_the_queue_and_go_on_after_a_reload(node: Node) -> None:
    node.server.running, node.server.waiting = 2, 1
    node.stage(2)
    result = node.engine.commit(2, Policy.KEEP)
    assert (2, True, 3, 0, False) == (
        result.version,
        node.holds(2),
        node.server.running,
        node.server.ended,
        node.server.stale_cache,
    )
    assert ["/pause_generation", "/update_weights_from_disk", "/weights_checker", "/continue_generation"] == (
        node.server.paths
    )
    assert f"main@2.{node.run.digest(2)[:8]}" == node.server.weight_version


def test_an_abort_ends_requests(node: Node) -> None:
    node.server.running = 2
    node.stage(2)
    node.engine.commit(2, Policy.ABORT)
    assert (2, True) == (node.server.ended, node.holds(2))


def test_a_drain_is_the_server_s_own_waiting(node: Node) -> None:
    node.server.running = 2
    node.stage(2)
    node.engine.commit(2, Policy.DRAIN)
    assert (0, True, False) == (node.server.ended, node.holds(2), node.server.paused)
    assert ["/update_weights_from_disk", "/weights_checker"] == node.server.paths


def test_what_sglang_says_of_its_weights_is_no_proof_and_that_is_said(node: Node) -> None:
    said = node.engine.describe()
    assert said.applied is not None
    assert (False, None) == (said.applied.proven, said.error)
    assert "64-bit hashes" in (said.unprovable or "")
    assert 1 == node.engine.sweep().version


def test_a_folder_that_the_engine_cannot_read_leaves_it_as_it_was(node: Node) -> None:
    node.stage(2)
    node.server.breaks["/update_weights_from_disk"] = lambda _: Reply(
        400, {"success": False, "message": "Failed to get weights iterator: no such folder."}
    )
    with pytest.raises(LayoutRefused, match="cannot read"):
        node.engine.commit(2, Policy.KEEP)
    described = node.engine.describe()
    assert (1, None, False) == (
        described.applied and described.applied.version,
        described.error,
        node.server.paused,
    )


@pytest.mark.parametrize(
    "message",
    [
        "Failed to update weights: out of memory.\nRolling back to original weights.",
        FLUSH_REFUSED,
        "Failed to get weights iterator: gone. | Succeeded to update model weights.",
    ],
)
def test_a_failure_inside_leaves_the_engine_paused_and_in_doubt(node: Node, message: str) -> None:
    node.stage(2)
    node.server.breaks["/update_weights_from_disk"] = lambda _: Reply(400, {"success": False, "message": message})
    with pytest.raises(EngineUncertain):
        node.engine.commit(2, Policy.KEEP)
    assert node.server.paused
    assert "its end was not seen" in (node.engine.describe().error or "")
    node.stage(2)
    node.engine.commit(2, Policy.KEEP)
    assert (True, False) == (node.holds(2), node.server.paused)


def test_a_body_that_is_not_taken_is_a_refusal(node: Node) -> None:
    node.stage(2)
    node.server.breaks["/update_weights_from_disk"] = lambda _: Reply(422, {"detail": "Field required"})
    with pytest.raises(EngineUnavailable, match="422"):
        node.engine.commit(2, Policy.KEEP)
    assert (True, False) == (node.holds(1), node.server.paused)


def test_older_servers_say_their_version_elsewhere(node: Node) -> None:
    del node.server.routes["GET", "/model_info"]
    assert node.engine.describe().error is None


@pytest.mark.parametrize(
    "body", [{}, {"ranks": None}, {"ranks": 7}, {"ranks": ["no"]}, {"ranks": [{"checksums": [1]}]}, "no JSON"]
)
def test_checksums_of_another_form_are_none_and_keep_no_engine_from_going_on(node: Node, body: object) -> None:
    node.server.breaks["/weights_checker"] = lambda _: Reply(200, body)
    node.stage(2)
    node.engine.commit(2, Policy.KEEP)
    assert (True, False) == (node.holds(2), node.server.paused)
