"""Frames added many at a time make the chunks of frames added one by one, and threads change neither bytes nor order."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.codecs.base import Codec
from syncline.codecs.registry import CODECS
from syncline.delta.packing import Packer
from syncline.wire.chunk import EncodedFrame, Frames
from syncline.wire.records import ChunkRef

Part = tuple[int, Codec, list[EncodedFrame]]

sizes = st.lists(st.integers(1, 60), min_size=1, max_size=12)
parts = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(sorted(CODECS)), sizes), min_size=1, max_size=6)


def laid_out(drawn: list[tuple[int, int, list[int]]]) -> list[Part]:
    """Frames in ascending order."""
    tensor = index = 0
    out: list[Part] = []
    for step, codec, lengths in drawn:
        tensor, index = tensor + step, 0 if step else index
        frames = [EncodedFrame(index + 2 * at, at + 1, bytes([at]) * size) for at, size in enumerate(lengths)]
        index += 2 * len(frames)
        out.append((tensor, CODECS[codec], frames))
    return out


def packed(
    added: Sequence[Part], *, together: bool, target: int, executor: Executor | None = None
) -> list[tuple[ChunkRef, bytes]]:
    chunks: list[tuple[ChunkRef, bytes]] = []
    nonces = iter(range(1000))
    packer = Packer(
        lambda: next(nonces).to_bytes(16, "little"),
        lambda ref, data: chunks.append((ref, data)),
        target,
        executor=executor,
    )
    for tensor, codec, frames in added:
        if together:
            packer.add_frames(tensor, codec, Frames.of(frames))
        else:
            for frame in frames:
                packer.add(tensor, codec, frame)
    assert packer.finish() == [ref for ref, _ in chunks]
    return chunks


@settings(max_examples=80, deadline=None)
@given(drawn=parts, target=st.integers(1, 200))
def test_frames_added_together_make_the_chunks_of_frames_added_one_by_one(
    drawn: list[tuple[int, int, list[int]]], target: int
) -> None:
    added = laid_out(drawn)
    assert packed(added, together=False, target=target) == packed(added, together=True, target=target)


@pytest.mark.parametrize("together", [True, False])
def test_chunks_that_threads_put_together_are_the_same_and_leave_in_their_order(together: bool) -> None:
    added = laid_out([(1, codec, [40, 3, 200, 7] * 9) for codec in sorted(CODECS)])
    alone = packed(added, together=together, target=300)
    assert len(alone) > 12
    with ThreadPoolExecutor(3) as executor:
        assert alone == packed(added, together=together, target=300, executor=executor)


def test_a_chunk_that_cannot_leave_stops_whoever_adds_frames() -> None:
    def full(_ref: ChunkRef, _data: bytes) -> None:
        raise OSError("no space left")

    with ThreadPoolExecutor(1) as executor:
        packer = Packer(lambda: bytes(16), full, 10, executor=executor)
        ((tensor, codec, frames),) = laid_out([(0, min(CODECS), [20])])
        packer.add_frames(tensor, codec, Frames.of(frames))
        with pytest.raises(OSError, match="no space left"):
            packer.finish()
