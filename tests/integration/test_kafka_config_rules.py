"""Names, types, defaults and bounds of every config, held against the rules in Apache Kafka's jars."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

import java_tools
import pytest
from conftest import require
from java_tools import JVM

from kbroker.errors import KafkaError
from kbroker.metadata.broker_config_table import BROKER_CONFIGS, DYNAMIC
from kbroker.topic_config import TOPIC_CONFIGS, ConfigDef, ConfigType

pytestmark = pytest.mark.java
TABLES = {"topic": TOPIC_CONFIGS, "broker": BROKER_CONFIGS}
NUMBERS = (
    -(2**63) - 1, -(2**63), -(2**31) - 1, -(2**31), -131073, -131072, -3, -2, -1, 0, 1, 2, 3, 4, 9, 10, 13, 14, 17, 18,
    22, 23, 1023, 1024, 2000, 10_000, 524_287, 524_288, 2**20 - 1, 2**20, 2**31 - 1, 2**31, 2**63 - 1, 2**63,
)  # fmt: skip
TEXTS = ("", " ", "true", "FALSE", "yes", "1.5", "0.5", "1e3", "nan", "-0.1", "1.1", " 7 ", "+7", "0x10")
WORDS = (
    "delete", "compact", "compact,delete", "compact, compact", "delete,", "zstd", "gzip", "uncompressed", "none", "lzo",
    "producer", "CreateTime", "createtime", "LogAppendTime", "0:1", "0:1,1:2", "*", "none,0:1", "0", "0:a", "uniform",
    "bidirectional", "BIDIRECTIONAL", "upgrade",
)  # fmt: skip
"""What each config is asked about."""
PROBES = (*map(str, NUMBERS), *TEXTS, *WORDS)
NO_DEFAULT = "<none>"
OUR_DEFAULTS = {
    "log.cleaner.io.max.bytes.per.second": "50000000",  # compaction reads and writes the object store
    "log.dir": NO_DEFAULT,
    "max.connections": "20000",
    "node.id": "-1",
    "process.roles": "broker,controller",
}
# Values that no topic can have, so that they are no defaults for topics; and a rate below nothing.
STRICTER = {
    "log.cleaner.io.max.bytes.per.second",
    "log.flush.interval.ms",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
}


@dataclass(frozen=True)
class Rules:
    """What Kafka says: (type, default) by kind and name, and whether it takes a probe."""

    known: dict[tuple[str, str], tuple[str, str]]
    taken: dict[tuple[str, str, str], bool]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    """The rules of the jars in .tools."""
    require(not java_tools.missing(), java_tools.missing())
    questions = [(kind, name, text) for kind, table in TABLES.items() for name in table for text in PROBES]
    command = ["java", *JVM, "-cp", java_tools.compiled_apps(tmp_path_factory), "ConfigRules"]
    known = {
        tuple(fields[:2]): (fields[2], fields[3])
        for line in _run(command, []).partition("end\n")[0].splitlines()
        if len(fields := line.split("\t")) == 4
    }
    questions = [question for question in questions if question[:2] in known]
    answers = _run(command, questions).partition("end\n")[2].split()
    return Rules(known, {question: answer == "good" for question, answer in zip(questions, answers, strict=True)})


def _run(command: list[str], questions: list[tuple[str, str, str]]) -> str:
    text = "".join("\t".join(question) + "\n" for question in questions)
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=90, check=True).stdout


def takes(definition: ConfigDef, text: str) -> bool:
    """Whether kbroker takes a value."""
    try:
        definition.parse(text)
    except KafkaError:
        return False
    return True


@pytest.mark.parametrize("kind", TABLES)
def test_types_and_defaults_are_kafkas(kafka: Rules, kind: str) -> None:
    different = {}
    for name, definition in TABLES[kind].items():
        if (kind, name) in kafka.known:
            wanted = kafka.known[kind, name]
            ours = (definition.type.name, NO_DEFAULT if definition.default is None else definition.default)
            if ours != wanted:
                different[name] = ours
    expected = {name: (BROKER_CONFIGS[name].type.name, default) for name, default in OUR_DEFAULTS.items()}
    assert different == (expected if kind == "broker" else {})


def test_every_topic_config_of_kafka_is_known(kafka: Rules) -> None:
    wanted = {name for kind, name in kafka.known if kind == "topic"}
    assert wanted - TOPIC_CONFIGS.keys() == set()
    extra = {name for name, definition in TOPIC_CONFIGS.items() if not definition.hidden} - wanted
    assert {name for name in extra if not name.startswith("kbroker.")} == set()


@pytest.mark.parametrize("kind", TABLES)
def test_the_same_values_are_taken(kafka: Rules, kind: str) -> None:
    """Of those that can be altered."""
    different = [
        (name, text, "Kafka takes it" if taken else "Kafka refuses it")
        for (asked, name, text), taken in kafka.taken.items()
        if asked == kind and (kind == "topic" or name in DYNAMIC) and takes(TABLES[kind][name], text) != taken
    ]
    assert [each for each in different if each[0] not in STRICTER] == []
    assert {(name, result) for name, _, result in different} == {
        (name, "Kafka takes it") for name in STRICTER if kind == "broker"
    }


def test_codes_of_types_cover_kafkas(kafka: Rules) -> None:
    assert {kind for kind, _ in kafka.known.values()} <= set(ConfigType.__members__)
