"""Spellings of config values, and what a broker answers to each: code, value, source.

Run as a program, it asks a real Apache Kafka from the jars in .tools and writes its answers to config_spellings.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kafka_server import KafkaServer
from until import until

from kbroker.client.connection import ClientConnection
from kbroker.cluster.broker_config_table import BROKER_CONFIGS, DYNAMIC
from kbroker.cluster.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.cluster.group_configs import GROUP_CONFIGS
from kbroker.protocol.apis.configs.k32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kbroker.protocol.apis.configs.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kbroker.protocol.apis.topics.k19_create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.topic_config import TOPIC_CONFIGS, ConfigDef, ConfigType

ANSWERS = Path(__file__).with_name("config_spellings.json")
VERSIONS = {19: 7, 32: 4, 44: 1}
TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
SET, DELETE = 0, 1
NODE = "1"
TIMEOUT_SECONDS = 60.0
SENTINEL = "sentinel"  # of client metrics: no other setting affects its configs
# Configs that would throttle the test's own requests, or resize thread pools at each of them.
# A Kafka with eligible leader replicas refuses every value of the one; it looks hosts of the other up.
LEFT_OUT = {"min.insync.replicas", "max.connections.per.ip.overrides"}
ONLY_VALIDATED = {"max.connections", "max.connections.per.ip", "max.connection.creation.rate"}

# `{n}` is a number that the config takes.
NUMBERS = (
    "{n}", " {n}", "{n} ", "\t{n}\n", "+{n}", "-{n}", "0{n}", "+000{n}", "0" * 30 + "{n}", "{n}.0", "{n}.", "{n}e0",
    "{n}E+0", "{n}f", "{n}D", "{n}L", "{n}_0", "{n},", "0x{n}", "0x1p3", "\u00a0{n}", "\u2003{n}", "{n}\x00",
    "\u0667", "\uff17", "- 1", "-1", "-2", "-0", "0", "+", "1 0", "٧.٥", "32768", "2147483648", "9223372036854775808",
    "-9223372036854775809", "99999999999999999999999",
)  # fmt: skip
DOUBLES = (
    "0.5", "0.5f", "0.50", ".5", "5e-1", "1e-1", "1E-3", "1e-4", "0.0009", "1.0", "1", "1e0", "1e7", "12345678.9",
    "0.1234567890123456789", "1e400", "1e-400", "-0.0", "NaN", "nan", "Infinity", "+Infinity", "-Infinity", "inf",
    "0x1p-1", "0x1.8p-1f", "0.5 f", "1_0.0", "1e", "e1",
)  # fmt: skip
BOOLEANS = (
    "true",
    "TRUE",
    "True",
    " true ",
    "false",
    "FALSE",
    "fALSE",
    "yes",
    "1",
    "on",
    "t",
    "tr ue",
    "trueſ",
    "falſe",
)
LISTS = (
    "delete", "compact", "delete,compact", "compact,delete", " delete , compact ", "delete\t,\ncompact",
    "compact,compact", "compact, delete,compact", "delete,", ",delete", ",", " , ", "DELETE", "delete compact",
    "[delete]", "delete;compact", "0:1", "0:1,1:2", " 0:1 , 1:2 ", "0:1,0:1", "00:01", "+0:1", "*", "*,*", "*,0:1",
    "0:1,*", "none", "0", "0:", ":1", "0:-1", "0:1:2", "a:b", "0 : 1", "\u06670:1", "client_id=a",
    " client_id = a , client_id=b ", "client_id=a,client_id=a", "client_id=(", "no=a", "a.b.,c.d.", "a,,b",
)  # fmt: skip
WORDS = (
    "zstd", "ZSTD", " zstd ", "gzip", "snappy", "lz4", "none", "uncompressed", "producer", "producer ", "CreateTime",
    "createtime", " CreateTime", "LogAppendTime", "LOGAPPENDTIME", "latest", "LATEST", " latest ", "earliest",
    "by_duration:PT1H", "by_duration:pt1h", "by_duration:P1D", "by_duration:P1Y", "by_duration:-PT1H",
    "by_duration:PT0S", "BY_DURATION:PT1H", "by_duration: PT1H", "by_duration:PT1.5S", "by_duration:PT1.5M",
    "by_duration:P1DT", "by_duration:P+1D", "by_duration:P-1DT25H", "by_duration:", "none:", "read_committed",
    "READ_COMMITTED", "read_uncommitted", " read_committed", "127.0.0.1:7", "127.0.0.1:x", "localhost:1,",
)  # fmt: skip
BLANKS = ("", " ", "\t")
PRINTED_BY_THE_JVM = "99999999999999999999999"  # as a double: Java 17 prints other digits than newer releases
OF_TYPE = {
    ConfigType.BOOLEAN: BOOLEANS + BLANKS + ("{n}",),
    ConfigType.INT: NUMBERS + BLANKS + ("true", "1e3", "NaN"),
    ConfigType.LONG: NUMBERS + BLANKS + ("true", "1e3", "NaN"),
    ConfigType.SHORT: NUMBERS + BLANKS,
    ConfigType.DOUBLE: DOUBLES + NUMBERS + BLANKS + ("true",),
    ConfigType.LIST: LISTS + BLANKS,
    ConfigType.STRING: WORDS + BLANKS + ("delete", "{n}"),
}
TABLES = {TOPIC: TOPIC_CONFIGS, BROKER: BROKER_CONFIGS, CLIENT_METRICS: CLIENT_METRICS_CONFIGS, GROUP: GROUP_CONFIGS}
SOURCES = {TOPIC: 1, BROKER: 2, CLIENT_METRICS: 7, GROUP: 8}
Row = dict[str, dict[str, list[str]]]
"""Of one config: "taken" and "refused", then the value as described or the code, then the spellings."""


def spellings(definition: ConfigDef) -> list[str]:
    """The values to set the config to."""
    default = definition.default or ""
    number = default if default.isdecimal() and 0 < int(default) < 2**31 else "7"
    texts = dict.fromkeys(text.replace("{n}", number) for text in OF_TYPE[definition.type])
    if definition.type is ConfigType.DOUBLE:
        del texts[PRINTED_BY_THE_JVM]
    return list(texts)


def asked(kind: int) -> list[ConfigDef]:
    """Kafka's configs of a kind that can be altered."""
    return [
        definition
        for definition in TABLES[kind].values()
        if not definition.hidden
        and not definition.name.startswith("kbroker.")
        and (kind != BROKER or (definition.name in DYNAMIC and definition.name not in LEFT_OUT))
    ]


