"""Minimal idempotent batches of ever new producer ids, pipelined over one connection."""

from __future__ import annotations

import socket
import struct
from collections import Counter

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch
from kbroker.protocol.apis.records.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.codec import encode_request_frame

DEPTH = 400  # requests without answer
VERSION = 9
CRC_AT, CHECKED_FROM, PRODUCER_AT, SEQUENCE_AT = 17, 21, 43, 53


class ProducerFlood:
    """One connection, from an address of the loopback network of its own if `source` is given."""

    def __init__(self, address: tuple[str, int], topic: str, source: str = "", timeout_ms: int = 20_000) -> None:
        batch = build_batch([(None, b"", 1_700_000_000_000, [])], producer_id=0, producer_epoch=0, base_sequence=0)
        data = PartitionProduceData(index=0, records=batch)
        request = ProduceRequest(
            acks=1, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        self._frame = bytearray(encode_request_frame(0, VERSION, 1, "flood", request))
        self._batch = self._frame.index(batch)
        self._index = self._batch - 5  # the partition's number; one byte of length follows
        self._end = self._batch + len(batch)
        self._code = 5 + 1 + 1 + len(topic) + 1 + 4  # in the answer
        self._socket = socket.create_connection(address, 60, (source, 0) if source else None)
        self._answers = self._socket.makefile("rb", 1 << 20)

    def __enter__(self) -> ProducerFlood:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._socket.close()

    def send(self, producer_ids: range, *, sequence: int = 0, partitions: int = 1) -> Counter[int]:
        """One batch of each; returns how often each error code was answered."""
        codes: Counter[int] = Counter()
        waiting = 0
        out = bytearray()
        for producer_id in producer_ids:
            out += self._request(producer_id, sequence, producer_id % partitions)
            waiting += 1
            if waiting == DEPTH:
                self._socket.sendall(out)
                out.clear()
                waiting -= self._take(DEPTH // 2, codes)
        self._socket.sendall(out)
        self._take(waiting, codes)
        return codes

    def _request(self, producer_id: int, sequence: int, partition: int) -> bytes:
        frame, batch = self._frame, self._batch
        struct.pack_into(">i", frame, self._index, partition)
        struct.pack_into(">q", frame, batch + PRODUCER_AT, producer_id)
        struct.pack_into(">i", frame, batch + SEQUENCE_AT, sequence)
        struct.pack_into(">I", frame, batch + CRC_AT, crc32c(bytes(frame[batch + CHECKED_FROM : self._end])))
        return bytes(frame)

    def _take(self, count: int, codes: Counter[int]) -> int:
        for _ in range(count):
            (length,) = struct.unpack(">i", self._answers.read(4))
            (code,) = struct.unpack_from(">h", self._answers.read(length), self._code)
            codes[code] += 1
        return count
