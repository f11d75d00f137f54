"""TxnOffsetCommit, OffsetDelete, and what the newest versions of OffsetCommit and OffsetFetch add."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.handlers import offset_commit, offset_delete, offset_fetch, txn_offset_commit
from kbroker.protocol.apis.groups.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kbroker.protocol.apis.groups.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kbroker.protocol.apis.transactions.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.unit.handlers.group_client import Client, topic_id, versions


class Transactions:
    """A transaction coordinator that always gives the same answer."""

    def __init__(self) -> None:
        self.answer = ErrorCode.NONE
        self.asked: list[Any] = []

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Any, *, add: bool
    ) -> Future[dict[tuple[str, int], ErrorCode]]:
        self.asked.append((transactional_id, producer_id, producer_epoch, list(partitions), add))
        future: Future[dict[tuple[str, int], ErrorCode]] = Future()
        future.set_result(dict.fromkeys(partitions, self.answer))
        return future


@pytest.fixture
def transactions() -> Transactions:
    return Transactions()


@pytest.fixture
def client(transactions: Transactions) -> Client:
    client = Client()
    client.context.transactions = transactions
    return client


def commit(client: Client, version: int, *partitions: tuple[str, int, int], **fields: Any) -> list[int]:
    topics = [
        TxnOffsetCommitRequestTopic(
            name=topic,
            partitions=[
                TxnOffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_leader_epoch=4, committed_metadata="m"
                )
            ],
        )
        for topic, partition, offset in partitions
    ]
    fields = {"transactional_id": "x", "group_id": "g", "producer_id": 8, "producer_epoch": 2, **fields}
    answer = client.ask(txn_offset_commit, version, TxnOffsetCommitRequest(topics=topics, **fields))
    return [part.error_code for topic in answer.topics for part in topic.partitions]


def end(client: Client, partition: int, *, commit: bool = True) -> None:
    ending = client.groups.write_marker(partition, 8, 2, 0, commit)
    client.groups.loop.run_pending()
    assert ending.result(0) == 0


def fetch(client: Client, version: int, group: str = "g", partition: int = 0) -> tuple[int, int]:
    """(offset, error) of a stable fetch."""
    if version < 8:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[partition])]
        request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=True)
        part = client.ask(offset_fetch, version, request).topics[0].partitions[0]
    else:
        named = OffsetFetchRequestTopics(name="t", topic_id=topic_id("t"), partition_indexes=[partition])
        groups = [OffsetFetchRequestGroup(group_id=group, topics=[named])]
        request = OffsetFetchRequest(groups=groups, require_stable=True)
        part = client.ask(offset_fetch, version, request).groups[0].topics[0].partitions[0]
    return part.committed_offset, part.error_code


# -- TxnOffsetCommit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(txn_offset_commit))
def test_transaction(client: Client, transactions: Transactions, version: int) -> None:
    assert commit(client, version, ("t", 0, 5), ("t", 9, 5), ("nope", 0, 5)) == [0, 3, 3]
    ((transactional_id, producer_id, epoch, ((topic, partition),), add),) = transactions.asked
    assert (transactional_id, producer_id, epoch, topic) == ("x", 8, 2, "__consumer_offsets")
    assert add == (version >= 5)
    assert fetch(client, 7) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    end(client, partition)
    assert fetch(client, 7) == (5, 0)
    assert commit(client, version, ("nope", 0, 5)) == [3]
    assert len(transactions.asked) == 1


@pytest.mark.parametrize("version", versions(txn_offset_commit))
def test_verification_errors_depend_on_the_version(client: Client, transactions: Transactions, version: int) -> None:
    abortable = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS if version >= 5 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    answers = {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_ABORTABLE: abortable,
        ErrorCode.CONCURRENT_TRANSACTIONS: concurrent,
        ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
    for answer, told in answers.items():
        transactions.answer = answer
        if version < 2 and told is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            told = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert commit(client, version, ("t", 0, 5), ("nope", 0, 5)) == [told, 3]
    assert fetch(client, 7) == (-1, 0)


def test_the_member_is_checked_from_version_3_on(client: Client) -> None:
    member_id = client.member()
    assert commit(client, 2, ("t", 0, 5)) == [0]
    assert commit(client, 3, ("t", 0, 5), generation_id_or_member_epoch=1, member_id=member_id) == [0]
    for fields, error in [
        ({"generation_id_or_member_epoch": 2, "member_id": member_id}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id_or_member_epoch": 1, "member_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id_or_member_epoch": 1, "group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        assert commit(client, 3, ("t", 0, 5), **fields) == [error]
    assert commit(client, 3, ("t", 0, 5), group_id="") == [ErrorCode.INVALID_GROUP_ID]


# -- OffsetFetch and OffsetCommit --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7, 11))
def test_require_stable_reports_open_transactions(client: Client, transactions: Transactions, version: int) -> None:
    client.commit(5, ("t", 0, 1, ""), ("t", 1, 2, ""))
    commit(client, 3, ("t", 0, 5))
    assert fetch(client, version) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert fetch(client, version, partition=1) == (2, 0)
    end(client, transactions.asked[0][3][0][1], commit=False)
    assert fetch(client, version) == (1, 0)


def test_topics_by_id(client: Client) -> None:
    assert client.commit(10, ("t", 0, 5, ""), ("nope", 0, 5, "")) == [0, ErrorCode.UNKNOWN_TOPIC_ID]
    topics = [
        OffsetFetchRequestTopics(topic_id=topic_id(name), partition_indexes=[0, 1]) for name in ("nope", "t", "u")
    ]
    groups = [OffsetFetchRequestGroup(group_id="g", topics=topics), OffsetFetchRequestGroup(group_id="g", topics=None)]
    named, everything = client.ask(offset_fetch, 10, OffsetFetchRequest(groups=groups)).groups
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert [
        (topic.topic_id, [(p.partition_index, p.committed_offset, p.error_code) for p in topic.partitions])
        for topic in named.topics
    ] == [
        (topic_id("nope"), [(0, -1, unknown), (1, -1, unknown)]),
        (topic_id("t"), [(0, 5, 0), (1, -1, 0)]),
        (topic_id("u"), [(0, -1, 0), (1, -1, 0)]),
    ]
    assert [(topic.topic_id, len(topic.partitions)) for topic in everything.topics] == [(topic_id("t"), 1)]


def test_a_group_named_several_times_is_fetched_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would be a list of all its offsets: 8 KB of request may name a group of a million 400 times."""
    client.commit(5, *(("t", partition, 7, "") for partition in range(2)))
    asked: list[Any] = []
    fetch_offsets = client.groups.fetch_offsets
    monkeypatch.setattr(
        client.groups, "fetch_offsets", lambda question: asked.append(question) or fetch_offsets(question)
    )
    everything = OffsetFetchRequestGroup(group_id="g", topics=None)
    one = OffsetFetchRequestGroup(group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[1])])
    groups = [everything, one, everything, OffsetFetchRequestGroup(group_id="other", topics=None), everything]
    answers = client.ask(offset_fetch, 9, OffsetFetchRequest(groups=groups)).groups
    assert [(group.group_id, sum(len(topic.partitions) for topic in group.topics)) for group in answers] == [
        ("g", 2),
        ("g", 1),
        ("g", 2),
        ("other", 0),
        ("g", 2),
    ]
    assert [question.group_id for question in asked] == ["g", "g", "other"]


