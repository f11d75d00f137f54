"""Config values spelled in every way, accepted or refused as by Apache Kafka 4.4 (config_spellings.json)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import config_spellings
import pytest
from broker_process import BrokerProcess
from config_spellings import (
    ANSWERS,
    BROKER,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    NODE,
    SET,
    TOPIC,
    Asker,
    Row,
    asked,
    row,
)
from conftest import ON_A_FOLDER

pytestmark = ON_A_FOLDER
KINDS = {"topic": TOPIC, "broker": BROKER, "client-metrics": CLIENT_METRICS, "group": GROUP}
# Kafka accepts values of these that no topic can have, or an invalid rate, and then serves topics no longer.
STRICTER = {
    "log.cleaner.io.max.bytes.per.second",
    "log.flush.interval.ms",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
}
# Kafka's brokers know these without their type, and describe what was typed.
AS_TYPED = {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}


@pytest.fixture(scope="module")
def kafka() -> dict[str, dict[str, Row]]:
    """What Kafka answered, by kind and config."""
    found: dict[str, dict[str, Row]] = json.loads(ANSWERS.read_text())
    return found


@pytest.fixture
def asker(broker: BrokerProcess) -> Iterator[Asker]:
    asker = Asker(broker.bootstrap, settles=False)
    yield asker
    asker.close()


def flat(answers: Row) -> dict[str, tuple[str, str]]:
    """(taken or refused, value or code) by spelling."""
    return {
        text: (outcome, value)
        for outcome, by_value in answers.items()
        for value, texts in by_value.items()
        for text in texts
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_is_accepted_or_refused_as_in_kafka(
    kafka: dict[str, dict[str, Row]], asker: Asker, kind: str
) -> None:
    expected = kafka[str(KINDS[kind])]
    assert [definition.name for definition in asked(KINDS[kind])] == list(expected)
    different = {}
    for definition in asked(KINDS[kind]):
        theirs = flat(expected[definition.name])
        ours = flat(row(KINDS[kind], asker.answers(KINDS[kind], definition.name, list(theirs))))
        assert ours.keys() == theirs.keys() != set()
        for text in theirs:
            stricter = definition.name in STRICTER and kind == "broker" and ours[text] == ("refused", "42")
            as_typed = definition.name in AS_TYPED and theirs[text] == ("taken", text) and ours[text][0] == "taken"
            if ours[text] != theirs[text] and not stricter and not as_typed:
                different[definition.name, text] = (ours[text], theirs[text])
    assert different == {}


def test_values_survive_a_kill(broker: BrokerProcess) -> None:
    """They are stored as given, and described in their normal form."""
    changes = [
        (TOPIC, "kept", "retention.ms", " +0777", "777", "777"),
        (TOPIC, "kept", "cleanup.policy", " compact , delete,compact", "compact,delete", "compact,delete"),
        (GROUP, "kept", "share.isolation.level", " read_committed\t", "read_committed", "read_committed"),
        (CLIENT_METRICS, "kept", "metrics", " a. , b.,a.", "a.,b.", "a.,b."),
        (BROKER, NODE, "log.cleaner.min.cleanable.ratio", "5e-2f", "0.05", "5e-2f"),
        (BROKER, NODE, "unclean.leader.election.enable", "TRUE", "true", "TRUE"),
    ]
    asker = Asker(broker.bootstrap, settles=False)
    try:
        assert asker.create([("kept", {})], validate_only=False)[0][0] == 0
        for kind, resource, name, typed, _, _ in changes:
            assert asker.alter(kind, [(resource, SET, name, typed)]) == [0]
        for _ in range(2):
            for kind, resource, name, _, value, synonym in changes:
                source = config_spellings.SOURCES[kind]
                assert asker.describe(kind, [resource], name) == [[source, value, synonym]]
            # A topic follows its broker's value, in the normal form too.
            assert asker.describe(TOPIC, ["kept"], "min.cleanable.dirty.ratio")[0][:2] == [2, "0.05"]
            asker.close()
            broker.kill()
            broker.start()
            asker = Asker(broker.bootstrap, settles=False)
        for kind, resource, name, _, _, _ in changes:
            assert asker.alter(kind, [(resource, DELETE, name, None)]) == [0]
    finally:
        asker.close()
