"""By which error code an answer is counted."""

from __future__ import annotations

from kbroker.handlers.first_error import first_error
from kbroker.handlers.lazy_array import LazyArray
from kbroker.protocol.apis.cluster.k03_metadata import MetadataResponse, MetadataResponseTopic
from kbroker.protocol.apis.configs.k32_describe_configs import DescribeConfigsResponse, DescribeConfigsResult
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatResponse
from kbroker.protocol.apis.groups.k13_leave_group import LeaveGroupResponse, MemberResponse
from kbroker.protocol.apis.records.k02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kbroker.protocol.apis.transactions.k24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kbroker.protocol.codec import encode_answer


def partition(error_code: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=0, error_code=error_code)


def test_an_answer_without_an_error() -> None:
    topic = ListOffsetsTopicResponse(name="t", partitions=[partition(0)])
    assert first_error(ListOffsetsResponse(topics=[topic])) == 0
    assert first_error(HeartbeatResponse()) == 0


def test_the_error_of_the_whole_answer_comes_first() -> None:
    assert first_error(HeartbeatResponse(error_code=27)) == 27
    members = [MemberResponse(member_id="m", error_code=25)]
    assert first_error(LeaveGroupResponse(error_code=16, members=members)) == 16
    assert first_error(LeaveGroupResponse(members=members)) == 25


def test_the_first_error_of_any_partition_is_found() -> None:
    topics = [ListOffsetsTopicResponse(name="t", partitions=[partition(0), partition(3), partition(1)])]
    assert first_error(ListOffsetsResponse(topics=topics)) == 3


def test_errors_of_partitions_in_transactions_have_a_name_of_their_own() -> None:
    refused = AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=48)
    topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=[refused])
    assert first_error(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])) == 48


def test_topics_that_are_encoded_already_have_no_error() -> None:
    unknown = MetadataResponseTopic(error_code=3, name="u", partitions=[])
    assert first_error(MetadataResponse(topics=[b"encoded"])) == 0  # type: ignore[list-item]
    assert first_error(MetadataResponse(topics=[b"encoded", unknown])) == 3  # type: ignore[list-item]


def test_what_is_built_while_it_is_encoded_knows_its_error_then() -> None:
    def build(code: int) -> DescribeConfigsResult:
        return DescribeConfigsResult(error_code=code, resource_type=2, resource_name="t", configs=[])

    response = DescribeConfigsResponse(results=LazyArray(build, [0, 40, 87]))  # type: ignore[arg-type]
    encode_answer(32, 4, 1, response)
    assert first_error(response) == 40