class Asker:
    """Asks one broker, which may have any topics and settings."""

    def __init__(self, bootstrap: str, settles: bool = True) -> None:
        self._connection = ClientConnection.to_any(bootstrap, TIMEOUT_SECONDS, "spellings", VERSIONS)
        self._settles = settles  # whether an altered value may be visible only after the answer
        self._serial = 0
        self._topics: list[str] = []

    def close(self) -> None:
        self._connection.close()

    def create(
        self, topics: Iterable[tuple[str, dict[str, str]]], validate_only: bool
    ) -> list[tuple[int, dict[str, tuple[int, str | None]]]]:
        """For each topic the error code, and (source, value) by config."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=1,
                    replication_factor=1,
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
                )
                for name, configs in topics
            ],
            validate_only=validate_only,
        )
        answer = {topic.name: topic for topic in self._connection.call(request).topics}
        return [
            (topic.error_code, {each.name: (each.config_source, each.value) for each in topic.configs or ()})
            for topic in (answer[each.name] for each in request.topics)
        ]

    def alter(
        self, kind: int, changes: Iterable[tuple[str, int, str, str | None]], validate_only: bool = False
    ) -> list[int]:
        """The code of each (resource, operation, config, value)."""
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=kind,
                    resource_name=resource,
                    configs=[AlterableConfig(name=name, config_operation=operation, value=value)],
                )
                for resource, operation, name, value in changes
            ],
            validate_only=validate_only,
        )
        answer = {each.resource_name: each.error_code for each in self._connection.call(request).responses}
        return [answer[each.resource_name] for each in request.resources]

    def describe(self, kind: int, resources: Iterable[str], name: str) -> list[list[object]]:
        """Of each resource's config: source, value, value of the nearest synonym; or an error code alone."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=kind, resource_name=resource, configuration_keys=[name])
                for resource in resources
            ],
            include_synonyms=True,
        )
        return [
            [result.error_code]
            if result.error_code
            else next(
                [config.config_source, config.value, config.synonyms[0].value if config.synonyms else None]
                for config in result.configs
            )
            for result in self._connection.call(request).results
        ]

    def settle(self) -> None:
        """Returns when what was altered is seen by what describes: Kafka's brokers follow the controller's log.

        The second change is made when the first is seen, and seen when the first has reached every part of the broker.
        """
        for _ in range(2 if self._settles else 0):
            self._serial += 1
            value = str(1000 + self._serial)
            assert self.alter(CLIENT_METRICS, [(SENTINEL, SET, "interval.ms", value)]) == [0]
            until(lambda value=value: self._sentinel() == value, "sentinel described")

    def _sentinel(self) -> object:
        (answer,) = self.describe(CLIENT_METRICS, [SENTINEL], "interval.ms")
        return answer[1]

    # -- requests ------------------------------------------------------------------------------------------------

    def answers(self, kind: int, name: str, texts: list[str]) -> dict[str, list[object]]:
        """By spelling: [code], or [code, described], and in front of them what CreateTopics says of a topic config."""
        if kind == TOPIC:
            self._need_topics(len(texts))
            created = self.create([(f"{name}-{place}", {name: text}) for place, text in enumerate(texts)], True)
            altered = self._alter_each(kind, self._topics[: len(texts)], name, texts)
            return {
                text: [code, *configs.get(name, ()), *answer]
                for text, (code, configs), answer in zip(texts, created, altered, strict=True)
            }
        if kind == BROKER:
            return {text: self._alter_broker(name, text) for text in texts}
        resources = [f"resource-{place}" for place in range(len(texts))]
        return dict(zip(texts, self._alter_each(kind, resources, name, texts), strict=True))

    def _need_topics(self, count: int) -> None:
        wanted = [f"spelled-{place}" for place in range(len(self._topics), count)]
        if wanted:
            self.create([(name, {}) for name in wanted], False)
            self._topics += wanted

    def _alter_each(self, kind: int, resources: list[str], name: str, texts: list[str]) -> list[list[object]]:
        pairs = list(zip(resources, texts, strict=True))
        codes = self.alter(kind, [(resource, SET, name, text) for resource, text in pairs])
        self.settle()
        described = self.describe(kind, resources, name)
        self.alter(kind, [(resource, DELETE, name, None) for resource in resources])
        self.settle()
        return [[code, *config] if code == 0 else [code] for code, config in zip(codes, described, strict=True)]

    def _alter_broker(self, name: str, text: str) -> list[object]:
        (code,) = self.alter(BROKER, [(NODE, SET, name, text)], validate_only=name in ONLY_VALIDATED)
        if code or name in ONLY_VALIDATED:
            return [code]
        self.settle()
        (described,) = self.describe(BROKER, [NODE], name)
        assert self.alter(BROKER, [(NODE, DELETE, name, None)]) == [0]
        return [code, *described]


