"""Compiles the field tables into one decode and one encode function per (message, version), at first use.

The functions are kept on the message class; compiling one twice from two threads is harmless. The compiled source holds
names and constants of the tables only, nothing that came from a client.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from kbroker.errors import ProtocolError
from kbroker.limits import CLIENT_ARRAY_LENGTH_MAX
from kbroker.protocol.emit_decode import DecodeEmitter
from kbroker.protocol.emit_encode import EncodeEmitter
from kbroker.protocol.fields import Bytes, Message, Struct
from kbroker.protocol.primitives import StructError

M = TypeVar("M", bound=Message)
Encoder = Callable[[Any, list[Bytes], list[Bytes]], None]

# Only clients are held to the limit on elements: an answer or a log record was built by a broker, and its arrays
# are bounded by its bytes.
_NO_LIMIT = 2**31


def decoder(cls: type[Message], version: int) -> Callable[[memoryview, int], tuple[Any, int]]:
    """The function that reads `cls` in `version`: (buffer, position) -> (message, position after it)."""
    function = cls.DECODERS.get(version)
    if function is None:
        check_version(cls, version)
        limit = CLIENT_ARRAY_LENGTH_MAX if cls.__name__.endswith("Request") else _NO_LIMIT
        emitter = DecodeEmitter(cls, version, limit)
        function = cls.DECODERS[version] = _build(emitter.source(), emitter.names, cls, version, "decode")
    return function


def encoder(cls: type[Message], version: int) -> Encoder:
    """The function that writes `cls` in `version`: (message, list of pieces, list of what was joined of them)."""
    function = cls.ENCODERS.get(version)
    if function is None:
        check_version(cls, version)
        emitter = EncodeEmitter(cls, version)
        function = cls.ENCODERS[version] = _build(emitter.source(), emitter.names, cls, version, "encode")
    return function


def decode(cls: type[M], version: int, body: Bytes, position: int = 0) -> tuple[M, int]:
    """Reads one message at `position`; returns it and the position after it.

    Raises ProtocolError for anything that does not parse. Bytes fields are views of `body`.
    """
    function = decoder(cls, version)
    view = body if isinstance(body, memoryview) else memoryview(body)
    try:
        return function(view, position)
    except (StructError, IndexError):
        raise ProtocolError(f"{cls.__name__} v{version}: ends early, {len(view)} bytes") from None
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{cls.__name__} v{version}: {error}") from None


def decode_whole(cls: type[M], version: int, body: Bytes) -> M:
    """Like `decode`, and nothing may follow the message."""
    message, position = decode(cls, version, body)
    if position != len(body):
        raise ProtocolError(f"{cls.__name__} v{version}: {len(body) - position} bytes after the end")
    return message


def encode(message: Message, version: int) -> bytes:
    """The bytes of `message` in `version`. Fields that the version does not carry are left out.

    Raises ValueError naming the field when a value does not fit its type.
    """
    return b"".join(encode_pieces(message, version))


def encode_pieces(message: Message, version: int) -> list[Bytes]:
    """The bytes of `message` as a list of pieces. Those of a long message are joined, some thousand at a time; in a
    short one bytes fields are uncopied."""
    pieces: list[Bytes] = []
    return _encode(message, version, pieces) + pieces


def encode_parts(head: bytes, message: Message, version: int) -> list[Bytes]:
    """`head` and the bytes of `message`: one piece, or several where the message is long. Raises AnswerTooLong."""
    pieces: list[Bytes] = [head]
    parts = _encode(message, version, pieces)
    parts.append(b"".join(pieces))
    return parts


def encode_struct(message: type[Message], item: Struct, version: int) -> bytes:
    """The bytes of a structure in an array of `message`, which takes them in its place. Raises as `encode`."""
    pieces: list[Bytes] = []
    encode_item = _struct_encoder(message, type(item), version)
    return b"".join(_run(encode_item, item, version, pieces) + pieces)


@cache
def _struct_encoder(message: type[Message], cls: type[Struct], version: int) -> Encoder:
    emitter = EncodeEmitter(message, version)
    return _build(emitter.source(cls), emitter.names, message, version, "encode")


def _encode(message: Message, version: int, pieces: list[Bytes]) -> list[Bytes]:
    """Adds to `pieces`; returns what was joined of them, which comes before the rest."""
    return _run(encoder(type(message), version), message, version, pieces)


def _run(encode: Encoder, value: Struct, version: int, pieces: list[Bytes]) -> list[Bytes]:
    joined: list[Bytes] = []
    try:
        encode(value, pieces, joined)
    except (StructError, TypeError, AttributeError, UnicodeEncodeError) as error:
        from kbroker.protocol.diagnose import misfit

        field = misfit(value, version)
        raise ValueError(f"{type(value).__name__} v{version}: {field or error}") from error
    return joined


def check_version(cls: type[Message], version: int) -> None:
    if version not in cls.VERSIONS:
        raise ProtocolError(f"{cls.__name__}: no version {version} ({cls.VERSIONS.first} to {cls.VERSIONS.last})")


def _build(source: str, names: dict[str, Any], cls: type[Message], version: int, kind: str) -> Callable[..., Any]:
    exec(compile(source, f"<{cls.__name__} v{version} {kind}>", "exec"), names)
    function: Callable[..., Any] = names[kind]
    return function
