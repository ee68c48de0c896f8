"""A mirror whose copies are damaged at rest: the reader takes each from the origin, and the region goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from syncline.chain import ChainReader, plan
from syncline.clock import ManualClock
from syncline.errors import Corrupt, LinkMissing
from syncline.store.first_of import FirstOf
from syncline.store.keys import RunKeys
from syncline.store.memory import MemoryStore
from syncline.testing.chains import OTHER_LINEAGE, TABLE, ChainWriter
from syncline.wire.records import AnchorManifest, HeadRecord, SkipManifest, VersionManifest, VetoRecord

KEYS = RunKeys("run").view()


def flipped(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def of_another_lineage(data: bytes) -> bytes:
    """What a mirror still holds of a run that had the name before."""
    for kind in (HeadRecord, VersionManifest, AnchorManifest, SkipManifest, VetoRecord):
        if f'"kind":"{kind.model_fields["kind"].default}"'.encode() in data:
            return kind.parse(data, what="copy").model_copy(update={"lineage": OTHER_LINEAGE}).encode()
    return data  # a file of weights belongs to no lineage


def of_another_key(_: bytes) -> bytes:
    return b'{"format":"syncline/1"}'


@pytest.fixture
def origin() -> MemoryStore:
    """Versions 1 to 4, an anchor of 2, a skip delta from 2 to 4, 3 marked bad."""
    store = MemoryStore(ManualClock())
    writer = ChainWriter(store)
    manifests = [writer.commit(v, v - 1 or None, 50) for v in range(1, 5)]
    writer.anchor(manifests[1])
    writer.skip(manifests[3], 2)
    writer.veto(3)
    writer.point(4)
    return store


def mirrored(origin: MemoryStore, damage: Callable[[bytes], bytes], part: str = "") -> MemoryStore:
    """A copy in which each object whose key holds `part` is damaged."""
    mirror = MemoryStore(ManualClock())
    for info in origin.list_after(""):
        found = origin.get(info.key, max_bytes=1 << 20)
        assert found is not None
        mirror.put(info.key, damage(found.data) if part in info.key else found.data)
    return mirror


def everything(reader: ChainReader) -> dict[str, object]:
    """All that can be read of the chain, by name."""
    head = reader.head()
    assert head is not None
    manifests = [reader.manifest(v) for v in range(1, 5)]
    return {
        "run": reader.run_record(),
        "head": head.version,
        "manifests": manifests,
        "table": reader.table(head),
        "anchors": [reader.anchor(v) for v in reader.anchors()],
        "skip": reader.skip(4, 2),
        "vetoes": reader.vetoes(),
        "chunks": [reader.chunk(ref) for m in manifests for ref in m.chunks],
        "way": plan(None, 4, reader, vetoed=reader.vetoes()),
    }


PARTS = ("run.json", "/head", "/versions/", "/anchors/", "/skips/", "/vetoes/", "/chunks/", "")


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        *((damage, part) for damage in (flipped, half, of_another_key) for part in PARTS),
        *((of_another_lineage, part) for part in ("/head", "/versions/", "/anchors/", "/skips/", "/vetoes/")),
    ],
)
def test_every_object_that_is_damaged_in_a_mirror_is_read_from_the_origin(
    origin: MemoryStore, damage: Callable[[bytes], bytes], part: str
) -> None:
    truth = everything(ChainReader(origin, "run"))
    mirror = mirrored(origin, damage, part)
    assert truth == everything(ChainReader(FirstOf([mirror, origin]), "run"))
    assert TABLE == truth["table"]
    assert {3: "reward fell"} == {
        v: r.reason for v, r in ChainReader(FirstOf([mirror, origin]), "run").vetoes().items()
    }


def test_what_is_damaged_in_every_source_is_damaged(origin: MemoryStore) -> None:
    ref = ChainReader(origin, "run").manifest(2).chunks[0]
    both = FirstOf([mirrored(origin, half, "/chunks/"), mirrored(origin, flipped, "/chunks/")])
    with pytest.raises(Corrupt, match=ref.blake3):
        ChainReader(both, "run").chunk(ref)
    gone = mirrored(origin, half, "/chunks/")
    gone.delete(KEYS.chunk(ref.blake3))
    with pytest.raises(LinkMissing, match=ref.blake3):
        ChainReader(FirstOf([gone, gone]), "run").chunk(ref)


def test_a_strangers_veto_in_a_mirror_hides_none_that_comes_at_the_origin(origin: MemoryStore) -> None:
    mirror = mirrored(origin, of_another_lineage, "/vetoes/")
    ours = origin.get(KEYS.veto(3), max_bytes=1 << 20)
    assert ours is not None
    origin.delete(KEYS.veto(3))
    reader = ChainReader(FirstOf([mirror, origin]), "run")
    assert {} == reader.vetoes()
    origin.put(KEYS.veto(3), ours.data)
    assert [3] == list(reader.vetoes())
