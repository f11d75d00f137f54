"""A load of producers and a consumer that commits, which survives any number of broker kills.

An idempotent producer resends unanswered batches, in order and with their sequences, until they are answered. A plain
one never sends anything twice: an unanswered batch may be in the log or not, but never two times.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from kbroker._fast.records.records import build_batch, iter_records
from kbroker.errors import ErrorCode
from tests.crash.ledger import Ledger, origin_of, value_of
from tests.crash.raw_client import RawClient, batches_of, produce_request
from tests.integration.until import until

WINDOW = 5  # requests in flight of one producer
RECORDS_MAX = 8
PACE_SECONDS = 0.03
BROKER_SECONDS = 120.0  # a restart takes no longer
GROUP = "checker"
RETRIABLE = {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
}
REFUSALS = {ErrorCode.NOT_ENOUGH_REPLICAS}  # these promise that nothing was appended
COMMIT_RETRIABLE = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_SERVER_ERROR,  # a commit whose record was not durable when the broker began to stop
    ErrorCode.REQUEST_TIMED_OUT,
}


@dataclass(frozen=True)
class Kind:
    """How a producer of the load behaves."""

    name: str
    idempotent: bool
    acks: int
    codec: str
    window: int = WINDOW


KINDS = (
    Kind("idem-none", True, -1, "none"),
    Kind("idem-zstd", True, -1, "zstd"),
    Kind("idem-lz4", True, -1, "lz4", window=1),
    Kind("plain-gzip", False, -1, "gzip"),
    Kind("plain-snappy-one", False, 1, "snappy"),
    Kind("plain-none-zero", False, 0, "none", window=1),
)


@dataclass
class Sent:
    """One batch in flight."""

    partition: int
    first: int  # number of its first record
    count: int
    batch: bytes


class Worker:
    """A thread with a connection to the broker, which it opens again after each restart."""

    def __init__(self, load: Load, name: str) -> None:
        self.load = load
        self.name = name
        self.ledger = load.ledger
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            while (client := self._connect()) is not None:
                with contextlib.suppress(OSError), client:
                    self.session(client)
        except BaseException as error:
            self.ledger.violation(f"{self.name}: {error!r}")
            raise

    def _connect(self) -> RawClient | None:
        """A new connection, as soon as the broker is up; None once the thread may end."""
        clients: list[RawClient] = []

        def connected() -> bool:
            if not self.done():
                clients.append(RawClient(self.load.address, self.load.timeout_seconds))
            return True

        until(connected, "broker", seconds=BROKER_SECONDS, retried=(OSError,))
        return clients[0] if clients else None

    def done(self) -> bool:
        """Whether the thread may end."""
        return self.load.stopping.is_set()

    def session(self, client: RawClient) -> None:
        """Uses one connection until told to stop. Raises OSError when the connection ends."""
        raise NotImplementedError


class Producer(Worker):
    """Sends keyed, numbered records to random partitions."""

    def __init__(self, load: Load, kind: Kind, seed: int) -> None:
        super().__init__(load, kind.name)
        self.kind = kind
        self.random = random.Random(seed)
        self.producer_id = (-1, -1)
        self.sequences: dict[int, int] = {}
        self.waiting: list[Sent] = []  # idempotent: not acknowledged yet, in order of their sequences

    def done(self) -> bool:
        return super().done() and not self.waiting

    def session(self, client: RawClient) -> None:
        if self.kind.idempotent and self.producer_id == (-1, -1):
            self.producer_id = client.init_producer_id()
        while not self.done():
            if self.kind.acks == 0:
                self._send_blindly(client)
            else:
                self._exchange(client)
            self.load.stopping.wait(PACE_SECONDS)  # leaves the broker its share of the CPU

    def _exchange(self, client: RawClient) -> None:
        """Sends the unanswered batches and new ones, up to the window, and receives all answers."""
        flight = self.waiting[: self.kind.window]
        while len(flight) < self.kind.window and not self.load.stopping.is_set():
            flight.append(self._next())
            if self.kind.idempotent:
                self.waiting.append(flight[-1])
        for sent in flight:
            client.send(
                produce_request(
                    self.load.topic,
                    [(sent.partition, sent.batch)],
                    self.kind.acks,
                    self.load.produce_timeout_ms,
                )
            )
        failed: set[int] = set()  # partitions that refused a batch, and so refuse those after it
        for sent in flight:
            answer = client.receive().responses[0].partition_responses[0]
            if answer.error_code == 0:
                self.ledger.acknowledge(sent.partition, answer.base_offset, self.name, sent.first, sent.count)
                if self.kind.idempotent:
                    self.waiting.remove(sent)
                continue
            self.load.refusals += 1
            if answer.error_code in RETRIABLE:
                if not self.kind.idempotent and answer.error_code in REFUSALS:
                    self.ledger.refuse(sent.partition, self.name, sent.first, sent.count)
            elif not (
                answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and sent.partition in failed
            ):
                self.ledger.violation(
                    f"{self.name}: batch {sent.first} of partition {sent.partition}: error {answer.error_code} "
                    f"{answer.error_message}"
                )
            failed.add(sent.partition)

    def _send_blindly(self, client: RawClient) -> None:
        sent = self._next()
        client.send(produce_request(self.load.topic, [(sent.partition, sent.batch)], acks=0))
        client.topic(self.load.topic)  # answered after the batch: keeps the sender from running far ahead

    def _next(self) -> Sent:
        partition = self.random.randrange(self.ledger.partitions)
        count = self.random.randint(1, RECORDS_MAX)
        first = self.ledger.take_numbers(partition, self.name, count)
        name = self.name.encode()
        now_ms = int(time.time() * 1000)
        records = [
            (name, value_of(self.name, partition, first + i), now_ms, [("from", name)]) for i in range(count)
        ]
        sequence = -1
        if self.kind.idempotent:
            sequence = self.sequences.get(partition, 0)
            self.sequences[partition] = sequence + count
        producer_id, epoch = self.producer_id
        batch = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            codec=self.kind.codec,
        )
        return Sent(partition, first, count, batch)


class Consumer(Worker):
    """Reads all partitions to their ends and commits its positions."""

    def __init__(self, load: Load) -> None:
        super().__init__(load, "consumer")
        self.positions = dict.fromkeys(range(self.ledger.partitions), 0)

    def session(self, client: RawClient) -> None:
        while not self.done():
            for partition in self.positions:
                self._follow(client, partition)
            self._commit(client)

    def _follow(self, client: RawClient, partition: int) -> None:
        position = self.positions[partition]
        data = client.fetch(self.load.topic, partition, position, max_wait_ms=20, max_bytes=1 << 20)
        if data.error_code:
            self.ledger.violation(f"consumer: partition {partition} at {position}: error {data.error_code}")
            return
        for _, batch in batches_of(data):
            for record in iter_records(batch):
                if record.offset < position:
                    continue
                if record.offset != position:
                    self.ledger.violation(
                        f"consumer: offset {record.offset} of partition {partition} at {position}"
                    )
                self.ledger.observe(partition, record.offset, origin_of(partition, record))
                position = record.offset + 1
        self.positions[partition] = position

    def _commit(self, client: RawClient) -> None:
        offsets = {partition: (position, f"at {position}") for partition, position in self.positions.items()}
        for partition, (position, _) in offsets.items():
            self.ledger.commit_tried(partition, position)
        for partition, error_code in client.commit(GROUP, self.load.topic, offsets).items():
            if error_code == 0:
                self.ledger.commit_done(partition, offsets[partition][0])
            elif error_code not in COMMIT_RETRIABLE:
                self.ledger.violation(f"consumer: commit of partition {partition}: error {error_code}")


class Load:
    """All threads of a load; `running` starts and ends them."""

    def __init__(
        self,
        address: tuple[str, int],
        topic: str,
        ledger: Ledger,
        seed: int,
        *,
        kinds: tuple[Kind, ...] = KINDS,
        timeout_seconds: float = 30.0,
        produce_timeout_ms: int = 20_000,
    ) -> None:
        self.address = address
        self.topic = topic
        self.ledger = ledger
        self.timeout_seconds = timeout_seconds
        self.produce_timeout_ms = produce_timeout_ms
        self.refusals = 0  # answers with an error; about, as threads race
        self.stopping = threading.Event()
        self.producers = [Producer(self, kind, seed * 100 + i) for i, kind in enumerate(kinds)]
        self.consumer = Consumer(self)
        ledger.complete |= {kind.name for kind in kinds if kind.idempotent}

    @contextlib.contextmanager
    def running(self) -> Iterator[Load]:
        """Runs the load around the body. At the end, every idempotent record has its answer, or a violation says so."""
        workers: list[Worker] = [*self.producers, self.consumer]
        for worker in workers:
            worker.thread.start()
        try:
            yield self
        except BaseException:
            for producer in self.producers:
                producer.waiting = []  # so that it ends at once
            self.stopping.set()
            raise
        self.stopping.set()
        for worker in workers:
            worker.thread.join(60)
            if worker.thread.is_alive():
                self.ledger.violation(f"{worker.name} has no answers after 60 s")
        self.ledger.check()
