"""What a reload that fails leaves behind: an engine that goes on with what it had, or one that stands until it is whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syncline import faults
from syncline.errors import EngineUnavailable, EngineUncertain, SynclineError
from syncline.testing.engine_routes import Call, Reply
from syncline.versions import Policy
from syncline_agent.engine import Crossing, StageRequest
from syncline_agent.nodecheckpoint import NodeCheckpoint
from syncline_agent.reload.routes import Routes, RouteTimeouts
from syncline_agent.reload.vllm import VllmReloading

LOAD = "/collective_rpc"
AFTER_LOAD = ("/reset_prefix_cache", "/update_weight_version", "/weight_checker", "/resume")


class Killed(BaseException):
    """The agent dies here."""


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    faults.install_hook(None)


def answers(status: int) -> Callable[[Call], Reply]:
    return lambda _: Reply(status, {"error": {"message": "as told", "code": status}})


def hangs_up(_: Call) -> None:
    return None


def staged(world: Any, version: int) -> StageRequest:
    """Bring a version to the node's checkpoint and stage it."""
    world.run.step()
    checkpoint: NodeCheckpoint = world.node.checkpoint
    chain = world.node.follower.chain
    assert checkpoint.advance(chain, version)
    held = checkpoint.contents(checkpoint.path)
    request = StageRequest(
        lineage=held.marker.lineage,
        view=held.marker.view,
        base=version - 1,
        base_digest=world.run.manifests[version - 1].digest,
        target=version,
        target_digest=held.marker.digest,
        table=world.node.files.table(held.table, held.table.ref()),
        tiling=held.marker.tiling.tiling,
        checkpoint=checkpoint.path,
    )
    world.engine.stage(request)
    return request


@pytest.mark.parametrize(
    ("path", "status"), [("/pause", 400), ("/pause", 409), ("/pause", 500), (LOAD, 400), (LOAD, 409)]
)
def test_what_is_refused_before_a_write_lets_the_engine_go_on_as_it_was(world: Any, path: str, status: int) -> None:
    world.follow(1)
    staged(world, 2)
    world.server.breaks[path] = answers(status)
    with pytest.raises(EngineUnavailable, match=f"{status}: as told"):
        world.engine.commit(2, Policy.KEEP)
    assert (False, True, 1) == (world.server.paused, world.holds(1), world.engine.describe().applied.version)
    assert world.engine.describe().applied.proven
    assert world.follow(2).in_service
    assert world.holds(2)


def test_a_pause_that_comes_after_its_resume_does_not_leave_an_engine_standing(world: Any) -> None:
    world.follow(1)
    staged(world, 2)
    world.server.breaks["/pause"] = hangs_up
    with pytest.raises(EngineUnavailable, match="did not answer"):
        world.engine.commit(2, Policy.DRAIN)
    assert world.server.paths[-1] == "/resume"
    world.server.paused = True  # it drained, and nobody waited for it any more
    world.aim(pinned=1)
    status = world.rest(1)
    assert (True, False, True) == (status.in_service, world.server.paused, world.holds(1))


@pytest.mark.parametrize("failure", [answers(500), hangs_up], ids=["500", "hangs up"])
def test_a_load_of_unknown_outcome_leaves_the_engine_standing_until_it_is_loaded_again(
    world: Any, failure: Callable[[Call], Reply | None]
) -> None:
    world.follow(1)
    staged(world, 2)
    world.server.breaks[LOAD] = failure
    with pytest.raises(EngineUncertain):
        world.engine.commit(2, Policy.KEEP)
    said = world.engine.describe()
    assert (True, False) == (world.server.paused, said.applied.proven)
    assert "its end was not seen" in said.error
    status = world.follow(2)
    assert (True, False, True) == (status.in_service, world.server.paused, world.holds(2))


@pytest.mark.parametrize("failure", [answers(400), answers(500), hangs_up], ids=["400", "500", "hangs up"])
@pytest.mark.parametrize("path", AFTER_LOAD)
def test_what_fails_after_the_load_leaves_the_engine_in_doubt(
    world: Any, path: str, failure: Callable[[Call], Reply | None]
) -> None:
    world.follow(1)
    staged(world, 2)
    world.server.breaks[path] = failure
    with pytest.raises(EngineUncertain):
        world.engine.commit(2, Policy.KEEP)
    assert not world.engine.describe().applied.proven
    status = world.follow(2)
    assert (True, False, True) == (status.in_service, world.server.paused, world.holds(2))
    assert not world.server.stale_cache


def test_kv_of_older_weights_that_cannot_be_dropped_is_not_served(world: Any) -> None:
    world.follow(1)
    staged(world, 2)
    world.server.breaks["/reset_prefix_cache"] = lambda _: Reply(200, {"success": False})
    with pytest.raises(EngineUncertain, match="KV of older ones"):
        world.engine.commit(2, Policy.KEEP)
    assert world.server.paused


