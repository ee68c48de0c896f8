"""Codec ids -> codecs. A new codec is registered here and described in FORMAT.md; nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping

from syncline.codecs.base import Codec
from syncline.codecs.raw import RawCodec
from syncline.codecs.sparse import SparseCodec
from syncline.codecs.xor import xor_lz4, xor_zstd
from syncline.errors import FormatInvalid
from syncline.wire.limits import CODEC_NAMES

CODECS: Mapping[int, Codec] = {codec.id: codec for codec in (RawCodec(), SparseCodec(), xor_zstd(), xor_lz4())}


def codec(codec_id: int) -> Codec:
    """The codec of an id; FormatInvalid, by name where it has one, when this reader does not know it."""
    try:
        return CODECS[codec_id]
    except KeyError:
        name = CODEC_NAMES.get(codec_id, "unknown")
        known = ", ".join(c.name for c in CODECS.values())
        raise FormatInvalid(f"codec {codec_id} ({name}) is not one of {known}; update this reader") from None


def codec_named(name: str) -> Codec:
    """The codec of a name; FormatInvalid when there is none."""
    for candidate in CODECS.values():
        if candidate.name == name:
            return candidate
    raise FormatInvalid(f"codec {name!r} is not one of {', '.join(c.name for c in CODECS.values())}")
