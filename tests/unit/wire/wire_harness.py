"""A broker's wire and data path on a loopback socket, and a client that speaks frames."""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbroker._fast.partition.partition import Partition
from kbroker._fast.partition.producer_pool import ProducerPool
from kbroker._fast.records.records import build_batch, iter_batches, iter_records
from kbroker._fast.wal.arena import Arena
from kbroker.log.leaders import Leaders, OwnLeaders
from kbroker.protocol.apis.records import k00_produce as produce
from kbroker.protocol.apis.records import k01_fetch as fetch
from kbroker.protocol.codec import decode_response_frame, encode_request_frame
from kbroker.storage.wal.keeper import create_wal
from kbroker.wire.dispatch import AdvertisedListener
from kbroker.wire.server import WireOptions, WireServer, bind
from tests.integration.until import until as poll

MIB = 1 << 20
NOW_MS = 1_700_000_000_000
LONG_MS = 15_000  # longer than a test takes


@dataclass
class Topic:
    """What the data path reads of a TopicLog."""

    name: str
    topic_id: bytes
    partitions: list[Partition]
    config: Any = None


@dataclass
class Logs:
    by_name: dict[str, Topic] = field(default_factory=dict)
    by_id: dict[bytes, Topic] = field(default_factory=dict)


class WireBroker:
    """A WAL in a folder, topics without metadata, and a WireServer."""

    def __init__(
        self,
        folder: Path,
        topics: dict[str, int],
        *,
        dispatch: Callable[[Any], None] | None = None,
        options: WireOptions | None = None,
        leaders: Leaders | None = None,
        arena_bytes: int = 8 * MIB,
        segment_bytes: int = 4 * MIB,
        wal_bytes: int = 64 * MIB,
        cold_reader: Any = None,
        transactions: Any = None,
        host: str = "127.0.0.1",
        producers: ProducerPool | None = None,
    ) -> None:
        self.wal = create_wal(
            Arena(arena_bytes, MIB),
            folder,
            segment_bytes=segment_bytes,
            wal_bytes=wal_bytes,
            cluster_id=b"AAAAAAAAAAAAAAAAAAAAAA",
        )
        self.wal.start()
        self.logs = Logs()
        ordinal = 0
        for name, count in topics.items():
            topic = Topic(name, uuid.uuid5(uuid.NAMESPACE_DNS, name).bytes, [])
            for index in range(count):
                partition = Partition(self.wal, name, topic.topic_id, index, ordinal, 1, producers=producers)
                topic.partitions.append(partition)
                ordinal += 1
            self.logs.by_name[name] = topic
            self.logs.by_id[topic.topic_id] = topic
        self.executor = ThreadPoolExecutor(2)
        self.server = WireServer(
            self.wal,
            self.logs,
            dispatch or (lambda request: request.close_connection("no handlers")),
            options or WireOptions(),
            leaders=leaders or OwnLeaders(self.logs.by_id, 0, lambda: None),
            cold_reader=cold_reader,
            executor=self.executor,
        )
        self.server.verify_with(transactions)
        listening = bind(host, 0)
        self.address = listening.getsockname()
        self.server.listen(listening, AdvertisedListener("advertised", 9092))
        self.server.start()

    @property
    def reactor(self) -> Any:
        return self.server.reactors[0]

    def close(self) -> None:
        self.server.stop_accepting()
        self.server.stop()
        self.executor.shutdown()
        self.wal.close()


@contextmanager
def wire_broker(folder: Path, topics: dict[str, int] | None = None, **options: Any) -> Iterator[WireBroker]:
    broker = WireBroker(folder, topics or {"t": 1}, **options)
    try:
        yield broker
    finally:
        broker.close()


@dataclass
class Question:
    """One call of verify_partitions."""

    transactional_id: str
    producer: tuple[int, int]
    partitions: list[tuple[str, int]]
    add: bool
    future: Future[dict[tuple[str, int], int]]

    def answer(self, code: int = 0) -> None:
        self.future.set_result(dict.fromkeys(self.partitions, code))


class Coordinator:
    """A transaction coordinator that answers `codes` one by one, then `code`; with None the test answers."""

    def __init__(self, code: int | None = 0, codes: Sequence[int | None] = ()) -> None:
        self.code = code
        self.codes = list(codes)
        self.questions: list[Question] = []
        self.verification_enabled = True

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: list[Any], *, add: bool
    ) -> Future[dict[tuple[str, int], int]]:
        question = Question(transactional_id, (producer_id, producer_epoch), partitions, add, Future())
        self.questions.append(question)
        code = self.codes.pop(0) if self.codes else self.code
        if code is not None:
            question.answer(code)
        return question.future


