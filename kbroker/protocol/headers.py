"""Request and response headers (big-endian; the int32 frame length before them is not part of them).

Request header   0 api_key int16   2 api_version int16   4 correlation_id int32
                 8 client_id: int16 length (-1 null) and UTF-8; from v1; never compact, also in v2
                   tagged fields: from v2
Response header  0 correlation_id int32
                   tagged fields: from v1

A flexible API version has request header v2 and response header v1; others v1 and v0. ApiVersions is the exception: its
answer always has response header v0, because the client cannot know yet what the broker understands (KIP-511).
Request header v0 was used by ControlledShutdown v0 only.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from kbroker.errors import ProtocolError
from kbroker.protocol.api_keys import ApiKey, is_flexible
from kbroker.protocol.fields import Bytes
from kbroker.protocol.primitives import skip_tags

_FIXED = Struct(">hhi")
_FIXED_AND_LENGTH = Struct(">hhih")
_INT16 = Struct(">h")
_INT32 = Struct(">i")


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def request_header_version(api_key: int, api_version: int) -> int:
    """1 or 2. Any version may be asked, also an unserved one."""
    return 2 if is_flexible(api_key, api_version) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """0 or 1."""
    return 1 if api_key != ApiKey.API_VERSIONS and is_flexible(api_key, api_version) else 0


def peek_request_header(frame: Bytes) -> tuple[int, int, int]:
    """(api key, api version, correlation id) of a frame: what is needed when the rest does not parse."""
    if len(frame) < _FIXED.size:
        raise ProtocolError(f"request of {len(frame)} bytes: too short for a header")
    key, version, correlation_id = _FIXED.unpack_from(frame)
    return key, version, correlation_id


def decode_request_header(frame: Bytes, header_version: int | None = None) -> tuple[RequestHeader, int]:
    """Reads the header at the start of a frame; returns it and the offset of the body.

    The header version follows from the API key and version unless it is given.
    """
    key, api_version, correlation_id = peek_request_header(frame)
    if header_version is None:
        header_version = request_header_version(key, api_version)
    position = _FIXED.size
    if header_version == 0:
        return RequestHeader(key, api_version, correlation_id, None), position
    view = memoryview(frame)
    if len(view) < position + 2:
        raise ProtocolError("request header: ends before client_id")
    (length,) = _INT16.unpack_from(view, position)
    position += 2
    client_id = None
    if length >= 0:
        if length > len(view) - position:
            raise ProtocolError(f"request header: client_id of {length} bytes, {len(view) - position} remain")
        try:
            client_id = str(view[position : position + length], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"request header: client_id: {error}") from None
        position += length
    elif length != -1:
        raise ProtocolError(f"request header: client_id of length {length}")
    if header_version >= 2:
        try:
            position = skip_tags(view, position, len(view))
        except IndexError:
            raise ProtocolError("request header: ends in its tagged fields") from None
    return RequestHeader(key, api_version, correlation_id, client_id), position


def encode_request_header(header: RequestHeader, header_version: int | None = None) -> bytes:
    """The bytes of a request header."""
    key, version, correlation_id, client_id = header
    if header_version is None:
        header_version = request_header_version(key, version)
    if header_version == 0:
        return _FIXED.pack(key, version, correlation_id)
    tags = b"\0" if header_version >= 2 else b""
    if client_id is None:
        return _FIXED_AND_LENGTH.pack(key, version, correlation_id, -1) + tags
    name = client_id.encode()
    return _FIXED_AND_LENGTH.pack(key, version, correlation_id, len(name)) + name + tags


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The bytes of a response header."""
    return _INT32.pack(correlation_id) + b"\0" * response_header_version(api_key, api_version)


def decode_response_header(api_key: int, api_version: int, frame: Bytes) -> tuple[int, int]:
    """Reads the header at the start of a response frame; returns the correlation id and the offset of the body."""
    if len(frame) < _INT32.size:
        raise ProtocolError(f"response of {len(frame)} bytes: too short for a header")
    (correlation_id,) = _INT32.unpack_from(frame)
    if response_header_version(api_key, api_version) == 0:
        return correlation_id, _INT32.size
    try:
        return correlation_id, skip_tags(memoryview(frame), _INT32.size, len(frame))
    except IndexError:
        raise ProtocolError("response header: ends in its tagged fields") from None
