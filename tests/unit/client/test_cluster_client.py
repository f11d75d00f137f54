"""The cluster client: which broker it asks, in which version, and what it asks again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from fake_broker import FakeBroker, Handlers

from kbroker.client.cluster_client import ClientError, ClusterClient, CoordinatorKind
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.cluster.k03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kbroker.protocol.apis.groups.k10_find_coordinator import Coordinator, FindCoordinatorResponse
from kbroker.protocol.apis.groups.k42_delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from kbroker.protocol.apis.records.k02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kbroker.protocol.apis.topics.k19_create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kbroker.retry_policy import RetryPolicy

VERSIONS = {
    ApiKey.METADATA: (0, 12),
    ApiKey.LIST_OFFSETS: (1, 7),
    ApiKey.FIND_COORDINATOR: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_GROUPS: (0, 2),
}


class Fleet:
    """Brokers 1, 2, ... that all list each other; the leaders, the controller and the coordinators can be moved."""

    def __init__(self) -> None:
        self.brokers: dict[int, FakeBroker] = {}
        self.controller = 1
        self.coordinators: dict[str, int] = {}
        self.leaders: dict[int, int] = {}

    def start(self, node_id: int, handlers: Handlers, versions: Mapping[ApiKey, tuple[int, int]] = VERSIONS) -> None:
        every: Handlers = {ApiKey.METADATA: self._metadata, ApiKey.FIND_COORDINATOR: self._find, **handlers}
        self.brokers[node_id] = FakeBroker(every, versions)

    def client(self, node_id: int = 1) -> ClusterClient:
        return ClusterClient(self.brokers[node_id].bootstrap, retries=RetryPolicy(60, wait=lambda seconds: False))

    def asked(self, node_id: int, key: ApiKey) -> int:
        return sum(seen == key for seen, _, _ in self.brokers[node_id].seen)

    def _metadata(self, request: Any) -> MetadataResponse:
        partitions = [
            MetadataResponsePartition(error_code=0, partition_index=index, leader_id=leader)
            for index, leader in self.leaders.items()
        ]
        return MetadataResponse(
            cluster_id="c",
            controller_id=self.controller,
            brokers=[
                MetadataResponseBroker(node_id=node, host=broker.host, port=broker.port)
                for node, broker in self.brokers.items()
            ],
            topics=[
                MetadataResponseTopic(error_code=0, name=topic.name, partitions=partitions)
                for topic in request.topics or ()
            ],
        )

    def _find(self, request: Any) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=self.coordinators[key], error_code=0, error_message=None)
                for key in request.coordinator_keys
            ]
        )


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet()
    yield made
    for broker in made.brokers.values():
        broker.close()


def created(code: int = 0) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=code)])


def codes_of_topics(response: Any) -> list[int]:
    return [topic.error_code for topic in response.topics]


def offsets_from(node_id: int, fleet: Fleet) -> Callable[[Any], ListOffsetsResponse]:
    """Answers for the partitions that the broker leads; the offset is 100 times the broker's id."""

    def answer(request: Any) -> ListOffsetsResponse:
        topics = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=part.partition_index,
                        error_code=0
                        if fleet.leaders[part.partition_index] == node_id
                        else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                        offset=100 * node_id,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)

    return answer


def test_the_newest_version_that_both_know_is_used(fleet: Fleet) -> None:
    fleet.start(1, {})
    fleet.client().brokers()
    assert [version for _, version, _ in fleet.brokers[1].seen] == [12]


def test_the_caller_can_ask_for_an_older_version(fleet: Fleet) -> None:
    fleet.start(1, {ApiKey.CREATE_TOPICS: lambda request: created()})
    fleet.client().controller(CreateTopicsRequest(topics=[]), codes_of_topics, newest=4)
    assert fleet.brokers[1].seen[-1][:2] == (ApiKey.CREATE_TOPICS, 4)


@pytest.mark.parametrize("versions", [{}, {ApiKey.CREATE_TOPICS: (8, 9)}], ids=["not served", "too new"])
def test_a_request_that_the_broker_does_not_serve_is_named(fleet: Fleet, versions: dict) -> None:
    fleet.start(1, {}, {ApiKey.METADATA: (0, 12)} | versions)
    with pytest.raises(ClientError, match=r"the broker .*serve.* CreateTopics"):
        fleet.client().controller(CreateTopicsRequest(topics=[]), codes_of_topics)


