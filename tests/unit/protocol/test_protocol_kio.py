"""Round trips through kio: its bytes equal ours, and what it reads equals what we wrote."""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import uuid
from typing import Any

import pytest
from kio import index
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from kbroker.protocol import records
from kbroker.protocol.api_keys import ApiKey, request_class, response_class
from kbroker.protocol.compiler import decode_whole, encode
from kbroker.protocol.emit_decode import tagged_fields, wire_fields
from kbroker.protocol.fields import UUID, ZERO_UUID, Field, Message, Struct, WireType
from tests.reference.protocol_values import is_private, random_message

# kio 0.6 pins an older Kafka: our tables know these newer versions.
NEWER = {
    "ApiVersionsRequest": [5],
    "ApiVersionsResponse": [5],
    "DeleteGroupsRequest": [3],
    "DeleteGroupsResponse": [3],
    "TxnOffsetCommitRequest": [6],
    "TxnOffsetCommitResponse": [6],
}
SAMPLES = 12


def plain(value: Any) -> Any:
    """kio's value as ours: milliseconds, ints, bytes, lists."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, bool | bytes | str | float):
        return value
    return int(value)


def assert_same(ours: Any, theirs: Any, field: Field, version: int, path: str) -> None:
    if theirs is None:
        assert ours is None or (field.type is UUID and ours == ZERO_UUID), path
        return
    if field.array:
        assert len(ours) == len(theirs), path
        for number, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            assert_same_element(left, right, field, version, f"{path}[{number}]")
    elif ours is None and not isinstance(field.type, WireType):
        assert theirs == type(theirs)(), path  # a tagged struct that is not sent: kio builds the default one
    else:
        assert_same_element(ours, theirs, field, version, path)


def assert_same_element(ours: Any, theirs: Any, field: Field, version: int, path: str) -> None:
    if isinstance(field.type, WireType):
        assert plain(theirs) == ours, path
    else:
        assert_same_struct(ours, theirs, version, path)


def assert_same_struct(ours: Struct, theirs: Any, version: int, path: str) -> None:
    cls = type(ours)
    known = {id(f) for f in wire_fields(cls, version) + tagged_fields(cls, version, True)}
    fields = [f for f in cls.__fields__ if id(f) in known and not is_private(f)]
    names = [f.name for f in dataclasses.fields(theirs)]
    assert len(names) == len(fields), (path, names)
    for name, field in zip(names, fields, strict=True):
        assert_same(getattr(ours, field.name), getattr(theirs, name), field, version, f"{path}.{field.name}")


def kio_class(api_key: int, version: int, request: bool) -> type | None:
    load = index.load_request_schema if request else index.load_response_schema
    try:
        return load(api_key, version)
    except (index.UnknownEntity, index.UnknownAPIKey):
        return None


def round_trip(cls: type[Message], version: int, oracle: type, seed: str) -> None:
    read, write = entity_reader(oracle), entity_writer(oracle)
    rng = random.Random(seed)
    for number in range(SAMPLES):
        message = cls() if number == 0 else random_message(cls, version, rng)
        body = encode(message, version)
        theirs, size = read(body, 0)
        assert size == len(body)
        assert_same_struct(message, theirs, version, cls.__name__)
        buffer = io.BytesIO()
        write(buffer, theirs)
        assert buffer.getvalue() == body
        assert decode_whole(cls, version, body) == message


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.title)
def test_bytes_equal_kio(key: ApiKey) -> None:
    for request in (True, False):
        cls = request_class(key) if request else response_class(key)
        unknown = []
        for version in range(cls.VERSIONS.first, cls.VERSIONS.last + 1):
            oracle = kio_class(key, version, request)
            if oracle is None:
                unknown.append(version)
                continue
            round_trip(cls, version, oracle, f"{cls.__name__} {version}")
        assert unknown == NEWER.get(cls.__name__, [])


@pytest.mark.parametrize("cls", [records.ConsumerProtocolSubscription, records.ConsumerProtocolAssignment])
def test_consumer_protocol_equals_kio(cls: type[Message]) -> None:
    name = "consumer_protocol_" + cls.__name__.removeprefix("ConsumerProtocol").lower()
    for version in schema_name_map[name]:
        oracle = getattr(index.load_entity_module(name, version, EntityType.data), cls.__name__)
        round_trip(cls, version, oracle, f"{name} {version}")