class Client:
    """One connection."""

    def __init__(self, broker: WireBroker, timeout: float = 20.0, source: str = "") -> None:
        self.socket = socket.create_connection(broker.address[:2], timeout, (source, 0) if source else None)
        self.correlation_id = 0
        self.asked: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def frame(self, key: int, version: int, message: Any) -> bytes:
        self.correlation_id += 1
        self.asked[self.correlation_id] = (key, version)
        return bytes(encode_request_frame(key, version, self.correlation_id, "test", message))

    def send(self, key: int, version: int, message: Any) -> int:
        self.socket.sendall(self.frame(key, version, message))
        return self.correlation_id

    def read_exactly(self, n: int) -> bytes:
        parts = []
        while n:
            part = self.socket.recv(min(n, MIB))
            if not part:
                raise ConnectionError("closed by the broker")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    def receive_frame(self) -> bytes:
        (length,) = struct.unpack(">i", self.read_exactly(4))
        return self.read_exactly(length)

    def receive(self) -> tuple[int, Any]:
        """The next answer: (correlation id, message)."""
        frame = self.receive_frame()
        (correlation_id,) = struct.unpack_from(">i", frame)
        return decode_response_frame(*self.asked.pop(correlation_id), frame)

    def ask(self, key: int, version: int, message: Any) -> Any:
        sent = self.send(key, version, message)
        got, answer = self.receive()
        assert got == sent
        return answer

    def is_closed(self) -> bool:
        """Waits for the broker to close; False when bytes come instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


def batch(*values: bytes, **fields: Any) -> bytes:
    return build_batch([(b"k", value, NOW_MS, []) for value in values], **fields)


def produce_request(
    records: bytes | None, topic: str = "t", partition: int = 0, acks: int = -1, timeout_ms: int = 10_000
) -> produce.ProduceRequest:
    return produce_many([(topic, [(partition, records)])], acks, timeout_ms)


def produce_many(
    topics: list[tuple[Any, list[tuple[int, bytes | None]]]], acks: int = -1, timeout_ms: int = 10_000
) -> produce.ProduceRequest:
    """`topics`: names, or ids (bytes) for version 13."""
    data = []
    for topic, partitions in topics:
        item = produce.TopicProduceData(
            partition_data=[produce.PartitionProduceData(index=i, records=r) for i, r in partitions]
        )
        if isinstance(topic, bytes):
            item.topic_id = topic
        else:
            item.name = topic
        data.append(item)
    return produce.ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=data)


def fetch_request(
    *partitions: tuple[str | bytes, int, int],
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 * MIB,
    partition_max_bytes: int = MIB,
    session: tuple[int, int] = (0, -1),
    isolation_level: int = 0,
    leader_epoch: int = -1,
    forgotten: list[Any] | None = None,
) -> fetch.FetchRequest:
    """`partitions`: (topic, index, offset)."""
    topics: list[Any] = []
    for topic, index, offset in partitions:
        key = topic
        if not topics or key not in (topics[-1].topic, topics[-1].topic_id):
            item = fetch.FetchTopic()
            if isinstance(topic, bytes):
                item.topic_id = key
            else:
                item.topic = key
            topics.append(item)
        topics[-1].partitions.append(
            fetch.FetchPartition(
                partition=index,
                fetch_offset=offset,
                partition_max_bytes=partition_max_bytes,
                current_leader_epoch=leader_epoch,
            )
        )
    return fetch.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten_topics_data=forgotten or [],
    )


def produced(answer: Any) -> Any:
    """The only partition of a Produce answer."""
    return answer.responses[0].partition_responses[0]


def fetched(answer: Any) -> Any:
    """The only partition of a Fetch answer."""
    return answer.responses[0].partitions[0]


def values(records: Any) -> list[bytes]:
    return [bytes(r.value) for _, body in iter_batches(records) for r in iter_records(body)]


def later(broker: WireBroker, ms: int) -> None:
    """The reactor's clock moves on, and it looks at all connections."""
    broker.reactor.clock_offset_ms += ms
    broker.reactor.submit(lambda: None)


def until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread is about to do. AssertionError after ten seconds."""
    poll(condition, "change", seconds=10)