def test_the_controller_is_asked_and_again_when_it_moves(fleet: Fleet) -> None:
    def moved(request: Any) -> CreateTopicsResponse:
        fleet.controller = 3
        return created(ErrorCode.NOT_CONTROLLER)

    fleet.controller = 2
    fleet.start(1, {})
    fleet.start(2, {ApiKey.CREATE_TOPICS: moved})
    fleet.start(3, {ApiKey.CREATE_TOPICS: lambda request: created()})
    response = fleet.client().controller(CreateTopicsRequest(topics=[]), codes_of_topics)
    assert codes_of_topics(response) == [0]
    assert (fleet.asked(2, ApiKey.CREATE_TOPICS), fleet.asked(3, ApiKey.CREATE_TOPICS)) == (1, 1)


def test_an_error_that_does_not_pass_is_returned_at_once(fleet: Fleet) -> None:
    fleet.start(1, {ApiKey.CREATE_TOPICS: lambda request: created(ErrorCode.TOPIC_ALREADY_EXISTS)})
    response = fleet.client().controller(CreateTopicsRequest(topics=[]), codes_of_topics)
    assert codes_of_topics(response) == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert fleet.asked(1, ApiKey.CREATE_TOPICS) == 1


def test_a_groups_coordinator_is_asked(fleet: Fleet) -> None:
    result = DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=0)])
    fleet.coordinators = {"g": 2}
    fleet.start(1, {})
    fleet.start(2, {ApiKey.DELETE_GROUPS: lambda request: result})
    request = DeleteGroupsRequest(groups_names=["g"])
    response = fleet.client().coordinator(CoordinatorKind.GROUP, "g", request, lambda answer: [])
    assert response.results[0].group_id == "g"


def delete_groups(client: ClusterClient, *names: str) -> dict[str, int]:
    """The error code of each group."""

    def read(response: Any) -> list[tuple[str, int, None]]:
        return [(result.group_id, result.error_code, None) for result in response.results]

    answers = client.by_coordinator(
        CoordinatorKind.GROUP, names, lambda asked: DeleteGroupsRequest(groups_names=list(asked)), read
    )
    return {name: answer.error_code for name, answer in answers.items()}


def deletes_groups_of(node_id: int, fleet: Fleet) -> Callable[[Any], DeleteGroupsResponse]:
    """Answers for the groups that the broker coordinates."""

    def answer(request: Any) -> DeleteGroupsResponse:
        def code(group: str) -> int:
            return 0 if fleet.coordinators[group] == node_id else ErrorCode.NOT_COORDINATOR

        return DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id=group, error_code=code(group)) for group in request.groups_names]
        )

    return answer


def test_each_coordinator_is_asked_once_for_all_its_groups(fleet: Fleet) -> None:
    fleet.coordinators = {"a": 1, "b": 2, "c": 1}
    for node_id in (1, 2):
        fleet.start(node_id, {ApiKey.DELETE_GROUPS: deletes_groups_of(node_id, fleet)})
    assert delete_groups(fleet.client(), "a", "b", "c") == {"a": 0, "b": 0, "c": 0}
    assert (fleet.asked(1, ApiKey.DELETE_GROUPS), fleet.asked(2, ApiKey.DELETE_GROUPS)) == (1, 1)
    assert fleet.asked(1, ApiKey.FIND_COORDINATOR) == 1


def test_only_the_groups_whose_coordinator_moved_are_asked_for_again(fleet: Fleet) -> None:
    fleet.coordinators = {"a": 1, "b": 1}

    def moves_one(request: Any) -> DeleteGroupsResponse:
        fleet.coordinators["b"] = 2
        return deletes_groups_of(1, fleet)(request)

    fleet.start(1, {ApiKey.DELETE_GROUPS: moves_one})
    fleet.start(2, {ApiKey.DELETE_GROUPS: deletes_groups_of(2, fleet)})
    assert delete_groups(fleet.client(), "a", "b") == {"a": 0, "b": 0}
    (_, _, again) = fleet.brokers[2].seen[-1]
    assert again.groups_names == ["b"]


def test_a_broker_is_asked_again_after_an_error_that_passes(fleet: Fleet) -> None:
    answers = iter([created(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), created()])
    fleet.start(1, {ApiKey.CREATE_TOPICS: lambda request: next(answers)})
    response = fleet.client().broker(1, CreateTopicsRequest(topics=[]), codes=codes_of_topics)
    assert codes_of_topics(response) == [0]