def row(kind: int, answers: dict[str, list[object]]) -> Row:
    """The answers in short. ValueError for an answer of another form.

    CreateTopics answers what was typed, DescribeConfigs the normal form. The nearest synonym has that too, except for
    brokers: what was typed.
    """
    found: Row = {"taken": {}, "refused": {}}
    for text, answer in answers.items():
        code, value, source = answer[-1], answer[-2] if len(answer) > 1 else None, SOURCES[kind]
        taken: list[object] = [0, source, value, text if kind == BROKER else value]
        refused: list[object] = [code]
        if kind == TOPIC:
            taken, refused = [0, source, text, *taken], [code, code]
        if answer == taken:
            found["taken"].setdefault(str(value), []).append(text)
        elif answer == refused:
            found["refused"].setdefault(str(code), []).append(text)
        else:
            raise ValueError(f"{text!r}: {answer}")
    return found


def ask_all(bootstrap: str, kinds: Iterable[int] = TABLES) -> Iterator[tuple[int, ConfigDef, dict[str, list[object]]]]:
    """(kind, config, answers)."""
    asker = Asker(bootstrap)
    try:
        for kind in kinds:
            for definition in asked(kind):
                yield kind, definition, asker.answers(kind, definition.name, spellings(definition))
    finally:
        asker.close()


def main() -> None:
    found: dict[str, dict[str, Row]] = {str(kind): {} for kind in TABLES}
    with tempfile.TemporaryDirectory() as folder:
        server = KafkaServer(Path(folder) / "kafka").start()
        try:
            for kind, definition, answers in ask_all(server.bootstrap):
                found[str(kind)][definition.name] = row(kind, answers)
                print(kind, definition.name, file=sys.stderr)
        finally:
            server.stop()
    lines = ",\n".join(
        f"{json.dumps(kind)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in rows.items())
        + "}"
        for kind, rows in found.items()
    )
    ANSWERS.write_text("{" + lines + "}\n")


if __name__ == "__main__":
    main()
