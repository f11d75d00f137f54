"""Records of `__transaction_state`: Kafka's bytes, and what is not Kafka's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.runtime.shard import UnknownRecordError
from kbroker.coordinator.transaction.records import decode_record, encode_record
from kbroker.coordinator.transaction.state import DURABLE_STATES, Transaction, TransactionRecord, TransactionState
from kbroker.protocol import records
from kbroker.protocol.records import PartitionsSchema, TransactionLogValue

INT64 = st.integers(-1, 2**63 - 1)
TRANSACTIONS = st.builds(
    Transaction,
    producer_id=INT64,
    producer_epoch=st.integers(0, 32_767),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from(sorted(DURABLE_STATES - {TransactionState.EMPTY})),
    last_update_ms=INT64,
    partitions=st.frozensets(st.tuples(st.sampled_from(["t", "u", "ü" * 80]), st.integers(0, 2**31 - 1))),
    start_ms=INT64,
    previous_producer_id=INT64,
    next_producer_id=INT64,
    last_producer_epoch=st.integers(-1, 32_767),
    client_version=st.integers(0, 2),
)


@given(TRANSACTIONS, st.text(min_size=1, max_size=300))
def test_round_trip(transaction: Transaction, transactional_id: str) -> None:
    record = TransactionRecord(transactional_id, transaction)
    assert decode_record(*encode_record(record)) == record


def test_bytes() -> None:
    transaction = Transaction(
        producer_id=0x1122334455667788,
        producer_epoch=5,
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        last_update_ms=2,
        partitions=frozenset({("t", 1), ("t", 0)}),
        start_ms=1,
        last_producer_epoch=4,
        client_version=2,
    )
    key, value = encode_record(TransactionRecord("x", transaction))
    assert key.hex() == "0000000178"
    assert value is not None
    assert value.hex() == (
        "0001" "1122334455667788" "0005" "0000ea60" "01"
        "02" "0274" "03" "00000000" "00000001" "00"
        "0000000000000002" "0000000000000001"
        "02" "02" "02" "0002" "e807" "02" "0004"
    )  # fmt: skip


def test_empty_has_no_partitions_at_all() -> None:
    _, value = encode_record(TransactionRecord("x", Transaction(1, 0, 1, TransactionState.EMPTY, 0)))
    assert value is not None
    assert records.decode_record(TransactionLogValue, value).transaction_partitions is None


def test_version_0() -> None:
    message = TransactionLogValue(
        producer_id=7,
        producer_epoch=3,
        transaction_timeout_ms=1000,
        transaction_status=2,
        transaction_partitions=[PartitionsSchema(topic="t", partition_ids=[4])],
        transaction_last_update_timestamp_ms=6,
        transaction_start_timestamp_ms=5,
    )
    key, _ = encode_record(TransactionRecord("x", None))
    decoded = decode_record(key, records.encode_record(message, 0))
    assert decoded.value == Transaction(
        7, 3, 1000, TransactionState.PREPARE_COMMIT, 6, frozenset({("t", 4)}), start_ms=5
    )


def test_tombstone() -> None:
    record = TransactionRecord("x", None)
    assert decode_record(*encode_record(record)) == record


@pytest.mark.parametrize("status", [6, 7, 8, -1])
def test_states_that_are_in_no_record(status: int) -> None:
    key, value = encode_record(TransactionRecord("x", Transaction(1, 0, 1, TransactionState.EMPTY, 0)))
    assert value is not None
    with pytest.raises(UnknownRecordError):
        decode_record(key, value[:16] + status.to_bytes(1, "big", signed=True) + value[17:])


@pytest.mark.parametrize("key", [b"", b"\0\1\0\1x", b"\0\0\0\2x", b"\0\0\0\1xx"])
def test_keys_that_are_none(key: bytes) -> None:
    with pytest.raises(UnknownRecordError):
        decode_record(key, None)


@given(st.binary(max_size=100))
def test_values_that_are_none(value: bytes) -> None:
    key, _ = encode_record(TransactionRecord("x", None))
    try:
        decode_record(key, value)
    except UnknownRecordError:
        pass


def test_titles_are_kafkas() -> None:
    assert [state.title for state in TransactionState] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    ]  # fmt: skip
