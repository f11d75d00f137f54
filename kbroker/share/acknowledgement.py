"""Acknowledgements as clients send them, their validation and meaning (KIP-932, KIP-1222)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.window import Delivery


class AcknowledgeType(IntEnum):
    """What a member has done with a record."""

    GAP = 0  # there is no record at this offset
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcknowledgementBatch(NamedTuple):
    """One type for all its offsets, or one for each."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class Piece(NamedTuple):
    """Consecutive offsets with the same acknowledgement."""

    first: int
    last: int
    kind: AcknowledgeType


OUTCOMES = {
    AcknowledgeType.GAP: Delivery.ARCHIVED,
    AcknowledgeType.ACCEPT: Delivery.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: Delivery.AVAILABLE,
    AcknowledgeType.REJECT: Delivery.ARCHIVED,
    AcknowledgeType.RENEW: Delivery.ACQUIRED,
}


def check(batches: Sequence[AcknowledgementBatch], renew: bool) -> None:
    """Raises INVALID_REQUEST for batches out of order, overlapping, or of unknown types. `renew`: RENEW is allowed."""
    reached = -1
    highest = AcknowledgeType.RENEW if renew else AcknowledgeType.REJECT
    for first, last, types in batches:
        if first > last or first < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "An acknowledgement batch ends before it begins.")
        if first <= reached:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Acknowledgement batches are out of order or overlap.")
        if not types:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "An acknowledgement batch has no types.")
        if len(types) > 1 and len(types) != last - first + 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "An acknowledgement batch has too many or too few types.")
        if min(types) < 0 or max(types) > highest:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "An acknowledgement type is not known, or not allowed here.")
        reached = last


def pieces(batches: Sequence[AcknowledgementBatch], start: int) -> Iterator[Piece]:
    """Checked batches in offset order, without offsets below `start`."""
    for first, last, types in batches:
        if last < start:
            continue
        if len(types) == 1:
            yield Piece(max(first, start), last, AcknowledgeType(types[0]))
            continue
        begin = max(first, start)
        for offset in range(begin + 1, last + 1):
            if types[offset - first] != types[begin - first]:
                yield Piece(begin, offset - 1, AcknowledgeType(types[begin - first]))
                begin = offset
        yield Piece(begin, last, AcknowledgeType(types[begin - first]))
