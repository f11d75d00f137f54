"""Kafka's text checkpoints (docs/formats/kafka-log.md).

    line 1   version: 0
    line 2   number of entries
    then     one entry per line, its fields separated by one space

`leader-epoch-checkpoint` of a partition has `<epoch> <start offset>`; the root folder's
`recovery-point-offset-checkpoint`, `replication-offset-checkpoint` (high watermarks), `log-start-offset-checkpoint` and
`cleaner-offset-checkpoint` have `<topic> <partition> <offset>`. `.kafka_cleanshutdown`, a JSON object, tells that the
broker stopped cleanly; Kafka removes it when it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.errors import CorruptionError

VERSION = "0"
LEADER_EPOCHS = "leader-epoch-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
CLEAN_SHUTDOWN_CONTENT = b'{"version":0,"brokerEpoch":-1}'
ENTRIES_MAX = 10_000_000

TopicPartition = tuple[str, int]


def encode_leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """`leader-epoch-checkpoint` of (epoch, start offset) pairs."""
    return _encode([f"{epoch} {start}" for epoch, start in epochs])


def parse_leader_epochs(data: bytes, name: str = LEADER_EPOCHS) -> list[tuple[int, int]]:
    """(epoch, start offset) pairs, both ascending. CorruptionError."""
    found: list[tuple[int, int]] = []
    for line in _lines(data, name):
        fields = line.split(" ")
        if len(fields) != 2:
            raise CorruptionError(f"{name}: {line!r:.80} is not an epoch and an offset")
        epoch, start = _number(fields[0], name, (1 << 31) - 1), _number(fields[1], name)
        if found and (epoch <= found[-1][0] or start < found[-1][1]):
            raise CorruptionError(f"{name}: epoch {epoch} at {start} behind {found[-1]}")
        found.append((epoch, start))
    return found


def encode_partition_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """A root folder's checkpoint of one offset per partition."""
    return _encode([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def parse_partition_offsets(data: bytes, name: str) -> dict[TopicPartition, int]:
    """Offsets by (topic, partition). CorruptionError."""
    found: dict[TopicPartition, int] = {}
    for line in _lines(data, name):
        fields = line.split(" ")
        if len(fields) != 3 or not fields[0]:
            raise CorruptionError(f"{name}: {line!r:.80} is not a topic, a partition and an offset")
        key = (fields[0], _number(fields[1], name, (1 << 31) - 1))
        if key in found:
            raise CorruptionError(f"{name}: {key} is in it twice")
        found[key] = _number(fields[2], name)
    return found


def _encode(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (VERSION, str(len(lines)), *lines)).encode()


def _lines(data: bytes, name: str) -> list[str]:
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"{name}: not a checkpoint: {error}") from None
    if not lines or lines[0] != VERSION:
        raise CorruptionError(f"{name}: version {lines[0] if lines else ''!r:.20}; version {VERSION} is understood")
    count = _number(lines[1], name, ENTRIES_MAX) if len(lines) > 1 else -1
    if count < 0 or count != len(lines) - 2:
        raise CorruptionError(f"{name}: {count} entries announced, {max(len(lines) - 2, 0)} there")
    return lines[2:]


def _number(text: str, name: str, highest: int = (1 << 63) - 1) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > highest:
        raise CorruptionError(f"{name}: {text!r:.40} is not a number up to {highest}")
    return int(text)
