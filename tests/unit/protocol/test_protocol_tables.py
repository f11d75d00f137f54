"""The field tables against the definitions that the kafka-python wheel ships, and those in Kafka's own jars."""

from __future__ import annotations

import json
import re
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol import records, share_group_records
from kbroker.protocol.api_keys import FLEXIBLE_FROM, ApiKey, is_flexible, request_class, response_class
from kbroker.protocol.fields import FRESH, NO_VERSION, ZERO_UUID, Field, Message, Struct, VersionRange, WireType
from tests.reference.protocol_values import every_message, is_private

RESOURCES = files("kafka.protocol.schemas.resources")

# Messages of which our table knows newer versions than kafka-python, or that it does not have.
NEWER = {
    "ApiVersionsRequest": "version 5 is of Kafka 4.4 (KIP-1242)",
    "ApiVersionsResponse": "version 5 is of Kafka 4.4 (KIP-1242)",
    "DeleteGroupsRequest": "version 3 is of Kafka 4.4",
    "DeleteGroupsResponse": "version 3 is of Kafka 4.4",
    "TxnOffsetCommitRequest": "version 6 is of Kafka 4.4 (KIP-1319)",
    "TxnOffsetCommitResponse": "version 6 is of Kafka 4.4 (KIP-1319)",
}
MISSING = {
    "ConsumerGroupHeartbeat": "KIP-848 is not in kafka-python",
    "ConsumerGroupDescribe": "KIP-848 is not in kafka-python",
    "GetTelemetrySubscriptions": "KIP-714 is not in kafka-python",
    "PushTelemetry": "KIP-714 is not in kafka-python",
    "ShareGroupHeartbeat": "KIP-932 is not in kafka-python",
    "ShareGroupDescribe": "KIP-932 is not in kafka-python",
    "ShareFetch": "KIP-932 is not in kafka-python",
    "ShareAcknowledge": "KIP-932 is not in kafka-python",
    "DescribeShareGroupOffsets": "KIP-932 is not in kafka-python",
    "AlterShareGroupOffsets": "KIP-932 is not in kafka-python",
    "DeleteShareGroupOffsets": "KIP-932 is not in kafka-python",
}
JARS = Path(__file__).parents[3] / ".tools/kafka"
SHARE_GROUP_RECORDS = [
    cls for name, cls in vars(share_group_records).items() if re.match("ShareGroup.*(Key|Value)", name)
]
# Fields that Kafka 4.4 renamed (the bytes are the same): our name -> kafka-python's.
RENAMED = {"TxnOffsetCommitRequest.generation_id_or_member_epoch": "generation_id"}


def load(name: str) -> dict[str, Any]:
    return parse(RESOURCES.joinpath(f"{name}.json").read_text())


def load_from_jar(name: str, jar: str = "kafka-clients-4*.jar") -> dict[str, Any]:
    """The definition in one of Kafka's jars; skips the test where they are not fetched."""
    found = sorted(JARS.glob(jar))
    if not found:
        pytest.skip("no Kafka jars: run scripts/fetch_tools.sh")
    with zipfile.ZipFile(found[-1]) as archive:
        return parse(archive.read(f"common/message/{name}.json").decode())


def parse(text: str) -> dict[str, Any]:
    text = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    return json.loads(re.sub(r"(?<=[,\]}])\s*//.*$", "", text, flags=re.MULTILINE))


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)).lower()


def expected_default(entry: dict[str, Any], kind: str) -> Any:
    """The default by the rules of Kafka's generator."""
    if kind.startswith("["):
        return None if entry.get("default") == "null" else FRESH
    default = entry.get("default")
    if default == "null":
        return None
    if kind == "bool":
        return str(default).lower() == "true"
    if kind.startswith(("int", "uint")):
        return int(str(default or 0), 0)
    if kind == "float64":
        return float(default or 0)
    if kind == "records":
        return None
    implied = {"string": default or "", "bytes": b"", "uuid": ZERO_UUID}
    if kind in implied:
        return implied[kind]
    return None if "tag" in entry else FRESH


def effective(versions: VersionRange, valid: VersionRange) -> VersionRange:
    first, last = max(versions.first, valid.first), min(versions.last, valid.last)
    return VersionRange(first, last) if first <= last else NO_VERSION


def compare(entries: list[Any], cls: type[Struct], common: dict[str, Any], valid: VersionRange, path: str) -> list[str]:
    found = []
    entries = [e for e in entries if effective(VersionRange.parse(e["versions"]), valid) != NO_VERSION]
    fields = [f for f in cls.__fields__ if effective(f.versions, valid) != NO_VERSION and not is_private(f)]
    names = [RENAMED.get(f"{path}.{f.name}", f.name) for f in fields]
    if [snake(e["name"]) for e in entries] != names:
        return [f"{path}: fields {[f.name for f in fields]}, expected {[e['name'] for e in entries]}"]
    for entry, field in zip(entries, fields, strict=True):
        here = f"{path}.{field.name}"
        found += [f"{here}: {problem}" for problem in compare_field(entry, field, valid)]
        if not isinstance(field.type, WireType):
            inner = entry.get("fields") or common[entry["type"].lstrip("[]")]["fields"]
            found += compare(inner, field.type, common, effective(field.versions, valid), here)
    return found


