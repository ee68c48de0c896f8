"""The planner: a table of chains, then every small chain against brute force.

Left out on purpose: what a reader does with broken objects (test_reader), and applying a plan (tests/checkpoint).
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.chain import PUT_BACK, AnchorStep, DeltaStep, DiskStep, SkipStep, StepKey, newest_allowed, plan
from syncline.errors import (
    ChunkCorrupt,
    DigestMismatch,
    EpochRegressed,
    FrameCorrupt,
    LineageChanged,
    LinkMissing,
    SynclineError,
    VersionVetoed,
)
from syncline.testing.chains import OTHER_LINEAGE, WHOLE_BYTES, Chain, version_manifest
from syncline.versions import Link
from syncline.wire.records import VetoRecord


def link(chain: Chain, version: int) -> Link:
    m = chain.manifests[version]
    return Link(m.lineage, version, m.base, m.epoch)


def straight(count: int, *, size: int = 10) -> Chain:
    """1 is anchor-only, every later version a delta from the one before."""
    return Chain.of(*(version_manifest(v, v - 1 if v > 1 else None, size) for v in range(1, count + 1)))


def shape(steps: object) -> list[str]:
    """A plan as words."""
    assert isinstance(steps, list | tuple)
    return [f"{s.key.kind} {s.key.base or ''}->{s.key.version}" for s in steps]


def test_nothing_to_do_is_a_plan_without_steps():
    chain = straight(3)
    assert () == plan(link(chain, 3), 3, chain).steps


def test_one_version_behind_costs_one_manifest_and_no_listing():
    chain = straight(9)
    way = plan(link(chain, 8), 9, chain)
    assert ["delta 8->9"] == shape(way.steps)
    assert 10 == way.fetch_bytes
    assert ["manifest 9"] == chain.asked


def test_several_versions_behind_is_deltas_in_a_row():
    chain = straight(6)
    way = plan(link(chain, 3), 6, chain)
    assert ["delta 3->4", "delta 4->5", "delta 5->6"] == shape(way.steps)
    assert "anchors" not in chain.asked
    assert way.start is None


def test_a_joiner_takes_the_newest_anchor_and_the_deltas_after_it():
    chain = straight(6)
    chain.anchor_sizes[4] = WHOLE_BYTES
    way = plan(None, 6, chain)
    assert ["anchor ->4", "delta 4->5", "delta 5->6"] == shape(way.steps)
    assert WHOLE_BYTES + 20 == way.fetch_bytes
    assert isinstance(way.start, AnchorStep)
    assert ["delta 4->5", "delta 5->6"] == shape(way.deltas)


def test_a_joiner_takes_a_skip_delta_where_it_is_smaller():
    chain = straight(6)
    chain.anchor_sizes[3] = WHOLE_BYTES
    chain.skip_sizes[6, 3] = 25
    assert ["anchor ->3", "skip 3->6"] == shape(plan(None, 6, chain).steps)
    chain.skip_sizes[6, 3] = 31
    assert ["anchor ->3", "delta 3->4", "delta 4->5", "delta 5->6"] == shape(plan(None, 6, chain).steps)


def test_a_skip_delta_from_what_is_applied_serves_a_follower_too():
    chain = straight(8)
    chain.skip_sizes[7, 3] = 12
    assert ["skip 3->7", "delta 7->8"] == shape(plan(link(chain, 3), 8, chain).steps)


def test_fewer_steps_win_between_equal_bytes():
    chain = straight(3)
    chain.skip_sizes[3, 1] = 20
    assert ["skip 1->3"] == shape(plan(link(chain, 1), 3, chain).steps)


def test_a_skip_delta_that_ends_in_the_middle_is_followed_by_deltas():
    chain = straight(9)
    chain.anchor_sizes[2] = WHOLE_BYTES
    chain.skip_sizes[6, 2] = 15
    assert ["anchor ->2", "skip 2->6", "delta 6->7", "delta 7->8", "delta 8->9"] == shape(plan(None, 9, chain).steps)


def test_a_chain_that_weighs_more_than_an_anchor_gives_way_to_it():
    chain = straight(6, size=600)
    chain.anchor_sizes[6] = WHOLE_BYTES
    assert ["anchor ->6"] == shape(plan(link(chain, 1), 6, chain).steps)
    assert ["delta 5->6"] == shape(plan(link(chain, 5), 6, chain).steps)


def test_going_back_starts_from_an_anchor_at_or_before_the_target():
    chain = straight(8)
    chain.anchor_sizes[4] = WHOLE_BYTES
    way = plan(link(chain, 8), 5, chain)
    assert ["anchor ->4", "delta 4->5"] == shape(way.steps)
    assert 8 == way.applied


def test_going_back_starts_from_the_checkpoint_on_disk_where_it_has_one():
    chain = straight(8)
    chain.anchor_sizes[4] = WHOLE_BYTES
    way = plan(link(chain, 8), 5, chain, on_disk=3)
    assert ["disk ->3", "delta 3->4", "delta 4->5"] == shape(way.steps)
    assert isinstance(way.start, DiskStep)


def test_what_is_live_is_preferred_to_the_disk_and_the_disk_to_an_anchor_at_equal_bytes():
    chain = straight(4, size=0)
    assert ["delta 3->4"] == shape(plan(link(chain, 3), 4, chain, on_disk=3).steps)
    assert ["disk ->3", "delta 3->4"] == shape(plan(None, 4, chain, on_disk=3).steps)


def test_a_fork_is_a_delta_like_any_other():
    chain = straight(10)
    chain.manifests[11] = version_manifest(11, 10, parent=7)
    assert ["delta 9->10", "delta 10->11"] == shape(plan(link(chain, 9), 11, chain).steps)


def test_an_anchor_only_version_in_the_middle_ends_the_way_for_a_follower_before_it():
    chain = straight(3)
    chain.manifests[4] = version_manifest(4, None)
    chain.manifests[5] = version_manifest(5, 4)
    assert ["anchor ->4", "delta 4->5"] == shape(plan(link(chain, 3), 5, chain).steps)
    assert ["delta 4->5"] == shape(plan(link(chain, 4), 5, chain).steps)
    assert ["anchor ->1", "delta 1->2"] == shape(plan(link(chain, 5), 2, chain).steps)


def test_a_base_may_lie_further_back_than_the_version_before():
    chain = straight(4)
    chain.manifests[5] = version_manifest(5, 2)
    assert ["delta 2->5"] == shape(plan(link(chain, 2), 5, chain).steps)


def test_a_vetoed_version_is_no_target_and_no_start_but_may_lie_on_the_way():
    chain = straight(6)
    chain.anchor_sizes[4] = WHOLE_BYTES
    with pytest.raises(VersionVetoed, match="version 6 was marked bad; choose another"):
        plan(link(chain, 5), 6, chain, vetoed={6})
    assert ["delta 4->5", "delta 5->6"] == shape(plan(link(chain, 4), 6, chain, vetoed={5}).steps)
    assert ["anchor ->1", *(f"delta {v}->{v + 1}" for v in range(1, 6))] == shape(
        plan(None, 6, chain, vetoed={4}).steps
    )


def test_a_replica_that_already_serves_a_vetoed_version_is_told():
    chain = straight(6)
    with pytest.raises(VersionVetoed):
        plan(link(chain, 6), 6, chain, vetoed={6})


def test_a_vetos_reason_is_told_wherever_it_is_in_the_way():
    chain = straight(3)
    marks = {v: VetoRecord(lineage="11" * 16, version=v, reason=f"reward {v} fell", created_ms=0) for v in (1, 3)}
    with pytest.raises(VersionVetoed, match=r"version 3 was marked bad \(reward 3 fell\); choose another target"):
        plan(None, 3, chain, vetoed=marks)
    with pytest.raises(LinkMissing, match=r"the anchor of version 1 is not used: .* marked bad \(reward 1 fell\)"):
        plan(None, 2, chain, vetoed=marks)


def test_a_missing_link_is_named():
    chain = straight(6)
    del chain.manifests[4], chain.manifests[1]
    with pytest.raises(LinkMissing, match="from version 3 to version 6: version 4 is gone"):
        plan(link(chain, 3), 6, chain)


def test_a_missing_target_is_named():
    with pytest.raises(LinkMissing, match="version 7 is gone"):
        plan(None, 7, straight(6))


def test_a_hole_is_passed_by_a_skip_delta_or_an_anchor():
    chain = straight(8)
    del chain.manifests[5]
    chain.skip_sizes[6, 3] = 40
    assert ["skip 3->6", "delta 6->7", "delta 7->8"] == shape(plan(link(chain, 3), 8, chain).steps)
    del chain.skip_sizes[6, 3]
    chain.anchor_sizes[6] = WHOLE_BYTES
    assert ["anchor ->6", "delta 6->7", "delta 7->8"] == shape(plan(link(chain, 3), 8, chain).steps)


def test_a_step_that_failed_before_is_avoided():
    chain = straight(4)
    chain.anchor_sizes[3] = chain.anchor_sizes[2] = WHOLE_BYTES
    chain.skip_sizes[4, 2] = 12
    bad: dict[StepKey, SynclineError] = {StepKey("anchor", None, 3): LinkMissing("its file is gone")}
    assert ["anchor ->2", "skip 2->4"] == shape(plan(None, 4, chain, avoid=bad).steps)
    bad[StepKey("skip", 2, 4)] = LinkMissing("its chunk is gone")
    assert ["anchor ->2", "delta 2->3", "delta 3->4"] == shape(plan(None, 4, chain, avoid=bad).steps)
    bad[StepKey("delta", 3, 4)] = LinkMissing("chunks/ab is gone")
    with pytest.raises(LinkMissing) as refused:
        plan(None, 4, chain, avoid=bad)
    assert (
        "no way from nothing applied to version 4: the delta from version 3 to 4 cannot be used: chunks/ab is gone; "
        f"the skip delta from version 2 to 4 cannot be used: its chunk is gone; {PUT_BACK}"
    ) == str(refused.value)
    assert ["skip 2->4"] == shape(
        plan(link(chain, 2), 4, chain, avoid={StepKey("delta", 3, 4): LinkMissing("gone")}).steps
    )


def test_damaged_bytes_on_the_only_way_are_told_as_damage_and_not_as_a_hole():
    chain = straight(3)
    corrupt: dict[StepKey, SynclineError] = {
        StepKey("delta", 1, 2): ChunkCorrupt("chunks/ab does not hash to its name")
    }
    with pytest.raises(ChunkCorrupt) as refused:
        plan(None, 3, chain, avoid=corrupt)
    assert (
        "no way from nothing applied to version 3: the delta from version 1 to 2 cannot be used: chunks/ab does not hash "
        f"to its name; {PUT_BACK}"
    ) == str(refused.value)
    with pytest.raises(FrameCorrupt, match="the anchor of version 1 cannot be used: short"):
        plan(None, 3, chain, avoid={StepKey("anchor", None, 1): FrameCorrupt("short")})
    with pytest.raises(DigestMismatch, match="the checkpoint of version 2 on disk cannot be used: rotten"):
        plan(None, 3, straight(3), on_disk=2, avoid={**corrupt, StepKey("disk", None, 2): DigestMismatch("rotten")})


def test_a_way_that_ends_without_an_anchor_says_where():
    class WithoutFiles(Chain):
        def anchors(self) -> list[int]:
            return []

    with pytest.raises(LinkMissing, match="version 1 has no base, and its whole weights are not in the store"):
        plan(None, 3, WithoutFiles(straight(3).manifests))


def test_another_lineage_is_refused_by_name():
    chain = straight(3)
    with pytest.raises(LineageChanged, match="run name was reused"):
        plan(Link(OTHER_LINEAGE, 2, 1, 1), 3, chain)


def test_a_stranger_in_the_chain_is_a_hole():
    chain = straight(4)
    chain.manifests[3] = version_manifest(3, 2, lineage=OTHER_LINEAGE)
    with pytest.raises(LinkMissing, match="version 3 belongs to lineage 22"):
        plan(link(chain, 2), 4, chain)


@pytest.mark.parametrize("applied", [4, 3, None])
def test_a_target_of_a_lower_epoch_than_its_predecessor_is_refused(applied: int | None):
    chain = straight(4)
    chain.manifests[4] = version_manifest(4, 3, epoch=5)
    chain.manifests[5] = version_manifest(5, 4, epoch=4)
    held = None if applied is None else link(chain, applied)
    with pytest.raises(EpochRegressed, match="version 5 carries epoch 4, version 4 before it 5"):
        plan(held, 5, chain)


def test_an_anchor_only_version_of_a_fenced_writer_is_refused_too():
    chain = straight(4)
    chain.manifests[4] = version_manifest(4, 3, epoch=5)
    chain.manifests[5] = version_manifest(5, None, epoch=4)
    with pytest.raises(EpochRegressed):
        plan(None, 5, chain)


def test_no_way_leads_through_a_version_of_a_fenced_writer():
    chain = straight(3)
    chain.manifests[4] = version_manifest(4, 3, epoch=5)
    chain.manifests[5] = version_manifest(5, 4, epoch=4)
    chain.manifests[6] = version_manifest(6, 5, epoch=6)
    with pytest.raises(EpochRegressed, match=r"no way from nothing applied to version 6: .* a fenced writer wrote it"):
        plan(None, 6, chain, vetoed={1})
    chain.skip_sizes[6, 2] = 50
    assert ["skip 2->6"] == shape(plan(link(chain, 2), 6, chain).steps)


def test_a_predecessor_that_was_collected_does_not_hinder():
    chain = straight(6)
    chain.skip_sizes[6, 3] = 10
    del chain.manifests[5]
    assert ["skip 3->6"] == shape(plan(link(chain, 3), 6, chain).steps)


def test_a_chain_longer_than_the_cap_is_a_hole_that_says_what_to_do():
    chain = straight(30)
    assert 20 == len(plan(link(chain, 10), 30, chain, max_steps=20).steps)
    with pytest.raises(LinkMissing, match="the chain below version 11 is longer than 19 deltas; write an anchor"):
        plan(link(chain, 10), 30, chain, max_steps=19)


def test_a_joiner_does_not_read_far_below_the_newest_anchor():
    chain = straight(300)
    chain.anchor_sizes[290] = WHOLE_BYTES
    assert ["anchor ->290", *(f"delta {v}->{v + 1}" for v in range(290, 300))] == shape(plan(None, 300, chain).steps)
    lowest = min(int(re.sub(r"\D", "", a)) for a in chain.asked if a.startswith("manifest"))
    assert lowest >= 289


def test_the_newest_allowed_version_passes_over_vetoes():
    assert 9 == newest_allowed(9, {8})
    assert 6 == newest_allowed(9, {9, 8, 7})
    assert newest_allowed(2, {1, 2}) is None


@st.composite
def small_chains(draw: st.DrawFn) -> Chain:
    count = draw(st.integers(1, 7))
    sizes = st.integers(0, 900)
    manifests = [version_manifest(1, None)]
    epoch = 1
    for v in range(2, count + 1):
        epoch = max(1, epoch + draw(st.sampled_from([0, 0, 0, 0, 1, 1, -1])))
        base = draw(st.sampled_from([v - 1, v - 1, v - 1, None, max(1, v - 2)]))
        manifests.append(version_manifest(v, base, draw(sizes), epoch=epoch))
    chain = Chain.of(*manifests)
    for v in draw(st.sets(st.integers(1, count), max_size=3)):
        chain.anchor_sizes[v] = WHOLE_BYTES + draw(st.integers(0, 60))
    for v, base in draw(st.sets(st.tuples(st.integers(1, count), st.integers(1, count)), max_size=4)):
        if base < v and chain.manifests[v].base != base:  # no one writes a skip delta beside an equal delta
            chain.skip_sizes[v, base] = draw(sizes)
    for v in draw(st.sets(st.integers(1, count), max_size=1)):
        del chain.manifests[v]
    return chain


def cheapest(chain: Chain, applied: int | None, target: int, on_disk: int | None) -> int | None:
    """Bytes of the cheapest way, by trying all."""
    manifests = chain.manifests
    best: list[int] = []

    def fits(base: int, version: int) -> bool:
        return base not in manifests or manifests[base].epoch <= manifests[version].epoch

    def down(version: int, spent: int) -> None:
        if version in (applied, on_disk):
            best.append(spent)
        if version not in manifests:
            return
        if manifests[version].base is None:
            best.append(spent + WHOLE_BYTES)
        elif version in chain.anchor_sizes:
            best.append(spent + chain.anchor_sizes[version])
        ways = [(b, size) for (v, b), size in chain.skip_sizes.items() if v == version]
        base = manifests[version].base
        if base is not None:
            ways.append((base, sum(c.size for c in manifests[version].chunks)))
        for below, size in ways:
            if fits(below, version):
                down(below, spent + size)

    down(target, 0)
    return min(best, default=None)


@given(data=st.data(), chain=small_chains())
def test_the_plan_is_as_cheap_as_any_and_holds_together(data: st.DataObject, chain: Chain):
    known = sorted(chain.manifests)
    if not known:
        return
    target = data.draw(st.sampled_from(known), label="target")
    applied = data.draw(st.one_of(st.none(), st.sampled_from(known)), label="applied")
    on_disk = data.draw(st.one_of(st.none(), st.sampled_from(known)), label="on disk")
    held = None if applied is None else link(chain, applied)
    before = chain.manifests.get(target - 1)
    regressed = before is not None and before.epoch > chain.manifests[target].epoch
    best = cheapest(chain, applied, target, on_disk)
    if applied == target:
        assert () == plan(held, target, chain, on_disk=on_disk).steps
    elif regressed or best is None:
        with pytest.raises(SynclineError) as refused:
            plan(held, target, chain, on_disk=on_disk)
        assert isinstance(refused.value, EpochRegressed if regressed else LinkMissing | EpochRegressed)
    else:
        way = plan(held, target, chain, on_disk=on_disk)
        assert best == way.fetch_bytes
        at = way.start.version if way.start is not None else applied
        for step in way.deltas:
            base = step.manifest.base if isinstance(step, DeltaStep) else step.skip.base
            assert at == base
            assert isinstance(step, DeltaStep | SkipStep)
            at = step.version
        assert target == at
