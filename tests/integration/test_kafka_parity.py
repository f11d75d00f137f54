"""The APIs, versions and features of a running Apache Kafka, compared with kbroker's."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import java_tools
import pytest
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, require
from served_apis import api_versions

from bench.e2e.servers import Kafka
from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.codec import decode_response_frame, encode_request_frame

pytestmark = [pytest.mark.java, ON_A_FOLDER]
# What Kafka 4.4 lists and kbroker does not.
SECURITY = {38, 39, 40, 41, 51}
QUOTAS = {49}
BETWEEN_SERVERS = {55, 64, 80, 81, 83, 84, 85, 86, 87, 94}
STREAMS_GROUPS = {88, 89, 93}
SHARE_GROUPS = {76, 77, 78, 79, 90, 91, 92}  # enabled by an option
LEFT_OUT = SECURITY | QUOTAS | BETWEEN_SERVERS | STREAMS_GROUPS | SHARE_GROUPS
# Newest versions of Kafka 4.4 that are not served yet.
NOT_YET = {28: (0, 6)}
# Kafka lists these only where they are enabled.
FEATURES = ("group.version", "transaction.version")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiVersionsResponse]:
    """The answer of Apache Kafka to ApiVersions."""
    require(not java_tools.missing(), java_tools.missing())
    server = Kafka(tmp_path_factory.mktemp("kafka"))
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    try:
        server.start()
        with socket.create_connection(("127.0.0.1", server.port), 20) as connection, connection.makefile("rb") as lines:
            connection.sendall(encode_request_frame(18, 4, 1, "test", request))
            (length,) = struct.unpack(">i", lines.read(4))
            answer = decode_response_frame(18, 4, bytearray(lines.read(length)))[1]
        assert isinstance(answer, ApiVersionsResponse)
        yield answer
    finally:
        server.stop()


def ranges(answer: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}


def test_api_versions_cover_those_of_kafka(broker: BrokerProcess, kafka: ApiVersionsResponse) -> None:
    """Kafka's least versions exactly, and its highest or higher ones."""
    ours, theirs = ranges(api_versions(broker)), ranges(kafka)
    assert {key: theirs[key] for key in theirs.keys() - ours.keys() - LEFT_OUT} == {}
    assert ours.keys() <= theirs.keys()
    different = {
        key: (ours[key], theirs[key])
        for key in ours.keys() & theirs.keys()
        if theirs[key] != NOT_YET.get(key) and (ours[key][0] != theirs[key][0] or ours[key][1] < theirs[key][1])
    }
    assert different == {}


@pytest.mark.parametrize("name", FEATURES)
def test_finalized_features_are_those_of_kafka(broker: BrokerProcess, kafka: ApiVersionsResponse, name: str) -> None:
    ours, theirs = (
        [(each.min_version_level, each.max_version_level) for each in answer.finalized_features if each.name == name]
        for answer in (api_versions(broker), kafka)
    )
    assert [highest for _, highest in ours] == [highest for _, highest in theirs]
