"""Kafka's text checkpoints (docs/formats/kafka-log.md).

    line 1   version: 0
    line 2   number of entries
    then     one entry per line, its fields separated by one space

`leader-epoch-checkpoint` of a partition has `<epoch> <start offset>`; the root folder's
`recovery-point-offset-checkpoint`, `replication-offset-checkpoint` (high watermarks), `log-start-offset-checkpoint` and
`cleaner-offset-checkpoint` have `<topic> <partition> <offset>`. `.kafka_cleanshutdown`, a JSON object, marks a
clean stop; Kafka removes it when it starts.

The parser accepts what Kafka 4.4 accepts: a file that ends before its second line is empty, a line ends at \n, \r or
\r\n, any run of blanks separates fields, numbers may have a sign and zeros before them, and the later of two entries
counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kbroker.errors import CorruptionError

VERSION = 0
LEADER_EPOCHS = "leader-epoch-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
CLEAN_SHUTDOWN_CONTENT = b'{"version":0,"brokerEpoch":-1}'
_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = re.compile(r"[ \t\x0b\f]+")
_NUMBER = re.compile(r"[+-]?\d+")  # digits of any script, as in Java's parser
_NUMBER_LENGTH_MAX = 4_000

TopicPartition = tuple[str, int]


def encode_leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """`leader-epoch-checkpoint` of (epoch, start offset) pairs."""
    return _encode([f"{epoch} {start}" for epoch, start in epochs])


def parse_leader_epochs(data: bytes, name: str = LEADER_EPOCHS) -> list[tuple[int, int]]:
    """(epoch, start offset) pairs in the order of the file. CorruptionError."""
    found: list[tuple[int, int]] = []
    for line in _lines(data, name):
        fields = _fields(line)
        if len(fields) != 2:
            raise CorruptionError(f"{name}: {line!r:.80} is not an epoch and an offset")
        found.append((_number(fields[0], name, 32), _number(fields[1], name, 64)))
    return found


def encode_partition_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """A root folder's checkpoint of one offset per partition."""
    return _encode([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def parse_partition_offsets(data: bytes, name: str) -> dict[TopicPartition, int]:
    """Offsets by (topic, partition). CorruptionError."""
    found: dict[TopicPartition, int] = {}
    for line in _lines(data, name):
        fields = _fields(line)
        if len(fields) != 3:
            raise CorruptionError(f"{name}: {line!r:.80} is not a topic, a partition and an offset")
        found[fields[0], _number(fields[1], name, 32)] = _number(fields[2], name, 64)
    return found


def _encode(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(lines)), *lines)).encode()


def _lines(data: bytes, name: str) -> list[str]:
    """The entries' lines."""
    try:
        lines = _LINE_END.split(data.decode())
    except UnicodeDecodeError as error:
        raise CorruptionError(f"{name}: not a checkpoint: {error}") from None
    if not lines[-1]:
        lines.pop()  # after the last line end
    if lines and _number(lines[0], name, 32) != VERSION:
        raise CorruptionError(f"{name}: version {lines[0]:.20}; version {VERSION} is understood")
    if len(lines) < 2:
        return []
    count = _number(lines[1], name, 32)
    if count != len(lines) - 2:
        raise CorruptionError(f"{name}: {count} entries announced, {len(lines) - 2} there")
    return lines[2:]


def _fields(line: str) -> list[str]:
    fields = _BLANKS.split(line)
    while fields and not fields[-1]:
        fields.pop()
    return fields


def _number(text: str, name: str, bits: int) -> int:
    """A signed number of so many bits, as in Java's parsers."""
    if len(text) <= _NUMBER_LENGTH_MAX and _NUMBER.fullmatch(text) and max(text) <= "\uffff":
        number = int(text)
        if -(1 << bits - 1) <= number < 1 << bits - 1:
            return number
    raise CorruptionError(f"{name}: {text!r:.40} is not a number of {bits} bits")
