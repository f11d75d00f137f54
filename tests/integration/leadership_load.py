"""Clients that produce, commit transactions and read while leaderships move, and what they were told."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

DEADLINE_SECONDS = 60.0
PASSING = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT)
BATCH = 40  # records between two looks at whether to stop
PADDING = b"." * 1500

Found = dict[int, list[tuple[int, bytes]]]  # by partition: offset and value, as they came


def is_end(message: Message) -> bool:
    """Whether it says that a partition was read to its end. Raises KafkaException if it is another error."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return error is not None


def end(transaction: Callable[[float], None]) -> bool:
    """Commits or aborts, and tries again while that is what the client says; False: it must be aborted."""
    while True:
        try:
            transaction(DEADLINE_SECONDS)
            return True
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                return False
            if not error.args[0].retriable():
                raise


class Load:
    """Threads of clients until `stop`. `acknowledged` has the offset of each value by topic and partition; `ended` says
    of the values of transactions whether they were committed."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.client = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.partitions = partitions
        self.acknowledged: dict[tuple[str, int], dict[bytes, int]] = {}
        self.ended: dict[bytes, bool] = {}
        self.failures: list[object] = []
        self.count = 0  # of acknowledged records
        self._lock = threading.Lock()  # of what the producers' callbacks change
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, run: Callable[..., None], *arguments: object) -> None:
        """Runs one of the methods below until `stop`."""

        def guarded() -> None:
            try:
                run(*arguments)
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Ends all of them once what they have sent is answered."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(2 * DEADLINE_SECONDS)
            assert not thread.is_alive()
        assert not self.failures, self.failures

    def produce(self, name: str, topic: str, seed: int, keys: int = 0) -> None:
        """An idempotent producer. `keys`: so many, else none; a key has one partition."""
        chosen = random.Random(seed)
        producer = Producer({**self.client, "enable.idempotence": True, "linger.ms": 2, "batch.size": 16_000})
        number = 0
        while not self._stopped.is_set():
            for _ in range(BATCH):
                index = chosen.randrange(self.partitions)
                key = b"%d" % (index + self.partitions * chosen.randrange(keys)) if keys else None
                value = b"%s:%08d" % (name.encode(), number) + PADDING[: chosen.randrange(len(PADDING))]
                producer.produce(topic, value, key, index, on_delivery=self._delivered)
                number += 1
            producer.flush(DEADLINE_SECONDS)
        assert producer.flush(DEADLINE_SECONDS) == 0

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
            return
        place = message.topic(), message.partition()
        with self._lock:
            self.acknowledged.setdefault(place, {})[message.value()] = message.offset()
            self.count += 1

    def transact(self, name: str, topic: str, seed: int) -> None:
        """A transactional producer that commits or aborts as it likes."""
        chosen = random.Random(seed)
        producer = Producer({**self.client, "transactional.id": name, "linger.ms": 2})
        producer.init_transactions(DEADLINE_SECONDS)
        number = 0
        while not self._stopped.is_set():
            producer.begin_transaction()
            values = [b"%s:%08d" % (name.encode(), number + each) for each in range(chosen.randrange(1, BATCH))]
            number += len(values)
            commits = chosen.random() < 0.7
            for value in values:
                producer.produce(topic, value, partition=chosen.randrange(self.partitions))
            if commits and not end(producer.commit_transaction):
                commits = False
            if not commits:
                assert end(producer.abort_transaction)
            self.ended.update(dict.fromkeys(values, commits))

    def follow(self, topic: str) -> None:
        """A consumer that reads what comes: offsets only go up, and each value is the one acknowledged there."""
        consumer = self._consumer(topic)
        reached = [-1] * self.partitions
        try:
            while not self._stopped.is_set():
                for message in consumer.consume(500, 0.1):
                    if not is_end(message):
                        assert message.offset() > reached[message.partition()]
                        reached[message.partition()] = message.offset()
        finally:
            consumer.close()

    def delete_records(self, topic: str, seed: int) -> None:
        """Raises the log starts again and again."""
        chosen = random.Random(seed)
        admin = AdminClient(self.client)
        while not self._stopped.is_set():
            index = chosen.randrange(self.partitions)
            for future in admin.delete_records([Place(topic, index, OFFSET_END)], request_timeout=10).values():
                try:
                    future.result(DEADLINE_SECONDS)
                except KafkaException as error:
                    if error.args[0].code() not in PASSING:
                        raise

    def read(self, topic: str) -> Found:
        """What a new consumer reads up to the end of each partition."""
        consumer = self._consumer(topic)
        found: Found = {index: [] for index in range(self.partitions)}
        left = set(found)
        try:
            while left:
                message = consumer.poll(DEADLINE_SECONDS)
                assert message is not None, f"partitions {left} of {topic} do not come to an end"
                if is_end(message):
                    left.discard(message.partition())
                else:
                    found[message.partition()].append((message.offset(), message.value()))
        finally:
            consumer.close()
        return found

    def _places(self, topic: str) -> list[Place]:
        return [Place(topic, index, OFFSET_BEGINNING) for index in range(self.partitions)]

    def _consumer(self, topic: str) -> Consumer:
        consumer = Consumer(
            {**self.client, "group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "earliest",
             "isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": 100}
        )  # fmt: skip
        consumer.assign(self._places(topic))
        return consumer
