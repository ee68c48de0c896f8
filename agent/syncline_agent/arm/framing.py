"""The bytes of a message: a u32-LE length, and that many bytes of a JSON object whose `type` says what it is.

A length beyond MESSAGE_MAX_BYTES is refused before anything is read. No input or output here.
"""

from __future__ import annotations

import struct
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from syncline.errors import ProtocolViolation
from syncline_agent.arm.messages import PROTOCOL, Message

MESSAGE_MAX_BYTES = 16 << 20
LENGTH = struct.Struct("<I")
_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


def encode(message: Message) -> bytes:
    """Length and body."""
    body = message.model_dump_json().encode("utf-8")
    if len(body) > MESSAGE_MAX_BYTES:
        raise ProtocolViolation(f"a {message.type} of {len(body)} bytes is beyond {MESSAGE_MAX_BYTES}")
    return LENGTH.pack(len(body)) + body


def body_length(prefix: bytes) -> int:
    """Bytes that follow a length prefix; ProtocolViolation beyond the bound."""
    (length,) = LENGTH.unpack(prefix)
    if length > MESSAGE_MAX_BYTES:
        raise ProtocolViolation(
            f"a message of {length} bytes is beyond {MESSAGE_MAX_BYTES}; the peer is no arm or agent"
        )
    return length


def decode(body: bytes) -> Message:
    """The message in a body; ProtocolViolation for anything else. A hello of another protocol is refused by its number,
    whatever its other fields are."""
    try:
        return _ADAPTER.validate_json(body)
    except ValidationError as error:
        other = _other_protocol(body)
        if other is not None:
            raise ProtocolViolation(
                f"the peer speaks protocol {other}, this side {PROTOCOL}; run agent and engine of one release"
            ) from None
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ProtocolViolation(f"not a message of protocol {PROTOCOL}: {where}: {first['msg']}") from None


class _Numbered(BaseModel):
    protocol: int


def _other_protocol(body: bytes) -> int | None:
    try:
        spoken = _Numbered.model_validate_json(body).protocol
    except ValidationError:
        return None
    return None if spoken == PROTOCOL else spoken
