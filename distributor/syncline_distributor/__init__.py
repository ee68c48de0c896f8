"""The trainer's side: publishes versions and keeps their chain (anchors, skip deltas, retention). No engine here.

`Publisher` is what a trainer embeds; everything else belongs to the service.
"""

from syncline_distributor.publisher import Published, Publisher
from syncline_distributor.settings import NonFinite, PublishSettings, codec_choice
from syncline_distributor.weights import Bits, WeightSource

__all__ = ["Bits", "NonFinite", "PublishSettings", "Published", "Publisher", "WeightSource", "codec_choice"]
