"""Transactions while the log is full and the store is down: decided ones stay so, and complete when there is room."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch, iter_batches, iter_records
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.records.k00_produce import ProduceRequest
from kbroker.protocol.apis.records.k01_fetch import FetchRequest
from kbroker.protocol.apis.records.k02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.apis.transactions.k22_init_producer_id import InitProducerIdRequest
from kbroker.protocol.apis.transactions.k24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kbroker.protocol.apis.transactions.k26_end_txn import EndTxnRequest
from kbroker.protocol.apis.transactions.k65_describe_transactions import DescribeTransactionsRequest
from tests.crash.fault_proxy import FaultProxy
from tests.crash.raw_client import LATEST, RawClient, fetch_request, produce_request
from tests.crash.small_broker import connect
from tests.crash.test_store_outage import TIGHT, behind_proxy
from tests.integration.s3_server import S3Server
from tests.integration.until import until

pytestmark = pytest.mark.s3
FILLER = build_batch([(b"key", bytes(200_000), 0, None)])
# Errors after which a client retries.
RETRIABLE = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
COMMITS_MAX = 2_000


class Producer:
    """A transactional producer on a connection of its own, of before transaction.version 2."""

    def __init__(self, client: RawClient, name: str) -> None:
        self.client, self.name = client, name
        answer = client.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=600_000))
        assert answer.error_code == 0, f"{name}: error {answer.error_code}"
        self.producer = answer.producer_id, answer.producer_epoch
        self.sequence = 0

    def begin(self, value: bytes) -> None:
        """Opens a transaction with one record."""
        identity = {"producer_id": self.producer[0], "producer_epoch": self.producer[1]}
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )
        until(lambda: self._added(request), "partition in the transaction")
        batch = build_batch([(None, value, 0, None)], transactional=True, base_sequence=self.sequence, **identity)
        produce: ProduceRequest = produce_request("t", [(0, batch)])
        produce.transactional_id = self.name
        answer = self.client.call(produce).responses[0].partition_responses[0]
        assert answer.error_code == 0, f"{self.name}: error {answer.error_code}"
        self.sequence += 1

    def _added(self, request: AddPartitionsToTxnRequest) -> bool:
        code = self.client.call(request).results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        assert code in (0, *RETRIABLE), f"{self.name}: error {code}"
        return bool(code == 0)

    def end(self, commit: bool) -> int:
        """One attempt to end the transaction; its error code."""
        code: int = self.client.call(
            EndTxnRequest(
                transactional_id=self.name,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                committed=commit,
            )
        ).error_code
        return code


def state_of(client: RawClient, name: str) -> str:
    """The state of a transaction, as its coordinator says it."""
    (found,) = client.call(DescribeTransactionsRequest(transactional_ids=[name])).transaction_states
    assert found.error_code == 0, f"{name}: error {found.error_code}"
    return str(found.transaction_state)


def fill(client: RawClient) -> None:
    """Takes all space that clients can have."""
    for number in itertools.count():
        code = client.produce("filler", 0, FILLER, timeout_ms=300).error_code
        if code:
            assert code == ErrorCode.NOT_ENOUGH_REPLICAS
            return
        assert number < 100, "the log takes more than its budget"


def take_the_reserve(client: RawClient) -> None:
    """Takes what is left for internal topics too: by large commits until one is refused, then by the smallest.

    Of those, two groups must be refused: one alone may share its shard with the large commit that waits for space.
    """
    for partitions, length, groups_refused in ((range(8), 4000, 1), (range(1), 0, 2)):
        refused: set[str] = set()
        for number in range(COMMITS_MAX):
            group = f"group-{length}-{number % 7}"
            if group in refused:
                continue
            answers = client.commit(group, "wide", dict.fromkeys(partitions, (number, "m" * length)))
            if codes := set(answers.values()) - {0}:
                assert codes <= RETRIABLE, codes
                refused.add(group)
            if len(refused) == groups_refused:
                break
        else:
            raise AssertionError("commits never fill the log")


def committed_values(client: RawClient) -> list[bytes]:
    """What a read_committed consumer gets of t-0."""
    values: list[bytes] = []
    listed = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=LATEST)])
    asked = ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=[listed])
    stable = client.call(asked).topics[0].partitions[0].offset
    offset, open_aborts = 0, set()
    while offset < stable:
        request: FetchRequest = fetch_request("t", 0, offset, max_wait_ms=5_000)
        request.isolation_level = 1
        data = client.call(request).responses[0].partitions[0]
        assert data.error_code == 0
        assert data.records, f"nothing at {offset}, below {stable}"
        aborted = sorted((each.first_offset, each.producer_id) for each in data.aborted_transactions)
        for header, batch in iter_batches(data.records, check_crc=True):
            while aborted and aborted[0][0] <= header.base_offset:
                open_aborts.add(aborted.pop(0)[1])
            if header.is_control:
                open_aborts.discard(header.producer_id)
            elif header.producer_id not in open_aborts:
                values += [record.value or b"" for record in iter_records(batch)]
            offset = header.next_offset
    return values


def test_transaction_ends_have_a_reserve_and_wait_when_it_is_used_up(
    tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str
) -> None:
    with behind_proxy(tmp_path, s3, proxy, prefix, TIGHT) as running, connect(running.broker) as client:
        for name, partitions in (("t", 1), ("filler", 1), ("wide", 8)):
            client.create_topic(name, partitions)
        until(lambda: client.commit("g", "wide", {0: (0, "")}) == {0: 0}, "first commit")
        names = [f"id-{number}" for number in range(6)]
        connections = [connect(running.broker) for _ in names]
        producers = [Producer(connection, name) for connection, name in zip(connections, names, strict=True)]
        for producer in producers:
            producer.begin(producer.name.encode())
        proxy.fail()
        fill(client)
        # Clients have no space left; transactions can still end.
        assert producers[0].end(commit=True) == 0
        assert producers[1].end(commit=False) == 0
        until(lambda: state_of(client, "id-0") == "CompleteCommit", "first transaction's markers")
        until(lambda: state_of(client, "id-1") == "CompleteAbort", "second transaction's markers")
        assert committed_values(client) == [b"id-0"]
        take_the_reserve(client)
        # Now nothing can be written: ends are refused or wait, and read-only requests are answered.
        with ThreadPoolExecutor(4) as pool:
            ends = [pool.submit(producer.end, index % 2 == 0) for index, producer in enumerate(producers[2:])]
            for _ in range(20):
                assert [state_of(client, name) for name in names[:2]] == ["CompleteCommit", "CompleteAbort"]
                assert client.fetch("t", 0, 0).records
            codes = [end.result(60) for end in ends]
        assert set(codes) <= {0, *RETRIABLE}
        assert codes.count(0) < len(codes), "there was space after all"
        proxy.heal()
        # All of it ends without a restart; refused clients retry.
        for index, producer in enumerate(producers[2:]):
            until(lambda p=producer, commit=index % 2 == 0: p.end(commit) == 0, "end of a transaction", seconds=60)
        wanted = ["CompleteCommit", "CompleteAbort"] * 3
        until(lambda: [state_of(client, name) for name in names] == wanted, "all markers", seconds=60)
        assert committed_values(client) == [b"id-0", b"id-2", b"id-4"]
        producers[3].begin(b"after")
        until(lambda: producers[3].end(commit=True) == 0, "later commit")
        until(lambda: committed_values(client)[-1] == b"after", "marker of it")
        for connection in connections:
            connection.close()
        assert running.broker.stop() == 0, running.broker.log()[-4000:]
