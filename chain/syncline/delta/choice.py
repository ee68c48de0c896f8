"""Which codec a tensor gets: the cheapest by bytes on the slowest link and time on sixteen cores, measured on a few of its frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncline.codecs.base import Codec, FrameChange
from syncline.codecs.registry import CODECS, codec_named
from syncline.delta.comparing import PILOT_FRAMES
from syncline.wire.limits import CODEC_CONTEXT, CODEC_NAMES, CODEC_RAW

PILOT_UNITS = 1 << 16
"""Of each pilot frame: a change's cost is told by a few hundred changes as well as by ten thousand."""


@dataclass(frozen=True, slots=True)
class CodecChoice:
    """How codecs are chosen. The sizes are measured a tensor, the speeds are the codecs' constants: equal input, equal bytes."""

    forced: str | None = None
    """Name of the only codec to use."""
    link_bytes_per_second: float = 25e6
    """What a byte costs: the link that most replicas sit behind (200 Mbit/s)."""
    cores: int = 16
    """That share the work on either side; frames are independent."""
    dense_ratio: float = 0.75
    """Share changed from which `raw` is weighed too (FP32 views, high learning rates): below it, it never wins."""

    @property
    def takes_context(self) -> bool:
        """Whether tables for the context coder are worth making."""
        return self.forced is None or self.forced == CODEC_NAMES[CODEC_CONTEXT]

    def is_dense(self, changed: int, units: int) -> bool:
        """Whether frames of so many units are dense: `raw` may be the least for them, and they share no table with sparse ones."""
        if self.forced is not None:
            return self.forced == CODECS[CODEC_RAW].name
        return changed >= self.dense_ratio * units

    def choose(self, pilot: Sequence[FrameChange], context: Codec | None = None, *, table_changes: float = 1) -> Codec:
        """The codec for a tensor whose first changed frames are `pilot` (at least one).

        `context` is the context coder with a table that fits, where the tensor's dtype has one; so many changes share that table.
        """
        if self.forced is not None and (self.forced != CODEC_NAMES[CODEC_CONTEXT] or context is not None):
            return context if context is not None and self.forced == context.name else codec_named(self.forced)
        pilot = pilot[:PILOT_FRAMES]
        units = sum(change.units for change in pilot)
        changed = sum(change.positions.size for change in pilot)
        dense = self.is_dense(changed, units)
        heads = [change.head(PILOT_UNITS) for change in pilot]
        sample = [head for head in heads if head.positions.size] or [pilot[0]]
        units = sum(change.units for change in sample)
        changed = sum(change.positions.size for change in sample)

        def seconds(codec: Codec) -> float:
            return (units * codec.seconds_per_unit + changed * codec.seconds_per_change) / self.cores

        # leaving raw out below the dense threshold saves a copy of every pilot frame
        weighed = [codec for codec in CODECS.values() if dense or codec.id != CODEC_RAW]
        candidates = weighed if context is None else [*weighed, context]
        best, least = CODECS[CODEC_RAW], float("inf")
        for codec in sorted(candidates, key=seconds):
            if seconds(codec) >= least:
                break  # its time alone costs more than the best does with its bytes
            size = sum(len(codec.encode(change)) for change in sample)
            if codec.shared is not None:
                size += len(codec.shared) * changed / table_changes
            cost = seconds(codec) + size / self.link_bytes_per_second
            if cost < least:
                best, least = codec, cost
        return best