def compare_field(entry: dict[str, Any], field: Field, valid: VersionRange) -> list[str]:
    parse = VersionRange.parse
    kind = entry["type"]
    name = field.type.name if isinstance(field.type, WireType) else field.type.__name__
    wanted = kind.lstrip("[]")
    found = []
    if field.array != kind.startswith("[]") or not (name == wanted or name.endswith(wanted)):
        found.append(f"type {name}, expected {kind}")
    versions = effective(parse(entry["versions"]), valid)
    if effective(field.versions, valid) != versions:
        found.append(f"versions {field.versions}, expected {entry['versions']}")
    if effective(field.nullable, versions) != effective(parse(entry.get("nullableVersions", "")), versions):
        found.append(f"nullable {field.nullable}, expected {entry.get('nullableVersions')}")
    if field.tag != entry.get("tag"):
        found.append(f"tag {field.tag}, expected {entry.get('tag')}")
    if effective(field.tagged, valid) != effective(parse(entry.get("taggedVersions", "")), valid):
        found.append(f"tagged {field.tagged}, expected {entry.get('taggedVersions')}")
    if field.default != expected_default(entry, kind):
        found.append(f"default {field.default!r}, expected {entry.get('default')!r}")
    return found


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.title)
def test_table_equals_definition(key: ApiKey) -> None:
    for kind, cls in (("Request", request_class(key)), ("Response", response_class(key))):
        name = key.title + kind
        assert cls.__name__ == name
        if key.title in MISSING:
            assert not RESOURCES.joinpath(f"{name}.json").is_file(), "no longer missing: remove the exception"
            continue
        check(cls, load(name))


@pytest.mark.parametrize("cls", [records.ConsumerProtocolSubscription, records.ConsumerProtocolAssignment])
def test_consumer_protocol_equals_definition(cls: type[Message]) -> None:
    check(cls, load(cls.__name__))


@pytest.mark.parametrize("title", [title for title in MISSING if "Telemetry" not in title])
def test_table_equals_definition_in_the_jar(title: str) -> None:
    key = next(key for key in ApiKey if key.title == title)
    for kind, cls in (("Request", request_class(key)), ("Response", response_class(key))):
        check(cls, load_from_jar(title + kind))


@pytest.mark.parametrize("cls", SHARE_GROUP_RECORDS)
def test_share_group_record_equals_definition_in_the_jar(cls: type[Message]) -> None:
    definition = load_from_jar(cls.__name__, "kafka-group-coordinator-[0-9]*.jar")
    if cls.__name__.endswith("Key"):
        # Keys say their type where the others say their version.
        assert VersionRange(definition["apiKey"], definition["apiKey"]) == cls.VERSIONS
        names = [snake(entry["name"]) for entry in definition["fields"]]
        assert [field.name for field in cls.__fields__] == names
        return
    common = {entry["name"]: entry for entry in definition.get("commonStructs", [])}
    assert VersionRange.parse(definition["validVersions"]) == cls.VERSIONS
    assert VersionRange.parse(definition["flexibleVersions"]) == cls.FLEXIBLE
    found = compare(definition["fields"], cls, common, cls.VERSIONS, cls.__name__)
    assert [problem for problem in found if not problem.endswith("expected []TopicPartition")] == []


def check(cls: type[Message], definition: dict[str, Any]) -> None:
    name = cls.__name__
    valid = VersionRange.parse(definition["validVersions"])
    if name in NEWER:
        assert valid.first == cls.VERSIONS.first
        assert valid.last < cls.VERSIONS.last, "no longer older: remove the exception"
    else:
        assert valid == cls.VERSIONS
    assert VersionRange.parse(definition["flexibleVersions"]) == cls.FLEXIBLE
    assert definition.get("apiKey", -1) == cls.API_KEY
    common = {entry["name"]: entry for entry in definition.get("commonStructs", [])}
    assert compare(definition["fields"], cls, common, valid, name) == []


def test_the_comparison_reports_a_wrong_field() -> None:
    """The guard itself: any of the compared properties, changed, must be reported."""
    definition = load("MetadataResponse")
    valid = VersionRange.parse(definition["validVersions"])
    for change in (
        {"type": "int64"},
        {"versions": "4+"},
        {"nullableVersions": "3+"},
        {"default": "7"},
        {"tag": 0, "taggedVersions": "9+"},
        {"name": "Other"},
    ):
        entries = [{**definition["fields"][0], **change}, *definition["fields"][1:]]
        assert compare(entries, response_class(ApiKey.METADATA), {}, valid, "MetadataResponse"), change


def test_flexible_threshold_of_headers_equals_tables() -> None:
    for key, cls, version in every_message():
        assert is_flexible(key, version) == (version in cls.FLEXIBLE), (cls, version)
    never = {ApiKey.SASL_HANDSHAKE, ApiKey.OFFSET_DELETE}
    assert set(FLEXIBLE_FROM) == set(ApiKey) - never


def test_tags_are_distinct_and_nullable_fields_are_typed() -> None:
    seen: set[type] = set()

    def walk(cls: type[Struct]) -> None:
        if cls in seen:
            return
        seen.add(cls)
        tags = [f.tag for f in cls.__fields__ if f.tag is not None]
        assert len(tags) == len(set(tags)), cls
        for field in cls.__fields__:
            if not isinstance(field.type, WireType):
                walk(field.type)

    for key in ApiKey:
        walk(request_class(key))
        walk(response_class(key))
    assert len(seen) > 200
