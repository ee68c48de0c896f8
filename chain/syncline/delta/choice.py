"""Which codec a tensor gets: the cheapest by bytes on the slowest link and time on one core, measured on a few of its frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncline.codecs.base import Codec, FrameChange
from syncline.codecs.registry import CODECS, codec_named
from syncline.wire.limits import CODEC_RAW

PILOT_FRAMES = 3
PILOT_UNITS = 1 << 16
"""Of each pilot frame: a change's cost is told by a few hundred changes as well as by ten thousand."""


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """How codecs are chosen. The sizes are measured a tensor, the speeds are the codecs' constants: equal input, equal bytes."""

    forced: str | None = None
    """Name of the only codec to use."""
    link_bytes_per_second: float = 25e6
    """What a byte costs: the link that most replicas sit behind (200 Mbit/s)."""
    dense_ratio: float = 0.75
    """Share changed from which a tensor goes `raw` without a pilot (high learning rates, Muon)."""

    def choose(self, pilot: Sequence[FrameChange]) -> Codec:
        """The codec for a tensor whose first changed frames are `pilot` (at least one)."""
        if self.forced is not None:
            return codec_named(self.forced)
        pilot = pilot[:PILOT_FRAMES]
        units = sum(change.units for change in pilot)
        changed = sum(change.positions.size for change in pilot)
        if changed >= self.dense_ratio * units:
            return CODECS[CODEC_RAW]
        heads = [change.head(PILOT_UNITS) for change in pilot]
        sample = [head for head in heads if head.positions.size] or [pilot[0]]
        units = sum(change.units for change in sample)
        changed = sum(change.positions.size for change in sample)

        def seconds(codec: Codec) -> float:
            return units * codec.seconds_per_unit + changed * codec.seconds_per_change

        # raw always loses below the dense threshold; leaving it out saves a copy of every pilot frame
        best, least = CODECS[CODEC_RAW], float("inf")
        for codec in sorted((c for c in CODECS.values() if c.id != CODEC_RAW), key=seconds):
            if seconds(codec) >= least:
                break  # its time alone costs more than the best does with its bytes
            cost = seconds(codec) + sum(len(codec.encode(change)) for change in sample) / self.link_bytes_per_second
            if cost < least:
                best, least = codec, cost
        return best