def test_an_engine_that_does_not_answer_in_time_is_in_doubt(world: Any) -> None:
    world.follow(1)
    hurried = RouteTimeouts(look_s=5, pause_s=5, drain_s=5, load_s=0.2, checks_s=5)
    world.reloading = VllmReloading(Routes(world.server.url, world.client), hurried)
    world.start_agent()
    world.follow(1)
    staged(world, 2)
    over = threading.Event()

    def late(_: Call) -> None:
        over.wait(5)

    world.server.breaks[LOAD] = late
    with pytest.raises(EngineUncertain, match="did not answer"):
        world.engine.commit(2, Policy.KEEP)
    over.set()
    assert not world.engine.describe().applied.proven


def test_an_engine_that_cannot_be_resumed_after_a_refusal_is_loaded_again(world: Any) -> None:
    world.follow(1)
    staged(world, 2)
    world.server.breaks[LOAD] = answers(409)
    world.server.breaks["/resume"] = answers(500)
    with pytest.raises(EngineUnavailable):
        world.engine.commit(2, Policy.KEEP)
    assert not world.engine.describe().applied.proven
    assert world.follow(2).in_service
    assert not world.server.paused


@pytest.mark.parametrize("point", ["apply.ready", "apply.scattered"])
def test_an_agent_that_died_in_a_reload_left_word_of_it(world: Any, point: str) -> None:
    world.follow(1)
    world.run.step()

    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    faults.install_hook(die)
    with pytest.raises(Killed):
        world.follow(2)
    faults.install_hook(None)
    assert world.server.paused
    world.start_agent()
    assert not world.engine.describe().applied.proven
    status = world.follow(2)
    assert (True, False, True) == (status.in_service, world.server.paused, world.holds(2))


def test_an_engine_that_died_in_a_reload_and_started_again_is_loaded(world: Any) -> None:
    world.follow(1)
    world.run.step()

    def die(_: Call) -> None:
        world.start_engine(1)

    world.server.breaks[LOAD] = die
    assert world.follow(2).in_service
    assert world.holds(2)


def test_a_checkpoint_that_is_not_what_its_marker_says_is_not_loaded(world: Any) -> None:
    world.follow(1)
    loads = world.server.loads
    file = next((world.node_dir / "checkpoint").glob("*.safetensors"))
    request = staged(world, 2)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(SynclineError, match="has digest"):
        world.engine.stage(request)
    with pytest.raises(EngineUnavailable, match="not staged"):
        world.engine.commit(2, Policy.KEEP)
    assert loads == world.server.loads


def test_a_folder_that_moved_on_between_stage_and_commit_is_not_loaded(world: Any) -> None:
    world.follow(1)
    request = staged(world, 2)
    world.run.step()
    assert world.node.checkpoint.advance(world.node.follower.chain, 3)
    with pytest.raises(EngineUnavailable, match="holds version 3, not 2"):
        world.engine.commit(request.target, Policy.KEEP)
    assert world.holds(1)


def test_a_record_of_other_bytes_is_no_record(world: Any, tmp_path: Path) -> None:
    world.follow(1)
    (world.node_dir / "reload.json").write_text("{")
    world.start_agent()
    assert not world.engine.describe().applied.proven
    assert world.follow(1).in_service


def test_a_key_is_read_for_each_call_and_a_wrong_one_is_told(world: Any, tmp_path: Path) -> None:
    world.server.token = "right"
    key = tmp_path / "key"
    key.write_text("wrong\n")
    routes = Routes(world.server.url, world.client, key_file=key)
    with pytest.raises(EngineUnavailable, match="401: Unauthorized"):
        VllmReloading(routes).stamp()
    key.write_text("right\n")
    assert "default" == VllmReloading(routes).stamp()
    key.unlink()
    with pytest.raises(EngineUnavailable, match="--engine-key-file"):
        VllmReloading(routes).stamp()


def test_an_engine_that_goes_or_serves_what_nobody_loaded_is_told_to_serve_nothing_known(world: Any) -> None:
    world.follow(1)
    told = world.told
    assert [(None, 1)] == [_versions(crossing) for crossing, _ in told]
    world.engine.describe()
    assert 1 == len(told)
    world.start_engine(1)  # by others, without a word
    world.engine.describe()
    assert [(1, None)] == [_versions(crossing) for crossing, _ in told[1:]]
    world.follow(1)
    assert [(None, 1)] == [_versions(crossing) for crossing, _ in told[2:]]
    world.server.breaks["/weight_info"] = answers(500)
    with pytest.raises(EngineUnavailable):
        world.engine.describe()
    assert (1, None) == _versions(told[-1][0])


def _versions(crossing: Crossing) -> tuple[int | None, int | None]:
    return crossing.before and crossing.before.version, crossing.after and crossing.after.version
