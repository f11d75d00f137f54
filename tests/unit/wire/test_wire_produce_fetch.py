"""Produce and Fetch through real sockets."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from kbroker._fast.records.compression import CODECS
from kbroker._fast.records.records import build_batch, iter_batches, iter_records
from kbroker.wire.server import WireOptions
from tests.unit.wire.wire_harness import (
    LONG_MS,
    MIB,
    NOW_MS,
    Client,
    Coordinator,
    batch,
    fetch_request,
    fetched,
    produce_many,
    produce_request,
    produced,
    values,
    wire_broker,
)


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_then_fetch_by_name(tmp_path, version):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        first = produced(client.ask(0, version, produce_request(batch(b"a", b"b"))))
        second = produced(client.ask(0, version, produce_request(batch(b"c"))))
        assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)
        answer = fetched(client.ask(1, min(version + 1, 12), fetch_request(("t", 0, 1))))
        assert answer.error_code == 0
        assert answer.high_watermark == 3
        assert values(answer.records) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("version", range(13, 19))
def test_produce_and_fetch_by_topic_id(tmp_path, version):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        topic_id = broker.logs.by_name["t"].topic_id
        answer = client.ask(0, 13, produce_many([(topic_id, [(0, batch(b"x"))])]))
        assert produced(answer).error_code == 0
        assert values(fetched(client.ask(1, version, fetch_request((topic_id, 0, 0)))).records) == [b"x"]
        unknown = client.ask(1, version, fetch_request((b"\x01" * 16, 0, 0)))
        assert fetched(unknown).error_code == 100
        unknown = client.ask(0, 13, produce_many([(b"\x01" * 16, [(0, batch(b"x"))])]))
        assert produced(unknown).error_code == 100
        for partition in (1, -1):  # of a topic that is known
            answer = client.ask(0, 13, produce_many([(topic_id, [(partition, batch(b"x"))])]))
            assert produced(answer).error_code == 3
            assert fetched(client.ask(1, version, fetch_request((topic_id, partition, 0)))).error_code == 3


def test_pipelined_produces_are_answered_in_order(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        frames = [client.frame(0, 9, produce_request(batch(b"%d" % i))) for i in range(200)]
        client.socket.sendall(b"".join(frames))
        answers = [client.receive() for _ in range(200)]
        assert [correlation for correlation, _ in answers] == list(range(1, 201))
        assert [produced(answer).base_offset for _, answer in answers] == list(range(200))


def test_partitions_succeed_and_fail_on_their_own(tmp_path):
    good, bad = batch(b"v"), bytearray(batch(b"v"))
    bad[-1] ^= 1
    with wire_broker(tmp_path, {"t": 2, "u": 1}) as broker, Client(broker) as client:
        parts = [(0, good), (1, bytes(bad)), (7, good)]
        request = produce_many([("t", parts), ("missing", [(0, good)]), ("u", [(0, good)])])
        answer = client.ask(0, 9, request)
        errors = {(t.name, p.index): p.error_code for t in answer.responses for p in t.partition_responses}
        assert errors == {("t", 0): 0, ("t", 1): 2, ("t", 7): 3, ("missing", 0): 3, ("u", 0): 0}


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (None, 87),
        (b"", 87),
        (batch(b"a") * 2, 87),
        (batch(b"a")[:-1], 87),
        (batch(b"x" * 2_000_000), 10),
        (b"\0" * 61, 2),
    ],
)
def test_refused_records(tmp_path, records, error):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        assert produced(client.ask(0, 8, produce_request(records))).error_code == error
        assert broker.logs.by_name["t"].partitions[0].next_offset == 0


def test_bad_acks_and_internal_topics(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        assert produced(client.ask(0, 9, produce_request(batch(b"a"), acks=2))).error_code == 21
        transactional = batch(b"a", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
        assert produced(client.ask(0, 9, produce_request(transactional))).error_code == 53
        broker.logs.by_name["t"].partitions[0].rules.internal = True
        assert produced(client.ask(0, 9, produce_request(batch(b"a")))).error_code == 17


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_validated(tmp_path, codec):
    small = batch(b"s", codec=codec)
    large = batch(*(b"%d" % i * 50 for i in range(9000)), codec=codec)
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        client.socket.sendall(client.frame(0, 9, produce_request(large)) + client.frame(0, 9, produce_request(small)))
        assert [produced(client.receive()[1]).base_offset for _ in range(2)] == [0, 9000]
        if codec == "zstd":
            assert produced(client.ask(0, 6, produce_request(small))).error_code == 76
        torn = bytearray(small)
        torn[-3] ^= 0xFF
        assert produced(client.ask(0, 9, produce_request(bytes(torn)))).error_code in (2, 87)


def test_log_append_time_is_stamped_and_answered(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        broker.logs.by_name["t"].partitions[0].rules.log_append_time = True
        answer = produced(client.ask(0, 9, produce_request(batch(b"a"))))
        assert answer.log_append_time_ms > NOW_MS
        records = fetched(client.ask(1, 11, fetch_request(("t", 0, 0)))).records
        assert int.from_bytes(records[35:43], "big") == answer.log_append_time_ms
        assert produced(client.ask(0, 9, produce_request(bytes(batch(b"b"))))).error_code == 0


def test_log_append_time_of_a_duplicate_is_that_of_the_first(tmp_path):
    once = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0, codec="gzip")
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        broker.logs.by_name["t"].partitions[0].rules.log_append_time = True
        first = produced(client.ask(0, 9, produce_request(once)))
        while True:  # until the broker's clock has moved
            other = produced(client.ask(0, 9, produce_request(batch(b"b"))))
            if other.log_append_time_ms > first.log_append_time_ms:
                break
        again = produced(client.ask(0, 9, produce_request(once)))
        assert (again.base_offset, again.log_append_time_ms) == (0, first.log_append_time_ms)


@pytest.mark.parametrize("target", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("source", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression_type_of_the_topic(tmp_path, source, target):
    small = batch(b"s", codec=source, producer_id=7, producer_epoch=0, base_sequence=0)
    large = batch(*(b"%d" % i * 50 for i in range(9000)), codec=source)
    with wire_broker(tmp_path, options=WireOptions(fetch_near_bytes=20 * MIB)) as broker, Client(broker) as client:
        rules = broker.logs.by_name["t"].partitions[0].rules
        rules.codec, rules.max_message_bytes = CODECS[target], 3 * MIB
        client.socket.sendall(client.frame(0, 9, produce_request(large)) + client.frame(0, 9, produce_request(small)))
        assert [produced(client.receive()[1]).base_offset for _ in range(2)] == [0, 9000]
        assert produced(client.ask(0, 9, produce_request(small))).base_offset == 9000  # known as a duplicate
        stored = bytes(fetched(client.ask(1, 11, fetch_request(("t", 0, 0), partition_max_bytes=20 * MIB))).records)
        assert [header.codec for header, _ in iter_batches(stored, check_crc=True)] == [CODECS[target]] * 2
        assert values(stored) == [b"%d" % i * 50 for i in range(9000)] + [b"s"]
        if source == target:
            assert stored[21:].startswith(large[21:])  # the client's bytes


@pytest.mark.parametrize("values_count", [1, 9000])
def test_a_batch_too_large_after_re_encoding_is_refused(tmp_path, values_count):
    data = batch(*(b"%d" % i * 50 for i in range(values_count)), codec="zstd")
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        rules = broker.logs.by_name["t"].partitions[0].rules
        rules.codec, rules.max_message_bytes = 0, len(data)
        answer = produced(client.ask(0, 9, produce_request(data)))
        assert (answer.error_code, answer.error_message) == (10, "the batch is larger than max.message.bytes")
        rules.codec = -1
        assert produced(client.ask(0, 9, produce_request(data))).error_code == 0


def test_compression_with_log_append_time_and_a_wrong_max_timestamp(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        rules = broker.logs.by_name["t"].partitions[0].rules
        rules.codec = 4
        client.ask(0, 9, produce_request(batch(b"a", max_timestamp=NOW_MS + 77)))
        rules.log_append_time = True
        told = produced(client.ask(0, 9, produce_request(batch(b"b")))).log_append_time_ms
        stored = bytes(fetched(client.ask(1, 11, fetch_request(("t", 0, 0)))).records)
        headers = [header for header, _ in iter_batches(stored, check_crc=True)]
        assert [(h.codec, h.timestamp_type, h.max_timestamp) for h in headers] == [(4, 0, NOW_MS), (4, 1, told)]


def test_offset_deltas_of_compressed_batches_are_renumbered(tmp_path):
    odd = build_batch(
        [(b"k", b"%d" % i, NOW_MS, []) for i in range(3)], codec="lz4", offset_deltas=[0, 5, 5], last_offset_delta=2
    )
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        assert produced(client.ask(0, 9, produce_request(odd))).base_offset == 0
        assert produced(client.ask(0, 9, produce_request(batch(b"3")))).base_offset == 3
        stored = bytes(fetched(client.ask(1, 11, fetch_request(("t", 0, 0)))).records)
        records = [(r.offset, r.value) for _, body in iter_batches(stored, check_crc=True) for r in iter_records(body)]
        assert records == [(i, b"%d" % i) for i in range(4)]


def test_an_append_larger_than_segment_bytes_is_refused(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        data = batch(b"a" * 100)
        broker.logs.by_name["t"].partitions[0].rules.segment_bytes = len(data) - 1
        assert produced(client.ask(0, 9, produce_request(data))).error_code == 18
        broker.logs.by_name["t"].partitions[0].rules.segment_bytes = len(data)
        assert produced(client.ask(0, 9, produce_request(data))).error_code == 0


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_null_keys_on_a_compacted_topic_name_each_record(tmp_path, codec):
    records = build_batch([(b"k" if i % 10 else None, b"v", NOW_MS, []) for i in range(100)], codec=codec)
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        broker.logs.by_name["t"].partitions[0].rules.compacted = True
        answer = produced(client.ask(0, 9, produce_request(records)))
        assert answer.error_code == 87
        assert [error.batch_index for error in answer.record_errors] == list(range(0, 100, 10))
        assert {error.batch_index_error_message for error in answer.record_errors} == {answer.error_message}
        older = produced(client.ask(0, 7, produce_request(records)))
        assert older.error_code == 87


def test_each_invalid_record_is_named_with_its_own_message(tmp_path):
    """A bad timestamp decides the answer's code; the record without key is named with its own message."""
    now_ms = time.time_ns() // 1_000_000
    records = build_batch([(b"k", b"v", now_ms, []), (None, b"v", now_ms, []), (b"k", b"v", NOW_MS, [])])
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        rules = broker.logs.by_name["t"].partitions[0].rules
        rules.compacted, rules.timestamp_before_max_ms = True, 3_600_000
        answer = produced(client.ask(0, 9, produce_request(records)))
        assert answer.error_code == 32
        texts = {error.batch_index: error.batch_index_error_message for error in answer.record_errors}
        assert list(texts) == [1, 2]
        assert "key" in texts[1]
        assert "timestamp" in texts[2]


