"""Codec ids -> codecs. A new codec is registered here and described in FORMAT.md; nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from syncline.codecs.base import Codec
from syncline.codecs.context.alphabets import ALPHABETS
from syncline.codecs.context.codec import ContextCodec, read_params
from syncline.codecs.context.table import ContextTable
from syncline.codecs.raw import RawCodec
from syncline.codecs.sparse import SparseCodec
from syncline.codecs.xor import xor_lz4, xor_zstd
from syncline.errors import FormatInvalid
from syncline.wire.chunk import CodecTable
from syncline.wire.limits import CODEC_CONTEXT, CODEC_NAMES

CODECS: Mapping[int, Codec] = {codec.id: codec for codec in (RawCodec(), SparseCodec(), xor_zstd(), xor_lz4())}
"""Codecs that need nothing but the frame. `context` is bound to a table and a dtype: `SectionCodecs` and `codecs.context`."""


class SectionCodecs:
    """The codecs of one chunk's sections. A table is parsed once, however many sections share it."""

    def __init__(
        self, tables: Sequence[CodecTable], *, what: str, known: dict[bytes, ContextTable] | None = None
    ) -> None:
        """`known`: tables by their bytes, which grow by those of the chunk: all chunks of a delta often have the same. FormatInvalid when
        a table belongs to a codec that takes none."""
        for table in tables:
            if table.codec != CODEC_CONTEXT:
                raise FormatInvalid(f"{what} has a table for codec {_called(table.codec)}; it takes none")
        self._tables = tables
        self._what = what
        self._known = {} if known is None else known
        self._bound: dict[tuple[bytes, str], Codec] = {}

    def codec(self, codec_id: int, params: bytes, dtype: str) -> Codec:
        """The codec of a section; FormatInvalid, by name where it has one, when this reader does not know it or its parameters."""
        if codec_id == CODEC_CONTEXT:
            if (params, dtype) not in self._bound:
                self._bound[params, dtype] = self._context(params, dtype)
            return self._bound[params, dtype]
        if codec_id not in CODECS:
            known = ", ".join(sorted(CODEC_NAMES.values()))
            raise FormatInvalid(f"{self._what}: codec {_called(codec_id)} is not one of {known}; update this reader")
        if params:
            raise FormatInvalid(f"{self._what} has parameters for codec {_called(codec_id)}, which takes none")
        return CODECS[codec_id]

    def _context(self, params: bytes, dtype: str) -> Codec:
        alphabet = ALPHABETS.get(dtype)
        if alphabet is None:
            raise FormatInvalid(f"{self._what} codes a tensor of {dtype} by context, which has no such dtype")
        number, lane_shift = read_params(params, what=self._what)
        if number >= len(self._tables):
            raise FormatInvalid(f"{self._what} has a section with table {number} of {len(self._tables)}")
        data = bytes(self._tables[number].data)
        if data not in self._known:
            self._known[data] = ContextTable.parse(data, what=f"{self._what}, table {number}")
        return ContextCodec(self._known[data], alphabet, lane_shift)


def codec_named(name: str) -> Codec:
    """The codec of a name, of those that need nothing but the frame; FormatInvalid when there is none."""
    for candidate in CODECS.values():
        if candidate.name == name:
            return candidate
    raise FormatInvalid(f"codec {name!r} is not one of {', '.join(CODEC_NAMES.values())}")


def _called(codec_id: int) -> str:
    return f"{codec_id} ({CODEC_NAMES.get(codec_id, 'unknown')})"