@pytest.mark.parametrize("version", [2, 9])
def test_a_topic_without_a_name_is_unknown(client: Client, version: int) -> None:
    assert client.commit(version, ("", 0, 5, "")) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


# -- OffsetDelete ------------------------------------------------------------------------------------------------


def delete(client: Client, *partitions: tuple[str, int], group: str = "g") -> tuple[int, list[int]]:
    topics = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=partition)])
        for name, partition in partitions
    ]
    answer = client.ask(offset_delete, 0, OffsetDeleteRequest(group_id=group, topics=topics))
    return answer.error_code, [part.error_code for topic in answer.topics for part in topic.partitions]


def test_offset_delete(client: Client) -> None:
    assert delete(client, ("t", 0)) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert delete(client, ("t", 0), group="") == (ErrorCode.INVALID_GROUP_ID, [])
    client.commit(5, ("t", 0, 1, ""), ("t", 1, 2, ""))
    assert delete(client, ("t", 0), ("t", 7), ("nope", 0)) == (0, [0, 3, 3])
    assert (fetch(client, 7), fetch(client, 7, partition=1)) == ((-1, 0), (2, 0))
    assert delete(client, ("t", 0)) == (0, [0])
    assert delete(client, ("t", 1)) == (0, [0])
    assert delete(client, ("t", 1)) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_offset_delete_of_a_group_with_members(client: Client) -> None:
    client.member()  # its metadata is no subscription: all topics count as read
    assert delete(client, ("t", 0)) == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])


@pytest.mark.parametrize(("topic", "error"), [("t", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC), ("u", ErrorCode.NONE)])
@pytest.mark.parametrize("version", [0, 1, 3, 9])
def test_a_subscription_without_its_versions_fields_is_read(
    client: Client, version: int, topic: str, error: ErrorCode
) -> None:
    """As @platformatic/kafka writes them: the version, one topic, no user data, and nothing of later versions."""
    fields = bytes.fromhex("00000001 0001") + topic.encode() + bytes.fromhex("ffffffff")
    client.member(metadata=version.to_bytes(2, "big") + fields)
    assert delete(client, ("t", 0)) == (0, [error])


def test_committed_offset_may_be_reset_in_an_empty_group_only(client: Client) -> None:
    member_id = client.member()
    assert client.commit(9, ("t", 0, 3, ""), generation_id_or_member_epoch=1, member_id=member_id) == [0]
    assert client.commit(9, ("t", 0, 9, "")) == [ErrorCode.UNKNOWN_MEMBER_ID]
    client.clock.advance(11)
    client.groups.loop.run_pending()
    assert client.commit(9, ("t", 0, 9, "")) == [0]
    assert fetch(client, 9) == (9, 0)


def test_every_version_of_offset_commit_is_offered() -> None:
    assert (offset_commit.HANDLER.max_version, offset_fetch.HANDLER.max_version) == (10, 10)
