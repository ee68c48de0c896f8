"""A node follows a run through an engine's reload route."""

from __future__ import annotations

import json
from typing import Any

import pytest

from syncline.checkpoint.locks import exclusive
from syncline.checkpoint.marker import OwnFiles
from syncline.errors import CheckpointBusy, DigestMismatch
from syncline.testing.engine_routes import Call, Reply
from syncline_agent.status import ApplyPath, Phase


def test_an_engine_that_nobody_here_loaded_is_loaded_again_and_proven(world: Any) -> None:
    first = world.node.follower
    world.clock.advance(first.tick())
    assert not world.node.reporter.status.in_service
    status = world.follow(1)
    assert (True, True, 1) == (
        status.in_service,
        status.applied is not None and status.applied.proven,
        world.server.loads,
    )
    assert world.holds(1)


def test_versions_are_followed_by_reloads_of_the_very_bits_and_proven(world: Any) -> None:
    world.follow(1)
    for version in (2, 3):
        world.run.step()
        status = world.follow(version)
        assert world.holds(version)
        assert (ApplyPath.RELOAD, True) == (status.apply_path, status.in_service)
        assert world.run.manifests[version].digest == (status.applied.digest if status.applied else None)
    assert 3 == world.server.loads
    assert [(None, 1), (1, 2), (2, 3)] == [
        (c.before.version if c.before else None, c.after.version if c.after else None) for c, _ in world.told
    ]
    assert all(paused and c.spans is None and c.ended is None for c, paused in world.told)


def test_a_reload_pauses_loads_drops_every_cache_and_resumes(world: Any) -> None:
    world.server.running = 2
    world.server.calls.clear()
    status = world.follow(1)
    assert [
        "/pause",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/update_weight_version",
        "/weight_checker",
        "/resume",
        "/weight_checker",  # the sweep after healing
    ] == world.server.paths
    assert "keep" == world.server.calls[[c.path for c in world.server.calls].index("/pause")].query["mode"]
    assert (False, False, 2) == (world.server.stale_cache, world.server.paused, world.server.running)
    digest = status.applied.digest if status.applied else ""
    assert f"main@1.{digest[:8]}" == world.server.weight_version


def test_an_engine_reads_a_folder_that_nobody_may_write_meanwhile(world: Any) -> None:
    seen: list[str] = []

    def try_to_write() -> None:
        try:
            with exclusive(OwnFiles(world.node_dir / "checkpoint").lock):
                seen.append("written")
        except CheckpointBusy:
            seen.append("busy")

    world.server.while_loading = try_to_write
    world.follow(1)
    assert ["busy"] == seen


def test_an_engine_that_sees_the_node_elsewhere_is_told_so(world: Any) -> None:
    world.seen_as = world.folder / "mounted"
    world.start_agent()
    world.seen_as.symlink_to(world.node_dir, target_is_directory=True)
    world.follow(1)
    told = [call.body["kwargs"]["weights_path"] for call in world.server.calls if call.path == "/collective_rpc"]
    assert [str(world.folder / "mounted" / "checkpoint")] == told
    assert world.holds(1)


def test_going_back_is_a_reload_of_a_second_checkpoint(world: Any) -> None:
    world.run.step()
    world.run.step()
    world.follow(3)
    world.aim(pinned=2)
    status = world.follow(2)
    assert world.holds(2)
    assert ApplyPath.RELOAD == status.apply_path
    assert not (world.node_dir / "back").exists()
    world.aim()
    world.follow(3)
    assert world.holds(3)


def test_an_agent_that_starts_again_knows_what_its_engine_serves(world: Any) -> None:
    world.follow(1)
    world.start_agent()
    status = world.follow(1)
    assert (1, True) == (world.server.loads, status.in_service)


def test_an_engine_that_started_again_is_loaded_again(world: Any) -> None:
    world.run.step()
    world.follow(2)
    world.start_engine(1)
    world.clock.advance(world.node.follower.tick())
    assert not world.node.reporter.status.in_service
    assert world.follow(2).in_service
    assert world.holds(2)


def test_a_sweep_finds_a_bit_that_changed_in_the_engine_and_the_node_heals(world: Any) -> None:
    world.follow(1)
    assert world.engine.sweep().proven
    bits = bytearray(world.server.weights["g.norm"])
    bits[5] ^= 1
    world.server.weights["g.norm"] = bytes(bits)
    with pytest.raises(DigestMismatch, match="checksums are not those of version 1"):
        world.engine.sweep()
    world.clock.advance(world.node.follower.tick())
    assert not world.node.reporter.status.in_service
    assert world.follow(1).in_service
    assert world.holds(1)


def test_weights_that_are_kept_in_another_form_are_not_proven_and_not_served(world: Any) -> None:
    world.server.repacked = {"f.down"}
    status = world.rest(1)
    why = status.engine.unprovable if status.engine else None
    assert why is not None
    assert "dp0:pp0:pcp0:tp0:f.down" in why
    error = f"{why}; --serve-unproven yes serves it all the same (docs/engines.md)"
    assert (False, error, Phase.IDLE) == (status.in_service, status.error, status.phase)
    assert not status.applied.proven if status.applied else False
    world.run.step()
    assert not world.follow(2).in_service  # followed none the less, for whoever does serve it
    assert 2 == world.server.loads


def test_what_cannot_be_proven_is_served_only_where_that_was_asked_for_and_is_said(world: Any) -> None:
    world.server.repacked = {"f.down"}
    world.serve_unproven = True
    world.start_agent()
    status = world.rest(1)
    assert (True, None) == (status.in_service, status.error)
    said = json.loads(json.dumps(status.to_json(heartbeats="on")))
    assert (False, True) == (said["applied"]["proven"], "f.down" in said["engine"]["unprovable"])


def test_an_engine_without_checksums_is_not_proven(world: Any) -> None:
    del world.server.routes["POST", "/weight_checker"]
    status = world.follow(1)
    assert "the engine gives no checksums of its weights" == (status.engine.unprovable if status.engine else None)
    assert not status.in_service
    assert 1 == world.engine.sweep().version  # nothing to compare


def test_a_data_parallel_server_is_refused_by_name_before_it_is_paused(world: Any) -> None:
    world.server.world = (4, 2)
    for _ in range(8):
        world.clock.advance(world.node.follower.tick())
    assert "data-parallel" in (world.node.reporter.status.error or "")
    assert [] == world.server.paths
    assert not world.node.reporter.status.in_service


def test_a_server_without_its_development_routes_is_told_how_to_start(world: Any) -> None:
    world.server.routes.clear()
    for _ in range(4):
        world.clock.advance(world.node.follower.tick())
    assert "VLLM_SERVER_DEV_MODE=1" in (world.node.reporter.status.error or "")


def test_an_engine_that_is_away_is_waited_for(world: Any) -> None:
    world.follow(1)
    world.server.stop()
    world.clock.advance(world.node.follower.tick())
    status = world.node.reporter.status
    assert (False, None) == (status.in_service, status.engine)
    assert "no engine answers" in (status.error or "")
    world.run.step()
    world.server.start()
    assert world.follow(2).in_service


def test_a_stamp_that_the_engine_did_not_take_is_no_version(world: Any) -> None:
    def forget(call: Call) -> Reply:
        return Reply(200, {"success": True})

    world.server.breaks["/update_weight_version"] = forget
    status = world.follow(1)
    assert (True, 2) == (status.in_service, world.server.loads)
