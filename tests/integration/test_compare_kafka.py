"""scripts/compare_kafka.py against the jars in .tools."""

from __future__ import annotations

import copy
import subprocess
import sys

import java_tools
import pytest
from conftest import require

from scripts import compare_kafka
from scripts.compare_kafka import Tables, differences, kbroker_tables, release_tables

pytestmark = pytest.mark.java
SECTIONS = {"api", "error", "topic config", "group config", "broker config", "feature", "record"}


@pytest.fixture(scope="module")
def kafka() -> Tables:
    """The configs in the jars in .tools."""
    require(not java_tools.missing(), java_tools.missing())
    return release_tables()


@pytest.fixture(scope="module")
def ours() -> Tables:
    return kbroker_tables()


def test_every_section_has_rows_on_both_sides(kafka: Tables, ours: Tables) -> None:
    assert kafka.keys() == SECTIONS
    assert ours.keys() == SECTIONS
    assert all(kafka[section].keys() & ours[section].keys() for section in SECTIONS)


@pytest.mark.parametrize(
    "title",
    [
        "api Metadata", "api CreateTopics", "api DescribeLogDirs", "api ShareFetch", "error NOT_COORDINATOR",
        "topic config compression.type", "group config share.isolation.level", "broker config num.partitions",
        "feature group.version", "record group OffsetCommitValue", "record share ShareSnapshotValue",
    ],
)  # fmt: skip
def test_what_is_kafkas_compares_equal(kafka: Tables, ours: Tables, title: str) -> None:
    assert [line for line in differences(ours, kafka) if line.startswith(f"{title}:")] == []


def test_each_kind_of_change_is_named(kafka: Tables, ours: Tables) -> None:
    """A release that differs from the one in .tools in one thing of each kind."""
    other = copy.deepcopy(kafka)
    other["api"]["Metadata"]["versions"] = [0, 99]
    other["api"]["Metadata"]["request v13"]["topics[].name"] = "int8"
    other["api"]["NewApi"] = {"key": 999, "versions": [0, 0]}
    other["error"]["NOT_COORDINATOR"]["code"] = 999
    other["topic config"]["cleanup.policy"]["default"] = "compact"
    other["group config"]["share.isolation.level"]["takes"] = ["upgrade"]
    other["broker config"]["num.partitions"]["type"] = "LONG"
    other["feature"]["group.version"]["levels"] = [0, 9]
    del other["record"]["group OffsetCommitValue"]
    found = set(differences(ours, other)) - set(differences(ours, kafka))
    assert found == {
        "api Metadata: versions: kbroker [0, 13], Kafka [0, 99]",
        "api Metadata: request v13: topics[].name: kbroker string or null, Kafka int8",
        "api NewApi: not in kbroker: key 999, versions [0, 0]",
        "error NOT_COORDINATOR: code: kbroker 16, Kafka 999",
        "topic config cleanup.policy: default: kbroker delete, Kafka compact",
        "group config share.isolation.level: only Kafka takes ['upgrade']; "
        "Kafka's rule: [read_committed, read_uncommitted]",
        "broker config num.partitions: type: kbroker INT, Kafka LONG",
        "feature group.version: levels: kbroker [0, 1], Kafka [0, 9]",
        "record group OffsetCommitValue: only in kbroker",
    }


def test_the_script_prints_them(kafka: Tables, ours: Tables) -> None:
    done = subprocess.run([sys.executable, compare_kafka.__file__], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == list(differences(ours, kafka))
    assert done.returncode == (1 if done.stdout.strip() else 0)
