"""APIs that only answer: elections, reassignments, ACLs, quotas, SCRAM users, SASL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.handlers import (
    alter_partition_reassignments,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_user_scram_credentials,
    elect_leaders,
    list_partition_reassignments,
    sasl_authenticate,
    sasl_handshake,
)
from kbroker.protocol.apis.security.k17_sasl_handshake import SaslHandshakeRequest
from kbroker.protocol.apis.security.k29_describe_acls import DescribeAclsRequest
from kbroker.protocol.apis.security.k30_create_acls import AclCreation, CreateAclsRequest
from kbroker.protocol.apis.security.k31_delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kbroker.protocol.apis.security.k36_sasl_authenticate import SaslAuthenticateRequest
from kbroker.protocol.apis.security.k48_describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from kbroker.protocol.apis.security.k50_describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from kbroker.protocol.apis.topics.k43_elect_leaders import ElectLeadersRequest, TopicPartitions
from kbroker.protocol.apis.topics.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kbroker.protocol.apis.topics.k46_list_partition_reassignments import ListPartitionReassignmentsRequest
from tests.unit.handlers.admin_context import NODE_ID, AdminBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    broker = AdminBroker(tmp_path)
    yield broker
    broker.close()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_election_is_needed(broker: AdminBroker, version: int) -> None:
    broker.create("t", 2)
    named = [TopicPartitions(topic="t", partitions=[1, 5]), TopicPartitions(topic="no", partitions=[0])]
    response = broker.ask(elect_leaders, version, ElectLeadersRequest(topic_partitions=named))
    assert response.error_code == 0
    found = {
        (t.topic, p.partition_id): p.error_code for t in response.replica_election_results for p in t.partition_result
    }
    assert found == {("t", 1): ErrorCode.ELECTION_NOT_NEEDED, ("t", 5): 3, ("no", 0): 3}
    everything = broker.ask(elect_leaders, version, ElectLeadersRequest(topic_partitions=None))
    assert everything.replica_election_results == [], "of all partitions only failures are told"


def test_an_unknown_election_type_is_refused(broker: AdminBroker) -> None:
    broker.create("t")
    named = [TopicPartitions(topic="t", partitions=[0])]
    request = ElectLeadersRequest(topic_partitions=named, election_type=2)
    answer = broker.ask(elect_leaders, 2, request)
    (result,) = answer.replica_election_results
    assert (answer.error_code, result.partition_result[0].error_code) == (ErrorCode.INVALID_REQUEST,) * 2
    everything = ElectLeadersRequest(topic_partitions=None, election_type=2)
    assert broker.ask(elect_leaders, 2, everything).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 1])
def test_only_this_broker_is_accepted_as_replica(broker: AdminBroker, version: int) -> None:
    broker.create("t", 6)
    wanted: list[list[int] | None] = [[NODE_ID], [NODE_ID, 2], [2], [], None]
    topic = ReassignableTopic(
        name="t",
        partitions=[ReassignablePartition(partition_index=i, replicas=replicas) for i, replicas in enumerate(wanted)]
        + [ReassignablePartition(partition_index=6, replicas=[NODE_ID])],
    )
    response = broker.ask(alter_partition_reassignments, version, AlterPartitionReassignmentsRequest(topics=[topic]))
    assert response.error_code == 0
    assert [p.error_code for p in response.responses[0].partitions] == [0, 39, 39, 39, 85, 3]


def test_no_reassignment_is_ever_listed(broker: AdminBroker) -> None:
    broker.create("t")
    response = broker.ask(list_partition_reassignments, 0, ListPartitionReassignmentsRequest(topics=None))
    assert (response.error_code, response.topics) == (0, [])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_disabled(broker: AdminBroker, version: int) -> None:
    described = broker.ask(
        describe_acls,
        version,
        DescribeAclsRequest(resource_name_filter=None, principal_filter=None, host_filter=None),
    )
    assert (described.error_code, described.resources) == (ErrorCode.SECURITY_DISABLED, [])
    created = broker.ask(create_acls, version, CreateAclsRequest(creations=[AclCreation(), AclCreation()]))
    assert [result.error_code for result in created.results] == [54, 54]
    deleted = broker.ask(
        delete_acls,
        version,
        DeleteAclsRequest(
            filters=[DeleteAclsFilter(resource_name_filter=None, principal_filter=None, host_filter=None)]
        ),
    )
    assert [(result.error_code, result.matching_acls) for result in deleted.filter_results] == [(54, [])]


Component = tuple[str, int, str | None]


def quotas(broker: AdminBroker, version: int, *components: Component) -> tuple[int, str | None, list[Any] | None]:
    request = DescribeClientQuotasRequest(
        components=[ComponentData(entity_type=kind, match_type=match, match=name) for kind, match, name in components]
    )
    response = broker.ask(describe_client_quotas, version, request)
    return response.error_code, response.error_message, response.entries


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "components",
    [
        [],
        [("user", 0, "a")],
        [("user", 1, None), ("client-id", 2, None)],
        [("ip", 2, None)],
        [("ip", 0, "no address")],
    ],
)
def test_there_are_no_quotas(broker: AdminBroker, version: int, components: list[Component]) -> None:
    assert quotas(broker, version, *components) == (0, "", [])


@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([("", 9, None)], 42, "Invalid empty entity type."),
        ([("bogus", 9, None)], 35, "Unsupported entity type bogus"),
        ([("user", 9, None), ("bogus", 2, None)], 42, "Unknown match type 9"),
        ([("user", 0, None)], 42, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([("user", 1, "")], 42, "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        ([("user", 2, "x")], 42, "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        ([("ip", 2, None), ("ip", 9, None)], 42, "Entity type ip cannot appear more than once in the filter."),
        ([("user", 2, None), ("ip", 9, None)], 42, "Unknown match type 9"),
    ],
)
def test_a_quota_filter_that_kafka_refuses_is_refused(
    broker: AdminBroker, components: list[Component], code: int, message: str
) -> None:
    assert quotas(broker, 1, *components) == (code, message, None)


def test_a_quota_filter_by_address_and_client_is_refused(broker: AdminBroker) -> None:
    code, message, entries = quotas(broker, 1, ("client-id", 2, None), ("ip", 2, None))
    assert (code, entries) == (ErrorCode.INVALID_REQUEST, None)
    assert message is not None
    assert message.startswith("Invalid entity filter component combination.")


def test_no_user_has_scram_credentials(broker: AdminBroker) -> None:
    for users in (None, []):
        every = broker.ask(describe_user_scram_credentials, 0, DescribeUserScramCredentialsRequest(users=users))
        assert (every.error_code, every.results) == (0, [])
    named = [UserName(name=name) for name in ("a", "b", "a")]
    response = broker.ask(describe_user_scram_credentials, 0, DescribeUserScramCredentialsRequest(users=named))
    assert response.error_code == 0
    assert [(result.user, result.error_code) for result in response.results] == [
        ("a", ErrorCode.DUPLICATE_RESOURCE),
        ("b", ErrorCode.RESOURCE_NOT_FOUND),
    ]
    assert [result.error_message for result in response.results] == [
        "Cannot describe SCRAM credentials for the same user twice in a single request: a",
        "Attempt to describe a user credential that does not exist: b",
    ]


def test_a_plain_listener_refuses_sasl(broker: AdminBroker) -> None:
    for version in (0, 1):
        response = broker.ask(sasl_handshake, version, SaslHandshakeRequest(mechanism="PLAIN"))
        assert (response.error_code, response.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    for version in (0, 1, 2):
        answer = broker.ask(sasl_authenticate, version, SaslAuthenticateRequest(auth_bytes=b"\0a\0b"))
        assert (answer.error_code, answer.auth_bytes) == (ErrorCode.ILLEGAL_SASL_STATE, b"")
