"""The APIs and features of a running broker, so that tests of others are skipped."""

from __future__ import annotations

import socket
import struct

import pytest
from broker_process import BrokerProcess

from kbroker.app.kafka_settings import KAFKA_DEFAULTS
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.codec import decode_response_frame, encode_request_frame
from kbroker.protocol.fields import Message

VERSION = 4
TRANSACTIONS = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)


def api_versions(broker: BrokerProcess) -> ApiVersionsResponse:
    """The broker's answer to ApiVersions."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = ask(broker, ApiKey.API_VERSIONS, VERSION, request)
    assert isinstance(response, ApiVersionsResponse)
    return response


def ask(broker: BrokerProcess, key: ApiKey, version: int, request: Message) -> Message:
    """One request on a connection of its own; its answer."""
    with socket.create_connection((broker.host, broker.port), 20) as connection, connection.makefile("rb") as answers:
        connection.sendall(encode_request_frame(int(key), version, 1, "test", request))
        (length,) = struct.unpack(">i", answers.read(4))
        return decode_response_frame(int(key), version, bytearray(answers.read(length)))[1]


def need(broker: BrokerProcess, *keys: ApiKey, **features: int) -> None:
    """Skips the test unless the broker serves these APIs, and has these features (`_` for `.`) at least at a level."""
    answer = api_versions(broker)
    served = {api.api_key for api in answer.api_keys}
    if missing := [key.title for key in keys if key not in served]:
        pytest.skip(f"this broker does not serve {', '.join(missing)}")
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    for name, level in features.items():
        if finalized.get(name.replace("_", "."), 0) < level:
            pytest.skip(f"this broker has no {name.replace('_', '.')} {level}")


def settings(**values: str | int) -> dict[str, str]:
    """KBROKER_SET with those of these Kafka settings (`_` for `.`) that this build has."""
    wanted = {name.replace("_", "."): value for name, value in values.items()}
    wanted["group.initial.rebalance.delay.ms"] = 0
    return {"KBROKER_SET": ",".join(f"{name}={value}" for name, value in wanted.items() if name in KAFKA_DEFAULTS)}
