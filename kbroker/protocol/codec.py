"""Bytes to messages and back, by API key and version.

The broker reads requests and writes responses; the other direction serves the command line's client and the tests. All
readers raise ProtocolError for what does not parse, and bytes fields of what they return are views of the input.
"""

from __future__ import annotations

from struct import Struct

from kbroker.protocol.api_keys import ApiKey, request_class, response_class
from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersionsResponse
from kbroker.protocol.compiler import decode, decode_whole, encode, encode_parts, encode_pieces
from kbroker.protocol.fields import Bytes, Message
from kbroker.protocol.headers import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)

JOINED_BYTES_MAX = 16 * 1024  # of a piece that is copied rather than sent on its own

_INT32 = Struct(">i")


def decode_request(api_key: int, version: int, body: Bytes) -> Message:
    """The request in `body`, which starts after the header.

    Bytes after the request are ignored, as Kafka does: librdkafka (seen with 2.16) sends three when it asks for the
    metadata of all topics in a flexible version, where it writes the null array in four bytes instead of one.
    """
    message, _ = decode(request_class(api_key), version, body)
    return message


def encode_response(api_key: int, version: int, message: Message) -> bytes:
    """The body of a response, without header."""
    _check_class(response_class(api_key), message)
    return encode(message, version)


def encode_answer(api_key: int, version: int, correlation_id: int, message: Message) -> list[Bytes]:
    """Header and body of a response, in as few parts as its length allows."""
    _check_class(response_class(api_key), message)
    return encode_parts(encode_response_header(api_key, version, correlation_id), message, version)


def encode_response_frame(api_key: int, version: int, correlation_id: int, message: Message) -> bytes:
    """A whole response: frame length, header, body."""
    _check_class(response_class(api_key), message)
    return _frame(encode_response_header(api_key, version, correlation_id), encode_pieces(message, version))


def encode_request(api_key: int, version: int, message: Message) -> bytes:
    """The body of a request, without header."""
    _check_class(request_class(api_key), message)
    return encode(message, version)


def encode_request_frame(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytes:
    """A whole request: frame length, header, body."""
    return b"".join(encode_request_pieces(api_key, version, correlation_id, client_id, message))


def encode_request_pieces(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> list[Bytes]:
    """A whole request; its bytes fields, such as record batches, are pieces of their own and not copied."""
    _check_class(request_class(api_key), message)
    header = encode_request_header(RequestHeader(api_key, version, correlation_id, client_id))
    pieces: list[Bytes] = []
    small: list[Bytes] = [header]
    for piece in encode_pieces(message, version):
        if len(piece) < JOINED_BYTES_MAX:
            small.append(piece)
        else:
            pieces += [b"".join(small), piece]
            small = []
    pieces.append(b"".join(small))
    return [_INT32.pack(sum(map(len, pieces))), *pieces]


def decode_response(api_key: int, version: int, body: Bytes) -> Message:
    """The response in `body`, which starts after the header and holds nothing else.

    A broker that does not know the version of an ApiVersions request answers in version 0 (KIP-511): an ApiVersions
    response that does not parse in `version` is read as version 0 when its error code says so.
    """
    if api_key == ApiKey.API_VERSIONS and version > 0 and bytes(body[:2]) == _UNSUPPORTED_VERSION:
        return decode_whole(ApiVersionsResponse, 0, body)
    return decode_whole(response_class(api_key), version, body)


def decode_response_frame(api_key: int, version: int, frame: Bytes) -> tuple[int, Message]:
    """(correlation id, response) of a frame without its length."""
    correlation_id, position = decode_response_header(api_key, version, frame)
    return correlation_id, decode_response(api_key, version, memoryview(frame)[position:])


_UNSUPPORTED_VERSION = b"\x00\x23"  # error code 35


def _check_class(expected: type[Message], message: Message) -> None:
    if not isinstance(message, expected):
        raise ValueError(f"{type(message).__name__} given, {expected.__name__} expected")


def _frame(header: bytes, pieces: list[Bytes]) -> bytes:
    length = len(header) + sum(map(len, pieces))
    return b"".join((_INT32.pack(length), header, *pieces))
