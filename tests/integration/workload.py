"""The messages of the client tests: generated ones of every odd shape, and real text, keyed."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LICENSES = Path("/usr/share/common-licenses")  # on Debian; another source of text where it exists
FIRST_TIMESTAMP_MS = 1_700_000_000_000

Headers = tuple[tuple[str, bytes | None], ...]
ODD_HEADERS: Headers = (("trace", b"1"), ("trace", b"twice"), ("empty", b""), ("null", None), ("ключ", b"\x00\xff"))


@dataclass(frozen=True, slots=True)
class Message:
    """One record for a client to send; with `timestamp_ms` None the client chooses."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """One record as a client got it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = -1


# Messages by partition, in the order sent or read.
Sent = dict[int, list[Message]]
Read = dict[int, list[Delivered]]


class Shape(Enum):
    """The messages that a client can send."""

    ANY = "any"  # any bytes and headers, with timestamps
    BYTES = "bytes"  # the same, but no null headers, and not key and value null together
    TEXT = "text"  # lines with keys and headers, null marked
    PLAIN = "plain"  # lines with keys


def generated(count: int, seed: int, shape: Shape = Shape.ANY) -> list[Message]:
    """Messages with null, empty, short and long keys and values, with and without headers, as far as `shape` goes."""
    chosen = random.Random(seed)
    make = _any_message if shape in (Shape.ANY, Shape.BYTES) else _text_message
    return [make(chosen, number, f"{seed}-{number}".encode(), shape) for number in range(count)]


def _any_message(chosen: random.Random, number: int, name: bytes, shape: Shape) -> Message:
    key = chosen.choice((b"key-%d" % chosen.randrange(20), None, b"", bytes(range(256))))
    value = chosen.choice((_line(chosen, name), _line(chosen, name), None, b"", name + chosen.randbytes(1500)))
    headers = ODD_HEADERS[: chosen.randrange(len(ODD_HEADERS) + 1)]
    if shape is Shape.BYTES:
        headers = tuple(header for header in headers if header[1] is not None)
        value = b"" if key is None and value is None else value
    return Message(key, value, headers, FIRST_TIMESTAMP_MS + number * 1000 + chosen.randrange(1000))


def _text_message(chosen: random.Random, number: int, name: bytes, shape: Shape) -> Message:
    headers: Headers = (("name", name), ("kind", b"odd"))
    return Message(
        chosen.choice((b"key-%d" % chosen.randrange(20), None)),
        chosen.choice((_line(chosen, name), _line(chosen, name), None)),
        headers[: chosen.randrange(3)] if shape is Shape.TEXT else (),
    )


def _line(chosen: random.Random, name: bytes) -> bytes:
    return name + b" compressible" * chosen.randrange(80)


def sized(sizes: Sequence[int], seed: int, shape: Shape = Shape.ANY) -> list[Message]:
    """One message per size (bytes of the value), hard to compress."""
    chosen = random.Random(seed)
    if shape in (Shape.ANY, Shape.BYTES):
        return [Message(b"size-%d" % size, chosen.randbytes(size)) for size in sizes]
    return [Message(b"size-%d" % size, chosen.randbytes((size + 1) // 2).hex()[:size].encode()) for size in sizes]


def spread(messages: Sequence[Message], partitions: int) -> Sent:
    """The messages, dealt round-robin to the partitions."""
    return {index: list(messages[index::partitions]) for index in range(partitions)}


def in_turn(sent: Mapping[int, Sequence[Message]]) -> Iterator[tuple[int, Message]]:
    """(partition, message) in the order to send: round-robin over the partitions."""
    for row in range(max(map(len, sent.values()), default=0)):
        for partition, messages in sent.items():
            if row < len(messages):
                yield partition, messages[row]


@lru_cache(maxsize=1)
def text() -> tuple[Message, ...]:
    """Public texts by line, the text's title as key: the Python language reference, and licenses where there are."""
    from pydoc_data.topics import topics

    texts = dict(topics)
    if LICENSES.is_dir():
        for path in sorted(LICENSES.iterdir()):
            texts.setdefault(path.name, path.read_text(errors="replace"))
    texts["inspect"] = inspect.getsource(inspect)
    lines = [Message(title.encode(), line.encode()) for title, text in texts.items() for line in _lines(text)]
    random.Random(17).shuffle(lines)
    return tuple(lines)


def _lines(text: str) -> list[str]:
    """Lines with something in them: the tools that read lines skip empty ones."""
    return [line for line in (line.strip() for line in text.splitlines()) if line]


def by_key(messages: Sequence[Message]) -> dict[bytes | None, list[bytes | None]]:
    """Values by key in order."""
    values: dict[bytes | None, list[bytes | None]] = {}
    for message in messages:
        values.setdefault(message.key, []).append(message.value)
    return values


def assert_delivered(sent: Mapping[int, Sequence[Message]], read: Read) -> None:
    """Everything sent was read, in order, nothing else, with offsets from 0 on without gaps."""
    for partition in sorted(set(sent) | set(read)):
        expected, got = sent.get(partition, []), read.get(partition, [])
        offsets = [message.offset for message in got]
        assert offsets == list(range(len(expected))), f"offsets of partition {partition}"
        for message, delivered in zip(expected, got, strict=True):
            _assert_same(partition, message, delivered)


def _assert_same(partition: int, message: Message, delivered: Delivered) -> None:
    where = f"partition {partition} offset {delivered.offset}"
    assert delivered.key == message.key, where
    if delivered.value != message.value:
        lengths = (len(delivered.value or b""), len(message.value or b""))
        raise AssertionError(f"{where}: value differs (lengths {lengths[0]} and {lengths[1]})")
    assert delivered.headers == message.headers, where
    assert message.timestamp_ms in (None, delivered.timestamp_ms), where


def assert_text_delivered(sent: Sequence[Message], read: Read) -> None:
    """Keyed messages sent with the client's own partitioner: each key in one partition, its values in order."""
    homes: dict[bytes | None, int] = {}
    values: dict[bytes | None, list[bytes | None]] = {}
    for partition, messages in read.items():
        assert [message.offset for message in messages] == list(range(len(messages)))
        for message in messages:
            assert homes.setdefault(message.key, partition) == partition, f"key {message.key!r} in two partitions"
            values.setdefault(message.key, []).append(message.value)
    assert values == by_key(sent)
