"""Transactional Produce requests: what the coordinator is asked, and what its answers lead to."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker._fast.partition.partition import Partition
from kbroker._fast.wal.commit import FastKafkaError
from tests.unit.wire.wire_harness import (
    Client,
    Coordinator,
    WireBroker,
    batch,
    fetch_request,
    fetched,
    produce_many,
    produce_request,
    produced,
    until,
    values,
    wire_broker,
)


def txn_batch(value: bytes = b"a", sequence: int = 0, epoch: int = 0, producer_id: int = 5, **fields: Any) -> bytes:
    return batch(
        value, transactional=True, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields
    )


def txn_request(records: bytes, **options: Any) -> Any:
    request = produce_request(records, **options)
    request.transactional_id = "tx"
    return request


def partition_of(broker: WireBroker, index: int = 0) -> Partition:
    return broker.logs.by_name["t"].partitions[index]


def end_transaction(partition: Partition, epoch: int, commit: bool = True) -> None:
    partition.append_marker(5, epoch, 0, commit, 1_000)


@pytest.mark.parametrize("version", range(3, 14))
def test_only_the_first_batch_of_a_transaction_is_verified(tmp_path, version):
    coordinator = Coordinator()
    with wire_broker(tmp_path, transactions=coordinator) as broker, Client(broker) as client:
        topic = broker.logs.by_name["t"].topic_id if version >= 13 else "t"

        def send(sequence: int, epoch: int) -> int:
            request = produce_many([(topic, [(0, txn_batch(sequence=sequence, epoch=epoch))])])
            request.transactional_id = "tx"
            return produced(client.ask(0, version, request)).error_code

        assert [send(0, 0), send(1, 0), send(2, 0)] == [0, 0, 0]
        (question,) = coordinator.questions
        assert (question.transactional_id, question.producer, question.partitions) == ("tx", (5, 0), [("t", 0)])
        assert question.add == (version >= 12)
        assert partition_of(broker).producers.open_transactions()[0][:3] == (5, 0, 0)
        end_transaction(partition_of(broker), 0 if version < 12 else 1)
        assert partition_of(broker).producers.open_transactions() == []
        assert send(3, 0) == 0 if version < 12 else send(0, 1) == 0
        assert len(coordinator.questions) == 2


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [
        (49, 11, 49), (49, 3, 49), (90, 11, 47), (90, 12, 47), (47, 9, 47), (48, 12, 48),
        (120, 10, 48), (120, 11, 120), (120, 12, 120),
        (51, 11, 19), (51, 12, 51), (13, 9, 19), (14, 12, 19), (15, 3, 19), (16, 13, 19), (56, 12, 56), (3, 11, 3),
    ],
)  # fmt: skip
def test_each_answer_of_the_coordinator_has_its_error(tmp_path, code, version, expected):
    coordinator = Coordinator(code)
    with wire_broker(tmp_path, transactions=coordinator) as broker, Client(broker) as client:
        topic = broker.logs.by_name["t"].topic_id if version >= 13 else "t"
        request = produce_many([(topic, [(0, txn_batch())])])
        request.transactional_id = "tx"
        answer = produced(client.ask(0, version, request))
        assert answer.error_code == expected
        if version >= 8 and expected in (19, 48, 120):
            assert "partition" in answer.error_message.lower()
        partition = partition_of(broker)
        assert partition.next_offset == 0
        # After a final refusal nothing of the producer is left; else its lowest sequence is remembered.
        assert partition.producers.guards.count == (0 if expected in (47, 48, 49, 120) else 1)
        coordinator.code = 0
        assert produced(client.ask(0, version, request)).error_code == 0


def test_one_question_for_all_partitions_and_each_gets_its_own_answer(tmp_path):
    coordinator = Coordinator(None)
    with wire_broker(tmp_path, {"t": 4}, transactions=coordinator) as broker, Client(broker) as client:
        broken = bytearray(txn_batch())
        broken[-1] ^= 1
        request = produce_many([("t", [(0, txn_batch()), (1, bytes(broken)), (2, txn_batch()), (3, txn_batch())])])
        request.transactional_id = "tx"
        client.send(0, 9, request)
        until(lambda: len(coordinator.questions) == 1)
        (question,) = coordinator.questions
        assert question.partitions == [("t", 0), ("t", 2), ("t", 3)]
        question.future.set_result({("t", 0): 0, ("t", 2): 120})  # no result for the third
        answer = client.receive()[1].responses[0].partition_responses
        assert [p.error_code for p in answer] == [0, 2, 48, 19]


def test_later_requests_wait_and_keep_their_order(tmp_path):
    coordinator = Coordinator(None)
    with wire_broker(tmp_path, transactions=coordinator) as broker, Client(broker) as client, Client(broker) as other:
        sent = [client.send(0, 11, txn_request(txn_batch(b"%d" % i, i))) for i in range(5)]
        assert produced(other.ask(0, 9, produce_request(batch(b"other")))).base_offset == 0  # the thread is free
        until(lambda: len(coordinator.questions) == 1)
        assert partition_of(broker).next_offset == 1
        coordinator.questions[0].answer()
        answers = [client.receive() for _ in range(5)]
        assert [n for n, _ in answers] == sent
        assert [produced(a).base_offset for _, a in answers] == [1, 2, 3, 4, 5]
        assert len(coordinator.questions) == 1


def test_a_marker_during_the_verification_refuses_the_batch(tmp_path):
    coordinator = Coordinator(None)
    with wire_broker(tmp_path, transactions=coordinator) as broker, Client(broker) as client:
        client.send(0, 11, txn_request(txn_batch()))
        until(lambda: len(coordinator.questions) == 1)
        end_transaction(partition_of(broker), 0, commit=False)
        coordinator.questions[0].answer()
        assert produced(client.receive()[1]).error_code == 48
        assert partition_of(broker).next_offset == 1
        coordinator.code = 0
        assert produced(client.ask(0, 11, txn_request(txn_batch()))).base_offset == 1


@pytest.mark.parametrize("version", [11, 12])
def test_a_verification_times_out_with_its_request(tmp_path, version):
    coordinator = Coordinator(None)
    with wire_broker(tmp_path, transactions=coordinator) as broker, Client(broker) as client:
        answer = produced(client.ask(0, version, txn_request(txn_batch(), timeout_ms=50)))
        assert answer.error_code == 19
        (late,) = coordinator.questions
        late.answer()
        coordinator.code = 0
        assert produced(client.ask(0, version, txn_request(txn_batch(b"again")))).base_offset == 0
        assert partition_of(broker).next_offset == 1


def test_a_batch_of_a_closed_connection_is_appended_once_verified(tmp_path):
    coordinator = Coordinator(None)
    with wire_broker(tmp_path, transactions=coordinator) as broker:
        with Client(broker) as client:
            client.send(0, 11, txn_request(txn_batch()))
            until(lambda: len(coordinator.questions) == 1)
        coordinator.questions[0].answer()
        until(lambda: broker.server.connection_count == 0)
        with Client(broker) as client:
            assert produced(client.ask(0, 11, txn_request(txn_batch(b"next", sequence=1)))).base_offset == 1
            assert values(fetched(client.ask(1, 11, fetch_request(("t", 0, 0)))).records) == [b"a", b"next"]
        assert broker.server.frame_memory_used == 0


def test_a_verification_of_a_closed_connection_ends_at_its_timeout(tmp_path):
    coordinator = Coordinator(None)
    with wire_broker(tmp_path, transactions=coordinator) as broker:
        with Client(broker) as client:
            client.send(0, 11, txn_request(txn_batch(), timeout_ms=300))
            until(lambda: len(coordinator.questions) == 1)
        until(lambda: broker.server.connection_count == 0)
        coordinator.questions[0].answer()
        coordinator.code = 0
        with Client(broker) as client:
            assert produced(client.ask(0, 11, txn_request(txn_batch(b"next")))).base_offset == 0
            assert values(fetched(client.ask(1, 11, fetch_request(("t", 0, 0)))).records) == [b"next"]
        assert broker.server.frame_memory_used == 0


def test_a_failed_future_counts_as_an_unavailable_coordinator(tmp_path):
    coordinator = Coordinator(None)
    with wire_broker(tmp_path, transactions=coordinator) as broker, Client(broker) as client:
        for error, expected in ((RuntimeError("x"), 19), (FastKafkaError(49, "x"), 49)):
            client.send(0, 11, txn_request(txn_batch()))
            until(lambda: len(coordinator.questions) > 0)
            coordinator.questions.pop().future.set_exception(error)
            assert produced(client.receive()[1]).error_code == expected


def test_adding_partitions_is_retried_while_the_previous_transaction_ends(tmp_path):
    coordinator = Coordinator(codes=[None, 51, 0])
    with wire_broker(tmp_path, {"t": 2}, transactions=coordinator) as broker, Client(broker) as client:
        request = produce_many([("t", [(0, txn_batch()), (1, txn_batch())])])
        request.transactional_id = "tx"
        client.send(0, 12, request)
        until(lambda: len(coordinator.questions) == 1)
        coordinator.questions[0].future.set_result({("t", 0): 0, ("t", 1): 51})
        answer = client.receive()[1].responses[0].partition_responses
        assert [p.error_code for p in answer] == [0, 0]
        assert [q.partitions for q in coordinator.questions] == [[("t", 0), ("t", 1)], [("t", 1)], [("t", 1)]]
        # For 100 ms; then the client gets the error. Older clients get it at once.
        coordinator.code = 51
        assert produced(client.ask(0, 12, txn_request(txn_batch(epoch=1)))).error_code == 51
        assert 4 < len(coordinator.questions) <= 3 + 6
        asked = len(coordinator.questions)
        assert produced(client.ask(0, 11, txn_request(txn_batch(epoch=1)))).error_code == 19
        assert len(coordinator.questions) == asked + 1


def test_without_a_coordinator_nothing_is_appended(tmp_path):
    with wire_broker(tmp_path) as broker, Client(broker) as client:
        assert produced(client.ask(0, 11, txn_request(txn_batch()))).error_code == 19
        assert produced(client.ask(0, 12, txn_request(txn_batch()))).error_code == 19
        assert partition_of(broker).next_offset == 0


def test_verification_switched_off(tmp_path):
    coordinator = Coordinator()
    coordinator.verification_enabled = False
    with wire_broker(tmp_path, transactions=coordinator) as broker, Client(broker) as client:
        assert produced(client.ask(0, 11, txn_request(txn_batch()))).error_code == 0
        assert coordinator.questions == []
        assert produced(client.ask(0, 12, txn_request(txn_batch(producer_id=6)))).error_code == 0
        assert len(coordinator.questions) == 1  # adding is no verification


def test_one_producer_per_request_with_a_transactional_id(tmp_path):
    with wire_broker(tmp_path, {"t": 2}, transactions=Coordinator()) as broker, Client(broker) as client:
        assert produced(client.ask(0, 11, produce_request(txn_batch()))).error_code == 53
        for other in (txn_batch(producer_id=6), txn_batch(epoch=1)):
            request = produce_many([("t", [(0, txn_batch()), (1, other)])])
            request.transactional_id = "tx"
            answer = client.ask(0, 11, request).responses[0].partition_responses
            assert [p.error_code for p in answer] == [49, 49]
        plain = batch(b"p", producer_id=6, producer_epoch=0, base_sequence=0)
        request = produce_many([("t", [(0, txn_batch()), (1, plain)])])
        request.transactional_id = "tx"
        answer = client.ask(0, 11, request).responses[0].partition_responses
        assert [p.error_code for p in answer] == [0, 0]


def test_the_lowest_verified_sequence_is_appended_first(tmp_path):
    coordinator = Coordinator(None)
    with wire_broker(tmp_path, transactions=coordinator) as broker, Client(broker) as old, Client(broker) as new:
        old.send(0, 11, txn_request(txn_batch(sequence=0)))
        until(lambda: len(coordinator.questions) == 1)
        new.send(0, 11, txn_request(txn_batch(sequence=1)))
        until(lambda: len(coordinator.questions) == 2)
        coordinator.questions[1].answer()
        assert produced(new.receive()[1]).error_code == 45
        coordinator.questions[0].answer()
        assert produced(old.receive()[1]).error_code == 19  # superseded by a newer question: the client retries
        coordinator.code = 0
        assert produced(old.ask(0, 11, txn_request(txn_batch(sequence=0)))).base_offset == 0
        assert produced(new.ask(0, 11, txn_request(txn_batch(sequence=1)))).base_offset == 1


def test_a_higher_epoch_fences_what_waits(tmp_path):
    coordinator = Coordinator(None)
    with wire_broker(tmp_path, transactions=coordinator) as broker, Client(broker) as old, Client(broker) as new:
        old.send(0, 11, txn_request(txn_batch(epoch=0)))
        until(lambda: len(coordinator.questions) == 1)
        new.send(0, 11, txn_request(txn_batch(b"new", epoch=1)))
        until(lambda: len(coordinator.questions) == 2)
        coordinator.questions[0].answer()
        assert produced(old.receive()[1]).error_code == 47
        coordinator.questions[1].answer()
        assert produced(new.receive()[1]).error_code == 0
        assert partition_of(broker).producers.open_transactions()[0][:2] == (5, 1)


def test_version_2_transactions_begin_with_sequence_zero(tmp_path):
    with wire_broker(tmp_path, transactions=Coordinator()) as broker, Client(broker) as client:
        assert produced(client.ask(0, 12, txn_request(txn_batch(sequence=4)))).error_code == 45
        assert produced(client.ask(0, 12, txn_request(txn_batch(sequence=0)))).error_code == 0
        # A verified batch of version 1 may be the first that is left of its producer.
        assert produced(client.ask(0, 11, txn_request(txn_batch(sequence=4, producer_id=6)))).error_code == 0


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_large_batches_are_validated_before_the_coordinator_is_asked(tmp_path, codec):
    coordinator = Coordinator()
    large = batch(
        *(b"%d" % i * 50 for i in range(9000)),
        codec=codec, transactional=True, producer_id=5, producer_epoch=0, base_sequence=0,
    )  # fmt: skip
    with wire_broker(tmp_path, transactions=coordinator) as broker, Client(broker) as client:
        partition_of(broker).rules.max_message_bytes = 1000
        assert produced(client.ask(0, 11, txn_request(large))).error_code == 10
        assert coordinator.questions == []
        partition_of(broker).rules.max_message_bytes = 10_000_000
        assert produced(client.ask(0, 11, txn_request(large))).error_code == 0
        assert produced(client.ask(0, 11, txn_request(txn_batch(sequence=9000)))).base_offset == 9000


def test_a_retry_of_an_appended_batch_is_not_verified(tmp_path):
    coordinator = Coordinator()
    with wire_broker(tmp_path, transactions=coordinator) as broker, Client(broker) as client:
        assert produced(client.ask(0, 11, txn_request(txn_batch()))).base_offset == 0
        end_transaction(partition_of(broker), 0)
        coordinator.code = 120
        assert produced(client.ask(0, 11, txn_request(txn_batch()))).base_offset == 0
        assert produced(client.ask(0, 11, txn_request(txn_batch(sequence=1)))).error_code == 120


def test_a_failed_produce_without_acknowledgement_closes_the_connection(tmp_path):
    with wire_broker(tmp_path, transactions=Coordinator(120)) as broker, Client(broker) as client:
        client.send(0, 11, txn_request(txn_batch(), acks=0))
        assert client.is_closed()