def test_named_records_are_bounded(tmp_path):
    records = build_batch([(None, b"", NOW_MS, [])] * 20_000, codec="gzip")
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        broker.logs.by_name["t"].partitions[0].rules.compacted = True
        answer = produced(client.ask(0, 9, produce_request(records)))
        assert len(answer.record_errors) == 10_000


def test_named_records_are_bounded_over_all_batches_of_a_request(tmp_path):
    """Else a hundred bytes of request could each cost half a megabyte of answer."""
    records = build_batch([(None, b"", NOW_MS, [])] * 4_000, codec="zstd")
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        broker.logs.by_name["t"].partitions[0].rules.compacted = True
        answer = client.ask(0, 9, produce_many([("t", [(0, records)] * 50)]))
        named = [len(part.record_errors) for part in answer.responses[0].partition_responses]
        assert named == [4_000] * 3 + [1] * 47


def test_a_duplicate_gets_the_first_offset(tmp_path):
    once = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        client.socket.sendall(b"".join(client.frame(0, 9, produce_request(once)) for _ in range(3)))
        answers = [produced(client.receive()[1]) for _ in range(3)]
        assert [(a.error_code, a.base_offset) for a in answers] == [(0, 0)] * 3
        assert produced(client.ask(0, 9, produce_request(once))).base_offset == 0
        gap = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=9)
        assert produced(client.ask(0, 9, produce_request(gap))).error_code == 45
        assert broker.logs.by_name["t"].partitions[0].next_offset == 1


