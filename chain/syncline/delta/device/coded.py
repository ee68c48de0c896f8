"""From payloads of the context coder, as chunks hold them, to staged changes on a device: one launch of frames that are coded alike.

Payloads are copied once, as they stand; where their lanes lie is found for all frames together.
"""

# pyright: basic
# torch's own annotations are partial

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from syncline.codecs.context.codec import FAULTS, ContextCodec
from syncline.codecs.context.lanes import place_lanes
from syncline.delta.parsed import CodedFrame
from syncline.errors import FrameCorrupt
from syncline.kernels.gpu.arrange import arrange
from syncline.kernels.gpu.batch import CodedFrames, DeviceTable, FrameBatch, Staged
from syncline.kernels.gpu.decode import decode

Say = Callable[[int], str]
"""How messages call a frame of the launch."""


class DeviceTables:
    """The codec tables of the deltas that are being staged, each copied once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tables: dict[int, DeviceTable] = {}

    def of(self, codec: ContextCodec) -> DeviceTable:
        """The codec's table. The caller keeps the codec for as long as this object."""
        table = codec.table
        if id(table) not in self._tables:
            self._tables[id(table)] = DeviceTable.of(
                codec.alphabet, table.zone_bits, table.widths, table.lists, table.of_context, self._device
            )
        return self._tables[id(table)]


@dataclass(frozen=True, slots=True)
class Decoding:
    """Frames of one codec that are being decoded."""

    staged: Staged
    status: Tensor
    lanes: int
    say: Say

    def finish(self) -> Staged:
        """Wait for the frames; FrameCorrupt by name. Puts their changes in order, queued on the current stream."""
        if bool(self.status.any()):
            statuses = self.status.tolist()
            at = next(place for place, fault in enumerate(statuses) if fault)
            raise _corrupt(self.say(at), FAULTS[statuses[at]])
        if self.lanes > 1:  # one alone leaves its changes in order
            arrange(self.staged)
        return self.staged


def decode_alike(
    batch: FrameBatch, members: Sequence[CodedFrame], lanes: int, tables: DeviceTables, say: Say
) -> Decoding:
    """Begin to decode frames of one codec, with `lanes` each, against the batch. Queued on the current stream."""
    codec = members[0].codec
    assert isinstance(codec, ContextCodec)
    device = batch.anchor.device
    frames = [member.frame for member in members]
    sizes = np.fromiter((len(frame.payload) for frame in frames), np.int64, len(frames))
    changed = np.fromiter((frame.changed for frame in frames), np.int32, len(frames))
    payload = np.frombuffer(bytearray().join([frame.payload for frame in frames]), np.uint8)
    places = place_lanes(payload, np.cumsum(sizes) - sizes, sizes, lanes)
    if places.corrupt.any():
        at = int(places.corrupt.argmax())
        raise _corrupt(say(at), "the lanes are longer than the payload, or a length is no varint")
    coded = CodedFrames(
        codec.alphabet,
        tables.of(codec),
        lanes,
        torch.from_numpy(changed).to(device),
        torch.from_numpy(payload).to(device),
        torch.from_numpy(places.starts.reshape(-1)).to(device),
        torch.from_numpy(places.words.reshape(-1)).to(device),
    )
    staged = Staged.empty(coded.changed, int(changed.sum()), batch.anchor.dtype)
    return Decoding(staged, decode(batch, coded, staged), lanes, say)


def _corrupt(frame: str, why: str) -> FrameCorrupt:
    return FrameCorrupt(f"{frame}: context: {why}; fetch the chunk again, or check the base")
