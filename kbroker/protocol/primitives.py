"""What the compiled codecs call at run time: varints, arrays of numbers, unknown tags, and the errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct as Packer
from struct import error as StructError
from struct import pack, unpack_from
from typing import Any

from kbroker.errors import AnswerTooLong, ProtocolError
from kbroker.limits import ANSWER_BYTES_MAX
from kbroker.protocol.fields import Bytes

UVARINT_MAX = 0xFFFFFFFF
# One-byte varints, as bytes: index by the value.
UVARINT_BYTES = tuple(bytes((value,)) for value in range(128))
# Arrays shorter than this have a packer of their own, which spares the format string.
_SMALL = 16


def read_uvarint(buf: memoryview, position: int) -> tuple[int, int]:
    """Unsigned varint of at most 32 bits at `position`: (value, position after it)."""
    value = shift = 0
    while True:
        byte = buf[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise ProtocolError(f"varint longer than five bytes at {position - 5}")
    if value > UVARINT_MAX:
        raise ProtocolError(f"varint over 32 bits before {position}")
    return value, position


def uvarint(value: int) -> bytes:
    """`value` as an unsigned varint."""
    if value < 128:
        return UVARINT_BYTES[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(buf: memoryview, position: int, end: int) -> int:
    """Passes over a tagged-field section of which no tag is known; returns the position after it."""
    count, position = read_uvarint(buf, position)
    previous = -1
    for _ in range(count):
        tag, position = read_uvarint(buf, position)
        size, position = read_uvarint(buf, position)
        if tag <= previous or size > end - position:
            raise bad_tag(tag, previous, size, end - position)
        previous = tag
        position += size
    return position


def bad_tag(tag: int, previous: int, size: int, remaining: int) -> ProtocolError:
    """Tags must ascend and their values must lie in the buffer."""
    if tag <= previous:
        return ProtocolError(f"tagged field {tag} follows tagged field {previous}")
    return ProtocolError(f"tagged field {tag} of {size} bytes, {remaining} remain")


def bad_length(path: str, length: int, remaining: int) -> ProtocolError:
    """A string or bytes length that is negative, null where null is not allowed, or beyond the buffer."""
    if length < 0:
        return ProtocolError(f"{path}: null or negative length ({length})")
    return ProtocolError(f"{path}: length {length}, {remaining} bytes remain")


def bad_count(path: str, count: int, remaining: int, left: int) -> ProtocolError:
    """An array count that cannot be: more elements than the bytes left can hold, or over the limit."""
    if count > left:
        return ProtocolError(f"{path}: {count} elements, over the limit for one message")
    return bad_length(path, count, remaining)


def bad_tag_size(path: str) -> ProtocolError:
    """A known tagged field whose value is shorter or longer than its size says."""
    return ProtocolError(f"{path}: tagged field does not fill its size")


def make_array_packers(code: str, prefix: str) -> tuple[Callable[..., bytes], ...]:
    """`packers[n](prefix_value, *elements)` for short arrays."""
    return tuple(Packer(f">{prefix}{n}{code}").pack for n in range(_SMALL))


def pack_compact_array(values: Sequence[Any], code: str) -> bytes:
    """A long compact array of numbers."""
    return uvarint(len(values) + 1) + pack(f">{len(values)}{code}", *values)


def pack_array(values: Sequence[Any], code: str) -> bytes:
    """A long array of numbers with an int32 count."""
    return pack(f">i{len(values)}{code}", len(values), *values)


def join_pieces(pieces: list[Bytes], joined: list[Bytes]) -> None:
    """Joins `pieces` into one, appends it to `joined`, and clears `pieces`. Raises AnswerTooLong."""
    joined.append(b"".join(pieces))
    pieces.clear()
    if sum(map(len, joined)) > ANSWER_BYTES_MAX:
        raise AnswerTooLong(f"more than {ANSWER_BYTES_MAX} bytes")


__all__ = [
    "UVARINT_BYTES",
    "StructError",
    "bad_count",
    "bad_length",
    "bad_tag",
    "bad_tag_size",
    "join_pieces",
    "make_array_packers",
    "pack_array",
    "pack_compact_array",
    "read_uvarint",
    "skip_tags",
    "unpack_from",
    "uvarint",
]
