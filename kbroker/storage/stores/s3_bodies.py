"""Bodies that boto3 sends, and their checksums as S3 writes them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from kbroker.limits import KIB
from kbroker.storage.stores.object_store import Body, BodySource, StoreUnavailable, read_exactly

_PIECE_BYTES = 128 * KIB  # must be sent within the time that connecting may take


def body_arguments(body: Body, crc32c: int) -> tuple[dict[str, Any], int]:
    """boto3's arguments for a body, and its length."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        size = len(body)
        arguments: dict[str, Any] = {"Body": bytes(body)}
    else:
        size = body.length
        arguments = {"Body": BodyFile(body) if size else b"", "ContentLength": size}
    arguments["ChecksumCRC32C"] = encode_crc(crc32c)
    return arguments, size


class BodyFile:
    """A BodySource as the file object that botocore reads: one small buffer, reused for every piece.

    A returned view is valid until the next read; the HTTP layer has sent it by then. botocore asks for 16 KiB at a time
    and takes any length, so larger pieces are returned: fewer iterations.
    """

    def __init__(self, source: BodySource) -> None:
        self._source = source
        self._position = 0
        self._buffer = memoryview(bytearray(min(_PIECE_BYTES, source.length)))
        self.failure: BaseException | None = None  # botocore wraps what a body raises; this is the original

    def read(self, size: int = -1) -> memoryview | bytes:
        if size is None or size < 0:
            raise ValueError("a streamed body is never read whole")
        count = min(len(self._buffer), self._source.length - self._position)
        if count <= 0 or size == 0:
            return b""
        try:
            read_exactly(self._source, self._position, self._buffer[:count])
        except BaseException as error:
            self.failure = error
            raise
        self._position += count
        return self._buffer[:count].toreadonly()

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._source.length)[whence]
        return self._position

    def tell(self) -> int:
        return self._position


class CopiedRange:
    """A range of an object as a body: one request for each pass over it.

    `open_range(start, length)` returns the stream of bytes of the object; `name` is for messages.
    """

    def __init__(self, open_range: Callable[[int, int], Any], name: str, start: int, length: int) -> None:
        self.length = length
        self._open_range = open_range
        self._name = name
        self._start = start
        self._stream: Any = None
        self._position = 0

    def read_into(self, position: int, out: memoryview) -> int:
        if self._stream is None or position != self._position:
            self.close()
            self._stream = self._open_range(self._start + position, self.length - position)
        try:
            piece: bytes = self._stream.read(len(out))
        except Exception as error:
            raise StoreUnavailable(f"{self._name}: {' '.join(str(error).split())}") from error
        if not piece:
            raise StoreUnavailable(f"{self._name}: received {position} of {self.length} bytes")
        out[: len(piece)] = piece
        self._position = position + len(piece)
        return len(piece)

    def close(self) -> None:
        """Ends the request under way."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def encode_crc(value: int) -> str:
    """As in a request."""
    return base64.b64encode(value.to_bytes(4, "big")).decode("ascii")


def decode_crc(answer: dict[str, Any]) -> int | None:
    """The CRC-32C of the whole object; None if absent or a checksum of checksums (multipart)."""
    text = answer.get("ChecksumCRC32C")
    if not text or answer.get("ChecksumType") == "COMPOSITE":
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return int.from_bytes(raw, "big") if len(raw) == 4 else None
