"""The object store: the narrow interface that S3, a folder and memory implement with the same guarantees.

Guarantees of every store (tests/conformance proves them on each):

- An object appears whole or not at all, and a successful put is durable and visible to every later call.
- Listings are complete, in the byte order of the UTF-8 keys, and see every put that returned before them.
- ``if_none_match`` creates only; ``if_match`` replaces only the version with that ETag. Of racing writers one succeeds.
- A get returns exactly the requested bytes (cut at the object's end) or raises; never a short body.

A write that raises ``StoreUnavailable`` has an UNKNOWN outcome: it may have happened, or may still happen later.
Stores do not retry; ``store_wrappers.RetryingStore`` does, and never for a conditional write.
All methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from kbroker._fast.base.crc32c import crc32c as crc32c_of_bytes
from kbroker.errors import CorruptionError
from kbroker.limits import MIB

KEY_BYTES_MAX = 1024  # S3's own bound
PART_BYTES_MIN = 5 * MIB  # of every part of a multipart upload but the last (S3's own bound)
PARTS_MAX = 10_000
BODY_PIECE_BYTES = MIB  # bodies are read in pieces of this size, into reused buffers


class StoreError(Exception):
    """The store refused a request; the message names the store and the key. Trying again does not help."""


class NotFound(StoreError):
    """No object (or no multipart upload) has this key."""


class PreconditionFailed(StoreError):
    """The object exists (``if_none_match``), or is missing or another version (``if_match``)."""


class InvalidRange(StoreError):
    """The range starts at or after the object's end, or the object ends before the caller's buffer is full."""


class ChecksumMismatch(StoreError):
    """The received body does not have the CRC-32C in the request; nothing was stored."""


class StoreDenied(StoreError):
    """Credentials are missing, wrong, expired or lack the permission."""


class StoreUnavailable(StoreError):
    """Time-out, 5xx, network failure, disk full: may be retried. The outcome of a write is unknown."""


class StoreFull(StoreUnavailable):
    """The store has no room: may be retried once something was deleted. It fails fast."""


class ObjectMeta(NamedTuple):
    """What a store tells about an object."""

    key: str
    size: int
    etag: str  # opaque; changes with the object
    crc32c: int | None  # None where the store does not return it
    modified_ms: int  # the store's clock; 0 where the store does not return it (after a put)


class UploadedPart(NamedTuple):
    """One part of a multipart upload, as ``complete_multipart`` wants it back."""

    number: int  # 1..PARTS_MAX
    etag: str
    size: int
    crc32c: int | None


class PendingUpload(NamedTuple):
    """A multipart upload that was neither completed nor aborted."""

    key: str
    upload_id: str
    started_ms: int  # the store's clock


@runtime_checkable
class BodySource(Protocol):
    """A body that is read while it is sent.

    Reads are positional and repeatable: a retry reads again from 0. The owner keeps the source (arena chunks, WAL
    segments) alive until the put has returned or raised. A body may also have ``send_to``: see send_some.
    """

    @property
    def length(self) -> int:
        """Bytes in the whole body."""
        ...

    def read_into(self, position: int, out: memoryview) -> int:
        """Copies bytes from ``position`` into ``out``; returns how many (≥ 1 before the end, may be < len(out))."""
        ...


Body = bytes | BodySource


class ObjectStore(Protocol):
    """See the module's guarantees. Errors are subclasses of ``StoreError``."""

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        """Stores ``body``; at most one of the two conditions. ``crc32c`` is checked against the received body."""
        ...

    def get(self, key: str, start: int | None = None, length: int | None = None, if_match: str | None = None) -> bytes:
        """The object's bytes from ``start`` (0) for ``length`` (to the end), cut at its end."""
        ...

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None = None) -> int:
        """Fills all of ``out`` from ``start`` and returns its length; InvalidRange if the object ends earlier."""
        ...

    def head(self, key: str) -> ObjectMeta: ...

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        """Objects whose key starts with ``prefix``, in byte order, only those > ``start_after``; lazily."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes the objects of ``keys`` that exist; a missing one is no error."""
        ...

    def create_multipart(self, key: str) -> str:
        """Starts a multipart upload and returns its upload id."""
        ...

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None
    ) -> UploadedPart: ...

    def upload_part_copy(
        self,
        key: str,
        upload_id: str,
        number: int,
        source_key: str,
        start: int,
        length: int,
        *,
        if_match: str | None = None,
    ) -> UploadedPart:
        """A part copied by the store from a range of another object."""
        ...

    def complete_multipart(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = False
    ) -> ObjectMeta:
        """Creates the object from the parts, in the order of their numbers."""
        ...

    def abort_multipart(self, key: str, upload_id: str) -> None:
        """Drops an upload and its parts; no error if it is gone."""
        ...

    def list_multipart(self, prefix: str) -> Iterator[PendingUpload]:
        """Unfinished uploads of keys that start with ``prefix``, ordered by key; lazily."""
        ...

    def close(self) -> None: ...