def test_each_partitions_leader_is_asked_once(fleet: Fleet) -> None:
    fleet.leaders = {0: 1, 1: 2, 2: 1}
    for node_id in (1, 2):
        fleet.start(node_id, {ApiKey.LIST_OFFSETS: offsets_from(node_id, fleet)})
    found = fleet.client().offsets({("t", index): -1 for index in range(3)})
    assert {index: answer.value.offset for (_, index), answer in found.items()} == {0: 100, 1: 200, 2: 100}
    assert (fleet.asked(1, ApiKey.LIST_OFFSETS), fleet.asked(2, ApiKey.LIST_OFFSETS)) == (1, 1)


def test_only_the_partitions_that_moved_are_asked_again(fleet: Fleet) -> None:
    fleet.leaders = {0: 1, 1: 1}

    def moves_one(request: Any) -> ListOffsetsResponse:
        fleet.leaders[1] = 2
        return offsets_from(1, fleet)(request)

    fleet.start(1, {ApiKey.LIST_OFFSETS: moves_one})
    fleet.start(2, {ApiKey.LIST_OFFSETS: offsets_from(2, fleet)})
    found = fleet.client().offsets({("t", 0): -1, ("t", 1): -1})
    assert {index: answer.value.offset for (_, index), answer in found.items()} == {0: 100, 1: 200}
    (_, _, again) = fleet.brokers[2].seen[-1]
    assert [part.partition_index for part in again.topics[0].partitions] == [1]


def test_a_connection_that_broke_is_opened_again(fleet: Fleet) -> None:
    answers = iter([None, created()])
    fleet.start(1, {ApiKey.CREATE_TOPICS: lambda request: next(answers)})
    response = fleet.client().controller(CreateTopicsRequest(topics=[]), codes_of_topics)
    assert codes_of_topics(response) == [0]
    assert fleet.brokers[1].connections == 2


def test_the_last_answer_stands_when_the_retries_end(fleet: Fleet) -> None:
    fleet.start(1, {ApiKey.CREATE_TOPICS: lambda request: created(ErrorCode.NOT_CONTROLLER)})
    client = ClusterClient(fleet.brokers[1].bootstrap, retries=RetryPolicy(0))
    assert codes_of_topics(client.controller(CreateTopicsRequest(topics=[]), codes_of_topics)) == [
        ErrorCode.NOT_CONTROLLER
    ]


def test_a_broker_that_never_answered_is_not_asked_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    with pytest.raises(ClientError, match=f"no broker answers at {address}: Connection refused"):
        ClusterClient(address, retries=RetryPolicy(60, wait=wait)).brokers()
    assert waits == []


def test_the_second_bootstrap_server_is_asked_when_the_first_is_away(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        away = "{}:{}".format(*server.getsockname())
    fleet.start(1, {})
    assert list(ClusterClient(f"{away},{fleet.brokers[1].bootstrap}").brokers()) == [1]


def test_an_advertised_address_that_does_not_answer_is_called_so(fleet: Fleet) -> None:
    fleet.start(1, {})
    fleet.start(2, {})
    fleet.brokers[2].close()
    fleet.controller = 2
    client = ClusterClient(fleet.brokers[1].bootstrap, retries=RetryPolicy(0))
    with pytest.raises(ClientError, match="the address that the cluster advertises"):
        client.controller(CreateTopicsRequest(topics=[]), codes_of_topics)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "does not answer as a Kafka broker does: an answer that begins with 'HTTP'",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not answer as a Kafka broker does: an answer that begins with 'SSH-'"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "does not answer as a Kafka broker does: an answer of 352518912 bytes"),
        (b"", "no broker answers at .*: the broker closed the connection"),
    ],
    ids=["HTTP", "SSH", "TLS", "closed"],
)
def test_what_is_no_broker_is_said(sent: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = ClusterClient("{}:{}".format(*server.getsockname()))

        def speak() -> None:
            connected, _ = server.accept()
            with connected:
                connected.recv(1000)
                connected.sendall(sent)

        speaker = threading.Thread(target=speak)
        speaker.start()
        with pytest.raises(ClientError, match=f"{said}; is this a broker's Kafka port"):
            client.brokers()
        speaker.join()


def test_a_broker_that_answered_before_is_not_doubted(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.start(1, {})
    client = ClusterClient(fleet.brokers[1].bootstrap, retries=RetryPolicy(0))
    client.brokers()
    client.close()
    monkeypatch.setattr(fleet.brokers[1], "_answer", lambda key, version, body: None)
    with pytest.raises(ClientError, match=r"the broker closed the connection$"):
        client.topics()


@pytest.mark.parametrize(
    "text", ["host", "host:", ":9092", "host:0", "host:65536", "host:x", "a:1,,b:2", ",", "a:1,,", "http://a:1"]
)
def test_an_address_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        ClusterClient(text)
