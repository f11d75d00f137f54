"""Where compressed batches are validated: cheap ones on the I/O thread, the rest on workers."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records import compression, recode
from kbroker._fast.records.records import build_batch
from tests.unit.wire.wire_harness import NOW_MS, Client, batch, produce_many, produce_request, produced, wire_broker

KIB = 1024
WORKER = "ThreadPoolExecutor"
ROOM_BYTES = 512 * KIB  # decompressed on the I/O thread at most; then a worker takes the batch


@pytest.fixture
def decompressed(monkeypatch):
    """Bytes decompressed on workers, and on other threads."""
    counted = Counter(workers=0, io=0)
    pieces_of = compression.decompress_pieces

    def counting(codec, body):
        where = "workers" if threading.current_thread().name.startswith(WORKER) else "io"
        for piece in pieces_of(codec, body):
            counted[where] += len(piece)
            yield piece

    monkeypatch.setattr(compression, "decompress_pieces", counting)
    monkeypatch.setattr(recode, "decompress_pieces", counting)
    return counted


def repeated(count, value, codec="zstd", **fields):
    """A batch that compresses well."""
    data = build_batch([(b"k", value, NOW_MS, [])] * count, codec=codec, **fields)
    assert len(data) < 16 * KIB
    return data


def test_a_cheap_batch_is_validated_on_the_io_thread(tmp_path, decompressed):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            assert produced(client.ask(0, 9, produce_request(repeated(50, b"v" * 100, codec)))).error_code == 0
        assert produced(client.ask(0, 9, produce_request(batch(b"v" * 100_000)))).error_code == 0
    assert decompressed["workers"] == 0
    assert decompressed["io"] > 4 * 50 * 100


def test_many_small_records_are_validated_on_a_worker_however_well_they_compress(tmp_path, decompressed):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        assert produced(client.ask(0, 9, produce_request(repeated(8000, b"")))).error_code == 0
        many = produce_many([("t", [(0, repeated(500, b""))] * 10)])
        client.ask(0, 9, many)
        assert broker.logs.by_name["t"].partitions[0].next_offset == 13_000
    assert decompressed["io"] == 0


@pytest.mark.parametrize("count", [1, 20])
def test_a_batch_that_turns_out_large_goes_to_a_worker(tmp_path, decompressed, count):
    """The request's batches before it are validated by then, and are not validated again."""
    small, bomb = repeated(1, b"first"), repeated(count, bytes(8 * KIB * KIB // count))
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        frames = [client.frame(0, 9, produce_many([("t", [(0, small), (0, bomb), (0, small)])]))]
        frames.append(client.frame(0, 9, produce_request(small)))
        client.socket.sendall(b"".join(frames))
        parts = client.receive()[1].responses[0].partition_responses
        assert [(part.error_code, part.base_offset) for part in parts] == [(0, 0), (0, 1), (0, 1 + count)]
        assert produced(client.receive()[1]).base_offset == 2 + count
    assert decompressed["io"] <= ROOM_BYTES
    assert 8 * KIB * KIB < decompressed["workers"] < 9 * KIB * KIB


def test_the_batches_of_a_request_share_the_limit_of_the_io_thread(tmp_path, decompressed):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        client.ask(0, 9, produce_many([("t", [(0, repeated(1, bytes(100 * KIB)))] * 50)]))
        assert broker.logs.by_name["t"].partitions[0].next_offset == 50
    assert decompressed["io"] <= ROOM_BYTES
    assert decompressed["workers"] > 40 * 100 * KIB


def test_renumbering_costs_as_much_as_re_encoding(tmp_path, decompressed):
    in_order, odd = (repeated(100, b"v" * 500, "lz4", offset_deltas=d) for d in (None, [0] * 99 + [99]))
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        assert produced(client.ask(0, 9, produce_request(in_order))).error_code == 0
        assert decompressed["workers"] == 0
        assert produced(client.ask(0, 9, produce_request(odd))).base_offset == 100
        assert decompressed["workers"] > 2 * 100 * 500  # validated and renumbered there
        broker.logs.by_name["t"].partitions[0].rules.codec = 4
        decompressed.clear()
        assert produced(client.ask(0, 9, produce_request(in_order))).base_offset == 200
        assert decompressed["workers"] > 2 * 100 * 500


def test_one_scan_refuses_a_batch_and_names_its_invalid_records(tmp_path, decompressed):
    plain_bytes = 9000 * 50
    records = build_batch([(b"k" if i % 2 else None, b"v" * 40, NOW_MS, []) for i in range(9000)], codec="zstd")
    structure = repeated(9000, b"v" * 40, last_offset_delta=9000)
    with wire_broker(tmp_path, {"t": 1, "c": 1}) as broker, Client(broker) as client:
        broker.logs.by_name["c"].partitions[0].rules.compacted = True
        answer = produced(client.ask(0, 9, produce_request(records, "c")))
        assert answer.error_code == 87
        assert [error.batch_index for error in answer.record_errors] == list(range(0, 9000, 2))
        assert decompressed["io"] == 0
        assert decompressed["workers"] < 1.5 * plain_bytes
        assert produced(client.ask(0, 9, produce_request(structure, "c"))).record_errors == []
        parts = client.ask(0, 9, produce_many([("c", [(0, records)] * 4)])).responses[0].partition_responses
        assert [len(part.record_errors) for part in parts] == [4500, 4500, 4500, 1]


def test_a_malformed_batch_names_no_invalid_records(tmp_path):
    torn = bytearray(build_batch([(None, b"v", NOW_MS, [])] * 9))
    torn[-1] = 2  # headers that are not there
    torn[17:21] = crc32c(bytes(torn[21:])).to_bytes(4, "big")
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        broker.logs.by_name["t"].partitions[0].rules.compacted = True
        answer = produced(client.ask(0, 9, produce_request(bytes(torn))))
        assert answer.error_code == 87
        assert [error.batch_index for error in answer.record_errors] == [8]