class BytesBody:
    """A BodySource over bytes that are already in memory (borrowed, not copied)."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._view = memoryview(data).cast("B")
        self.length = len(self._view)

    def read_into(self, position: int, out: memoryview) -> int:
        piece = self._view[position : position + len(out)]
        out[: len(piece)] = piece
        return len(piece)


def as_source(body: Body) -> BodySource:
    """``body`` as a BodySource."""
    return BytesBody(body) if isinstance(body, (bytes, bytearray, memoryview)) else body


def read_some(source: BodySource, position: int, out: memoryview) -> int:
    """One read of the source; StoreError if it returns nothing or too much, which no source may do."""
    count = source.read_into(position, out)
    if not 0 < count <= len(out):
        raise StoreError(f"body source gave {count} bytes at {position} of {source.length}")
    return count


def send_some(source: BodySource, position: int, limit: int, fd: int, timeout_ms: int, rate: int = 0) -> int:
    """Lets a source with a method ``send_to`` send up to ``limit`` bytes from ``position`` to a socket, uncopied.

    ``rate`` is in bytes per second, 0 for no limit. Returns how many were sent; 0: these bytes must be read instead.
    Raises the socket's OSError, TimeoutError when the socket takes nothing for ``timeout_ms``.
    """
    send_to: Callable[[int, int, int, int, int], int] | None = getattr(source, "send_to", None)
    return send_to(position, limit, fd, timeout_ms, rate) if send_to is not None else 0


def read_whole(store: ObjectStore, key: str, bytes_max: int, if_match: str | None = None) -> bytes:
    """All bytes of an object. CorruptionError for an object of more than `bytes_max`, which is not read on."""
    try:
        data = store.get(key, 0, bytes_max + 1, if_match=if_match)
    except InvalidRange:
        return b""  # an empty object
    if len(data) > bytes_max:
        raise CorruptionError(f"{key}: more than {bytes_max} bytes, more than any such object has")
    return data


def read_exactly(source: BodySource, position: int, out: memoryview) -> None:
    """Fills ``out`` from ``position``; StoreError if the source ends early."""
    filled = 0
    while filled < len(out):
        filled += read_some(source, position + filled, out[filled:])


def body_pieces(body: Body, piece_bytes: int = BODY_PIECE_BYTES) -> Iterator[memoryview]:
    """The body in pieces, one per read of the source; a piece is valid until the next one is requested."""
    source = as_source(body)
    buffer = memoryview(bytearray(min(piece_bytes, max(source.length, 1))))
    position = 0
    while position < source.length:
        count = read_some(source, position, buffer[: source.length - position])
        yield buffer[:count]
        position += count


def body_crc32c(body: Body) -> int:
    """CRC-32C of a body, read in pieces."""
    value = 0
    for piece in body_pieces(body):
        value = crc32c_of_bytes(piece, value)
    return value


def check_key(key: str) -> bytes:
    """The key's UTF-8 bytes; ValueError for keys that some store could not hold."""
    encoded = key.encode("utf-8")
    if not 0 < len(encoded) <= KEY_BYTES_MAX:
        raise ValueError(f"object key of {len(encoded)} bytes (1 to {KEY_BYTES_MAX} allowed): {key[:80]!r}")
    if any(segment in ("", ".", "..") for segment in key.split("/")) or "\x00" in key:
        raise ValueError(f"object key has an empty or dot segment, or a NUL: {key!r}")
    return encoded


def check_conditions(if_none_match: bool, if_match: str | None) -> None:
    """ValueError when both conditions are given."""
    if if_none_match and if_match is not None:
        raise ValueError("if_none_match and if_match exclude each other")


def check_range(start: int | None, length: int | None) -> int:
    """The start of a range (0 if None); ValueError for negative values."""
    if (start or 0) < 0 or (length is not None and length < 0):
        raise ValueError(f"bad range: start {start}, length {length}")
    return start or 0


def check_parts(parts: Sequence[UploadedPart]) -> None:
    """ValueError unless the parts are what S3 takes: 1..PARTS_MAX, ascending, all but the last ≥ PART_BYTES_MIN."""
    numbers = [part.number for part in parts]
    if not parts or numbers != sorted(set(numbers)) or numbers[0] < 1 or numbers[-1] > PARTS_MAX:
        raise ValueError(f"part numbers must ascend within 1..{PARTS_MAX}: {numbers[:10]}")
    for part in parts[:-1]:
        if part.size < PART_BYTES_MIN:
            raise ValueError(f"part {part.number} has {part.size} bytes; all but the last need {PART_BYTES_MIN}")
