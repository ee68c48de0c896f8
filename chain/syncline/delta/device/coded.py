"""From payloads of the context coder, as chunks hold them, to staged changes on a device: one launch of frames that are coded alike.

Payloads are copied once, as they stand; where their lanes lie is found for all frames together.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from syncline.codecs.context.codec import FAULTS, ContextCodec
from syncline.codecs.context.lanes import place_lanes
from syncline.delta.device.layers import Alike, Layers
from syncline.errors import FrameCorrupt
from syncline.kernels.clock import Alphabet
from syncline.kernels.gpu.arrange import arrange
from syncline.kernels.gpu.batch import CodedFrames, DeviceTable, FrameBatch, Staged
from syncline.kernels.gpu.decode import decode

Say = Callable[[int], str]
"""How messages call a frame of the launch."""


class DeviceTables:
    """The codec tables of the deltas that are being staged, each copied once."""

    def __init__(self, device: torch.device, beside: Sequence[torch.cuda.Stream] = ()) -> None:
        """`beside`: streams for the decoders, so that launches which leave a device half idle share it. Without any, one follows
        the other on the current stream."""
        self._device = device
        self._beside = beside
        self._turn = 0
        self._numbers: dict[int, tuple[ContextCodec, int]] = {}
        self._known: dict[tuple[bytes, Alphabet], int] = {}
        self._tables: dict[int, DeviceTable] = {}

    def number(self, codec: ContextCodec) -> int:
        """The same for codecs that decode alike, whatever chunk they come from: lanes are told apart by who launches."""
        found = self._numbers.get(id(codec))
        if found is None:  # the codec is kept, because its id is its name here
            key = codec.table.data, codec.alphabet
            found = self._numbers[id(codec)] = codec, self._known.setdefault(key, len(self._known))
        return found[1]

    def of(self, codec: ContextCodec) -> DeviceTable:
        number, table = self.number(codec), codec.table
        if number not in self._tables:
            self._tables[number] = DeviceTable.of(
                codec.alphabet, table.zone_bits, table.widths, table.lists, table.of_context, self._device
            )
        return self._tables[number]

    @contextmanager
    def stream(self) -> Iterator[torch.cuda.Stream | None]:
        """Launches of the block go beside those of others; they begin after all that the current stream has so far. What they read
        and write is to be kept until they were waited for."""
        if not self._beside:
            yield None
            return
        beside = self._beside[self._turn % len(self._beside)]
        self._turn += 1
        beside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(beside):
            yield beside


@dataclass(frozen=True, slots=True)
class Decoding:
    """Frames of one codec that are being decoded."""

    staged: Staged
    status: Tensor
    coded: CodedFrames
    """Read until the frames are done."""
    beside: torch.cuda.Stream | None
    """Where they are decoded, if not on the current stream."""
    say: Say

    def finish(self) -> Staged:
        """Wait for the frames; FrameCorrupt by name. Puts their changes in order, queued on the current stream."""
        if self.beside is not None:
            torch.cuda.current_stream(self.status.device).wait_stream(self.beside)
        if bool(self.status.any()):
            statuses = self.status.tolist()
            at = next(place for place, fault in enumerate(statuses) if fault)
            raise _corrupt(self.say(at), FAULTS[statuses[at]])
        if self.coded.lanes > 1:  # one alone leaves its changes in order
            arrange(self.staged)
        return self.staged


def decode_alike(batch: FrameBatch, layers: Layers, alike: Alike, tables: DeviceTables, say: Say) -> Decoding:
    """Begin to decode frames that decode alike against the batch, which holds them in the same order."""
    device, codec = batch.device, alike.codec
    sizes, changed = layers.columns.sizes[alike.entries], layers.columns.changed[alike.entries].astype(np.int32)
    payload = layers.payload(alike.entries)
    places = place_lanes(payload, np.cumsum(sizes) - sizes, sizes, alike.lanes)
    if places.corrupt.any():
        at = int(places.corrupt.argmax())
        raise _corrupt(say(at), "the lanes are longer than the payload, or a length is no varint")
    coded = CodedFrames(
        codec.alphabet,
        tables.of(codec),
        alike.lanes,
        torch.from_numpy(changed).to(device),
        torch.from_numpy(payload).to(device),
        torch.from_numpy(places.starts.reshape(-1)).to(device),
        torch.from_numpy(places.words.reshape(-1)).to(device),
    )
    staged = Staged.empty(coded.changed, int(changed.sum()), batch.anchor.dtype)
    with tables.stream() as beside:
        return Decoding(staged, decode(batch, coded, staged), coded, beside, say)


def _corrupt(frame: str, why: str) -> FrameCorrupt:
    return FrameCorrupt(f"{frame}: context: {why}; fetch the chunk again, or check the base")
