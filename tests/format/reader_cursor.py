"""Bytes and varints of the wire format's binary parts, as FORMAT.md section 5 has them.

Part of the independent reader; never imports Syncline.
"""

from __future__ import annotations

from reader_records import Refused, need


class Cursor:
    """Takes bytes off one buffer and refuses to run past its end."""

    def __init__(self, key: str, data: bytes) -> None:
        self.key, self.data, self.at = key, data, 0

    def take(self, size: int) -> bytes:
        need(size <= len(self.data) - self.at, self.key, "ends too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)

    def varint(self, most: int, longest: int = 9, least: int = 0) -> int:
        value = 0
        for place in range(longest):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * place
            if byte < 128:
                need(byte > 0 or place == 0, self.key, "a varint is not in its shortest form")
                need(least <= value <= most, self.key, f"{value} is not within {least} and {most}")
                return value
        raise Refused(f"{self.key}: a varint is too long")

    def finish(self) -> None:
        need(self.at == len(self.data), self.key, "bytes left over")
