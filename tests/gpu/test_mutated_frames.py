"""Mutated frames end on a device as they do on the host: with the same error, or with the same bits. A batch holds many, so that one
launch tries them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from syncline.codecs.base import FrameChange, Placed
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec, lanes_of
from syncline.codecs.context.counts import Counts, count_symbols, count_units
from syncline.codecs.context.fitting import fit
from syncline.delta.device.coded import DeviceTables, decode_alike
from syncline.delta.device.layers import Alike, Layers
from syncline.delta.parsed import CodedFrame, Delta
from syncline.errors import FrameCorrupt
from syncline.kernels.clock import DONE
from syncline.kernels.gpu.batch import FrameBatch, Staged
from syncline.kernels.gpu.decode import decode
from syncline.testing.device_frames import device_case
from syncline.wire.chunk import EncodedFrame
from syncline.wire.tiling import Frame

CPU = torch.device("cpu")
UNITS, FRAMES, SHIFT = 64, 48, 5
HOW = ("flip", "set", "cut", "extend", "insert", "promise", "base")


def frame_of(dtype: str) -> tuple[ContextCodec, np.ndarray, bytes, int]:
    """A codec with a table, base bits, a payload of two lanes and the number of its changes."""
    alphabet = ALPHABETS[dtype]
    random = np.random.default_rng(5)
    old = (random.integers(120, 124, UNITS) << (alphabet.bits - 9 if alphabet.bits > 8 else 0)).astype(alphabet.unit)
    new = old.copy()
    moved = random.choice(UNITS, 12, replace=False)
    new[moved] += random.choice([1, 2, 40, 255], 12, p=[0.6, 0.2, 0.1, 0.1]).astype(alphabet.unit)
    change = FrameChange.between(old, new)
    counts = Counts(count_units(alphabet, old), np.zeros((256, 256), np.int64))
    count_symbols(alphabet, change.before, change.after, counts.symbols)
    codec = ContextCodec(fit(counts, alphabet, exact=False), alphabet, SHIFT)
    return codec, old, codec.encode(change), change.positions.size


def mutated(
    random: np.random.Generator, payload: bytes, changed: int, old: np.ndarray
) -> tuple[bytes, int, np.ndarray]:
    """Payload, promised changes and base after one to three mutations."""
    data, base = bytearray(payload), old.copy()
    for how in random.choice(HOW, random.integers(1, 4)):
        at, value = int(random.integers(max(len(data), 1))), int(random.integers(256))
        if how == "promise":
            changed = int(random.integers(1, UNITS + 1))
        elif how == "base":
            base[random.integers(UNITS)] ^= old.dtype.type(1 << random.integers(8 * old.itemsize))
        elif how == "extend":
            data.append(value)
        elif how == "insert":
            data.insert(at, value)
        elif how == "cut":
            del data[at:]
        elif data:
            data[at] = data[at] ^ 1 << value % 8 if how == "flip" else value
    return bytes(data), changed, base


def host_says(codec: ContextCodec, payload: bytes, changed: int, base: np.ndarray) -> Placed | str:
    """Changes, or what is wrong."""
    try:
        return codec.place(memoryview(payload), units=UNITS, dtype=base.dtype, changed=changed, base=lambda: base)
    except FrameCorrupt as error:
        return str(error)


def layers_of(codec: ContextCodec, frames: Sequence[tuple[bytes, int]]) -> Layers:
    """Payload and promised changes of each frame, which is an entry."""
    coded = {n: CodedFrame(codec, EncodedFrame(n, changed, data)) for n, (data, changed) in enumerate(frames)}
    delta = Delta.of({0: coded})
    rows = np.arange(len(frames))
    return Layers(rows, np.zeros_like(rows), delta.columns, delta.codecs, delta.payloads)


@pytest.mark.usefixtures("only_own_memory")
@pytest.mark.parametrize("dtype", ["BF16", "F32", "F4", "U8"])
def test_mutated_frames_end_on_a_device_as_on_the_host(dtype: str) -> None:
    codec, old, payload, promised = frame_of(dtype)
    random = np.random.default_rng(len(dtype))
    tried = [(payload, promised, old)]
    tried += [mutated(random, payload, promised, old) for _ in range(FRAMES - 1)]
    expected = [host_says(codec, *one) for one in tried]
    live = np.concatenate([base for *_, base in tried])
    store = torch.from_numpy(live.view(f"i{live.itemsize}") if live.itemsize > 1 else live)
    places = [(0, Frame(n * UNITS, 1, UNITS, UNITS)) for n in range(FRAMES)]
    layers = layers_of(codec, [(data, changed) for data, changed, _ in tried])
    alike, tables = Alike(codec, lanes_of(UNITS, SHIFT), np.arange(FRAMES)), DeviceTables(CPU)
    begun: list[int] = []
    for n, said in enumerate(expected):
        if isinstance(said, str) and ("longer than the payload" in said or "is not a varint" in said):
            with pytest.raises(FrameCorrupt, match=f"frame {n}: context: the lanes are longer than the payload"):
                one = replace(alike, entries=np.array([n]))
                decode_alike(FrameBatch.of([store], [places[n]]), layers, one, tables, lambda _, n=n: f"frame {n}")
        else:
            begun.append(n)
    batch = FrameBatch.of([store], [places[n] for n in begun])
    decoding = decode_alike(
        batch, layers, replace(alike, entries=np.array(begun)), tables, lambda at: f"frame {begun[at]}"
    )
    ended = dict(zip(begun, decoding.status.tolist(), strict=True))
    assert {n: isinstance(expected[n], Placed) for n in begun} == {n: status == DONE for n, status in ended.items()}
    first_bad = next(n for n in begun if ended[n] != DONE)
    with pytest.raises(FrameCorrupt, match=f"frame {first_bad}: context: "):
        decoding.finish()
    staged = decoding.staged
    for at, n in enumerate(begun):
        if isinstance(placed := expected[n], Placed):
            mine = slice(int(staged.firsts[at]), int(staged.firsts[at]) + int(staged.changed[at]))
            order = staged.positions[mine].argsort()
            found = [part[mine][order].numpy().view(kind) for part, kind in parts(staged, live.dtype)]
            assert placed.base is not None
            assert [c.tolist() for c in (placed.positions, placed.base, placed.units)] == [c.tolist() for c in found]
    many = {"same bits": 2, "fault": 10, "no lanes": 2}
    seen = Counter(
        "no lanes" if n not in ended else "same bits" if ended[n] == DONE else "fault" for n in range(FRAMES)
    )
    assert {} == {end: seen[end] for end, least in many.items() if seen[end] < least}


def parts(staged: Staged, unit: np.dtype) -> list[tuple[torch.Tensor, np.dtype]]:
    return [(staged.positions, np.dtype(np.int32)), (staged.old, unit), (staged.new, unit)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="only the interpreter says what is reached")
@pytest.mark.usefixtures("only_own_memory")
def test_a_word_behind_the_payload_would_have_been_noticed() -> None:
    case = device_case("BF16", [Frame(0, 1, 40, 40)], share=0.1, lane_shift=9, seed=2)
    assert [DONE] == decode(case.batch, case.coded, case.staged).tolist()
    longer = replace(case.coded, words=case.coded.words + 1)
    with pytest.raises(Exception, match="1 places of 1 bytes lie in none of the tensors"):
        decode(case.batch, longer, case.staged)