def test_acks_zero_has_no_answer_and_an_error_closes(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        client.send(0, 9, produce_request(batch(b"a"), acks=0))
        assert produced(client.ask(0, 9, produce_request(batch(b"b")))).base_offset == 1
        client.send(0, 9, produce_request(batch(b"a"), topic="missing", acks=0))
        assert client.is_closed()


def test_received_requests_are_appended_after_the_client_has_closed(tmp_path):
    large = batch(*(b"%d" % i * 50 for i in range(9000)), codec="zstd")
    workers_may_go_on = threading.Event()
    with wire_broker(tmp_path) as broker, Client(broker) as other:
        for _ in range(2):  # occupies all workers: nothing compressed is validated until then
            broker.executor.submit(workers_may_go_on.wait, 20)
        with Client(broker) as client:
            for _ in range(3):
                client.send(0, 9, produce_request(large, acks=0))
        for _ in range(3):  # the reactor has seen the end by then
            other.ask(1, 11, fetch_request(("t", 0, 0), max_wait_ms=0))
        assert broker.logs.by_name["t"].partitions[0].next_offset == 0
        workers_may_go_on.set()
        for offset in (0, 9000, 18000):
            assert fetched(other.ask(1, 11, fetch_request(("t", 0, offset), max_wait_ms=LONG_MS))).records
        other.ask(1, 11, fetch_request(("t", 0, 0), max_wait_ms=0))
        assert broker.server.connection_count == 1


def test_fetch_errors(tmp_path):
    with wire_broker(tmp_path, {"t": 1}) as broker, Client(broker) as client:
        client.ask(0, 9, produce_request(batch(b"a")))
        broker.logs.by_name["t"].partitions[0].log_start_offset = 1
        for offset, error, told in ((0, 1, -1), (2, 1, -1), (1, 0, 1)):  # an error answer has no offsets of the log
            answer = fetched(client.ask(1, 11, fetch_request(("t", 0, offset), max_wait_ms=0)))
            offsets = {answer.high_watermark, answer.last_stable_offset, answer.log_start_offset}
            assert (answer.error_code, offsets) == (error, {told})
        assert fetched(client.ask(1, 11, fetch_request(("t", 5, 0), max_wait_ms=9000))).error_code == 3
        for epoch, error in ((0, 74), (2, 75), (1, 0)):
            answer = fetched(client.ask(1, 11, fetch_request(("t", 0, 1), leader_epoch=epoch)))
            assert answer.error_code == error


def test_size_limits_never_split_a_batch(tmp_path):
    with wire_broker(tmp_path, {"t": 3}) as broker, Client(broker) as client:
        for index in range(3):
            for _ in range(2):
                client.ask(0, 9, produce_request(batch(b"x" * 10_000), partition=index))
        parts = [("t", index, 0) for index in range(3)]
        answer = client.ask(1, 11, fetch_request(*parts, max_bytes=100)).responses[0].partitions
        assert [len(values(p.records)) for p in answer] == [1, 0, 0]
        answer = client.ask(1, 11, fetch_request(*parts, max_bytes=35_000, partition_max_bytes=15_000))
        assert [len(values(p.records)) for p in answer.responses[0].partitions] == [1, 1, 1]
        answer = client.ask(1, 11, fetch_request(*parts, max_bytes=35_000))
        assert [len(values(p.records)) for p in answer.responses[0].partitions] == [2, 1, 0]


@pytest.mark.parametrize("max_bytes", [0, 1, -1, -(2**31)])
@pytest.mark.parametrize("partition_max_bytes", [0, -1, 2**31 - 1])
def test_the_smallest_size_limits_still_return_one_batch(tmp_path, max_bytes, partition_max_bytes):
    with wire_broker(tmp_path, {"t": 2}) as broker, Client(broker) as client:
        for index in range(2):
            client.ask(0, 9, produce_request(batch(b"x"), partition=index))
        limits = {"max_bytes": max_bytes, "partition_max_bytes": partition_max_bytes}
        answer = client.ask(1, 11, fetch_request(("t", 0, 0), ("t", 1, 0), **limits))
        assert [(p.error_code, len(values(p.records))) for p in answer.responses[0].partitions] == [(0, 1), (0, 0)]


@pytest.mark.parametrize("version", range(4, 13))
def test_a_zstd_topic_needs_a_client_with_zstd(tmp_path, version):
    with wire_broker(tmp_path, {"t": 1, "u": 1}) as broker, Client(broker) as client:
        stored = batch(b"a", codec="zstd")
        for topic in ("t", "u"):
            client.ask(0, 9, produce_request(stored, topic))
        broker.logs.by_name["t"].config = SimpleNamespace(compression_type="zstd")
        broker.logs.by_name["u"].config = SimpleNamespace(compression_type="producer")
        answer = client.ask(1, version, fetch_request(("t", 0, 0), ("u", 0, 0), max_wait_ms=LONG_MS))
        of_zstd, of_producers = (topic.partitions[0] for topic in answer.responses)
        told = [(part.error_code, len(part.records or b"")) for part in (of_zstd, of_producers)]
        assert told == [(76, 0) if version < 10 else (0, len(stored)), (0, len(stored))]


def test_a_fetch_names_the_aborted_transactions_of_its_records(tmp_path):
    with wire_broker(tmp_path, transactions=Coordinator()) as broker, Client(broker) as client:
        partition = broker.logs.by_name["t"].partitions[0]
        for number in range(20):
            fields = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
            request = produce_request(batch(b"v" * 100, **fields))
            request.transactional_id = f"tx-{number}"
            assert produced(client.ask(0, 9, request)).error_code == 0
            partition.append_marker(number, 0, 0, False, NOW_MS)
        assert broker.wal.sync(10)
        first_three = len(batch(b"v" * 100)) * 3 + 78 * 2
        options = {"isolation_level": 1, "partition_max_bytes": first_three}
        answer = fetched(client.ask(1, 11, fetch_request(("t", 0, 0), **options)))
        assert len(answer.records) == first_three
        told = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]
        assert told == [(0, 0), (1, 2), (2, 4)]


def test_read_committed_stops_at_the_last_stable_offset(tmp_path):
    with wire_broker(tmp_path, transactions=Coordinator()) as broker, Client(broker) as client:
        partition = broker.logs.by_name["t"].partitions[0]
        client.ask(0, 9, produce_request(batch(b"a")))
        open_batch = batch(b"b", transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
        request = produce_request(open_batch)
        request.transactional_id = "tx"
        assert produced(client.ask(0, 9, request)).error_code == 0
        answer = fetched(client.ask(1, 11, fetch_request(("t", 0, 0), isolation_level=1)))
        assert (answer.last_stable_offset, answer.high_watermark) == (1, 2)
        assert values(answer.records) == [b"a"]
        assert answer.aborted_transactions == []
        assert fetched(client.ask(1, 11, fetch_request(("t", 0, 0)))).aborted_transactions is None
        assert partition.last_stable_offset() == 1
