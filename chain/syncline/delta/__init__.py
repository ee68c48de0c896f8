"""The one place where kernels, codecs and wire meet: a step's changes into chunks, and chunks into staged changes.

`DeltaEncoder` turns old and new weights into chunks; `Delta` is one parsed delta; `stage_tensor` decodes a row of deltas against live
weights without writing to them; `scatter` writes what was staged; `read_back` looks whether it stands there.
"""

from syncline.delta.choice import CodecChoice
from syncline.delta.encode import DeltaEncoder, EncodedDelta, TensorChange
from syncline.delta.grouping import MAPPED_SPAN_BYTES, SPAN_BYTES
from syncline.delta.parsed import Delta
from syncline.delta.staged import Live, Place, StagedFrame, StagedTensor, read_back, scatter, stage_tensor, stage_whole
from syncline.delta.sums import count_nonfinite, digest_tensor

__all__ = [
    "MAPPED_SPAN_BYTES",
    "SPAN_BYTES",
    "CodecChoice",
    "Delta",
    "DeltaEncoder",
    "EncodedDelta",
    "Live",
    "Place",
    "StagedFrame",
    "StagedTensor",
    "TensorChange",
    "count_nonfinite",
    "digest_tensor",
    "read_back",
    "scatter",
    "stage_tensor",
    "stage_whole",
]
