"""Fetch requests over a socket whose data is in objects: reactor, cold reader, object reader and store together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace

from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.limits import MIB
from kbroker.log.cold_read import ColdReader
from kbroker.storage.read.object_reader import ObjectReader
from kbroker.storage.stores.object_store import StoreUnavailable
from tests.unit.storage.read.object_bucket import ObjectBucket, batches
from tests.unit.wire.wire_harness import (
    LONG_MS,
    Client,
    WireBroker,
    batch,
    fetch_request,
    fetched,
    produce_request,
    until,
    wire_broker,
)


@contextlib.contextmanager
def cold_broker(folder, bucket: ObjectBucket, cache_bytes: int = 32 * MIB, **topics: int) -> Iterator[WireBroker]:
    """A broker whose WAL is empty: every offset below the end of the objects is cold."""
    reader = ObjectReader(bucket.store, bucket.image, cache_bytes)
    cold = ColdReader(reader)
    with wire_broker(folder, topics or {"t": 1}, cold_reader=cold) as broker:
        for topic in broker.logs.by_name.values():
            for partition in topic.partitions:
                state = bucket.image.partition(topic.topic_id, partition.index)
                if state is not None:
                    partition.set_next_offset(state.end_offset)
                partition.log = SimpleNamespace(partition=partition)
        broker.object_reader, broker.cold = reader, cold
        yield broker
    cold.close()


def offsets(partition) -> list[int]:
    return [r.offset for _, data in iter_batches(partition.records or b"") for r in iter_records(data)]


def test_a_consumer_reads_objects_then_the_log(tmp_path) -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, batches(0, 400, 3, 3000))
    bucket.pack([("t", 0, batches(1200, 5))])
    with cold_broker(tmp_path, bucket) as broker, Client(broker) as client:
        client.ask(0, 9, produce_request(batch(b"hot")))
        seen, offset = [], 0
        while offset <= 1215:
            got = fetched(client.ask(1, 11, fetch_request(("t", 0, offset), max_wait_ms=LONG_MS)))
            assert got.error_code == 0
            seen += [found for found in offsets(got) if found >= offset]
            assert seen[-1] >= offset
            offset = seen[-1] + 1
        assert seen == list(range(1216))


def test_a_fetch_without_wait_gets_cold_data_the_next_time(tmp_path) -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, batches(0, 10))
    with cold_broker(tmp_path, bucket) as broker, Client(broker) as client:
        for _ in range(10_000):
            got = fetched(client.ask(1, 11, fetch_request(("t", 0, 0), max_wait_ms=0)))
            if got.records:
                break
        assert offsets(got) == list(range(30))


def test_a_busy_partition_does_not_starve_a_cold_one(tmp_path) -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, batches(0, 10))
    with cold_broker(tmp_path, bucket, cache_bytes=1, t=2) as broker, Client(broker) as client:
        for _ in range(10_000):
            client.ask(0, 9, produce_request(batch(b"busy"), partition=1))
            end = broker.logs.by_name["t"].partitions[1].next_offset
            answer = client.ask(1, 11, fetch_request(("t", 0, 0), ("t", 1, end - 1), max_wait_ms=LONG_MS))
            cold, hot = answer.responses[0].partitions
            if cold.records:
                break
            assert offsets(hot) == [end - 1]
        assert offsets(cold) == list(range(30))


def test_store_errors_are_answered_and_then_pass(tmp_path) -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, batches(0, 10))

    def away(key, start):
        raise StoreUnavailable("away")

    with cold_broker(tmp_path, bucket) as broker, Client(broker) as client:
        bucket.store.before_get = away
        got = fetched(client.ask(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS)))
        assert (got.error_code, got.records or b"") == (56, b"")
        bucket.store.before_get = lambda key, start: None
        assert offsets(fetched(client.ask(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS)))) == list(range(30))


def test_a_read_that_takes_longer_than_its_fetch_serves_the_next_one(tmp_path) -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, batches(0, 10))
    go_on = threading.Event()
    bucket.store.before_get = lambda key, start: go_on.wait(20) and None
    with cold_broker(tmp_path, bucket) as broker, Client(broker) as client:
        assert not fetched(client.ask(1, 11, fetch_request(("t", 0, 0), max_wait_ms=1))).records
        go_on.set()
        assert offsets(fetched(client.ask(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS)))) == list(range(30))
        assert len(bucket.store.gets) == 1


def test_tail_reads_are_served_while_the_store_hangs(tmp_path) -> None:
    bucket = ObjectBucket()
    bucket.klix("t", 0, batches(0, 10))
    entered, go_on = threading.Event(), threading.Event()

    def hanging(key, start):
        entered.set()
        assert go_on.wait(20)

    bucket.store.before_get = hanging
    with cold_broker(tmp_path, bucket, t=2) as broker, Client(broker) as cold, Client(broker) as tail:
        cold.send(1, 11, fetch_request(("t", 0, 0), max_wait_ms=LONG_MS))
        assert entered.wait(20)
        tail.ask(0, 9, produce_request(batch(b"a"), partition=1))
        assert offsets(fetched(tail.ask(1, 11, fetch_request(("t", 1, 0))))) == [0]
        go_on.set()
        assert offsets(fetched(cold.receive()[1])) == list(range(30))


def test_unread_answers_hold_a_bounded_memory(tmp_path) -> None:
    bucket = ObjectBucket()
    for partition in range(40):
        bucket.klix("t", partition, batches(0, 400, 3, 3000))
    with cold_broker(tmp_path, bucket, cache_bytes=8 * MIB, t=40) as broker, contextlib.ExitStack() as stack:
        ranges = broker.object_reader.ranges
        stuck = [stack.enter_context(Client(broker)) for _ in range(40)]
        for index, client in enumerate(stuck):
            client.send(1, 11, fetch_request(("t", index, 0), max_wait_ms=LONG_MS, partition_max_bytes=3 * MIB))
        with Client(broker) as client:
            client.ask(0, 9, produce_request(batch(b"a")))  # it is served
        until(lambda: broker.cold.from_store + broker.cold.deferred == 40 and broker.cold.is_idle)
        # The clients asked for 120 MB, and up to four threads may read a window each before they see the bound.
        assert ranges.used_bytes + ranges.lent_bytes < 2 * 8 * MIB
