"""Topics: what may be created, changed and deleted, and in which order listeners hear of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kbroker.clock import ManualClock
from kbroker.cluster import topic_rules
from kbroker.cluster.config_changes import ConfigChange, ConfigOperation, Operation, ResourceType
from kbroker.cluster.config_defs import BrokerConfigs
from kbroker.cluster.image import TopicImage
from kbroker.cluster.metadata_log import MetadataLog
from kbroker.cluster.replica import MetadataReplica
from kbroker.cluster.sqlite_store import SqliteStore
from kbroker.cluster.topic_rules import NewTopic
from kbroker.cluster.topics import Topics
from kbroker.errors import ErrorCode, KafkaError, StartError
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.topic_config import TopicConfig
from tests.unit.cluster.metadata_fakes import Bucket, BucketLog


class Recorder:
    """A listener that writes down what it is told, and whether the image named the topic at that moment."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.events: list[tuple[Any, ...]] = []

    def _shown(self, topic: TopicImage) -> bool:
        return topic.topic_id in self.topics.image.by_id

    def on_created(self, topic: TopicImage, config: TopicConfig) -> None:
        self.events.append(("created", topic.name, topic.partitions, config.retention_ms, self._shown(topic)))

    def on_deleted(self, topic: TopicImage) -> None:
        self.events.append(("deleted", topic.name, self._shown(topic)))

    def on_partitions_added(self, topic: TopicImage, config: TopicConfig, previous: int) -> None:
        self.events.append(("partitions", topic.name, previous, topic.partitions))

    def on_config(self, topic: TopicImage, config: TopicConfig) -> None:
        self.events.append(("config", topic.name, config.retention_ms))


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def start(bucket: Bucket, clock: ManualClock, **settings: Any) -> Topics:
    """A broker with a new disk: everything comes from the bucket."""
    configs = {name.replace("__", "."): value for name, value in settings.items()}
    replica = MetadataReplica(SqliteStore(":memory:"), "cluster")
    topics = Topics(MetadataLog(BucketLog(bucket), replica, clock), "cluster", BrokerConfigs(configs))
    topics.load()
    return topics


@pytest.fixture
def topics(bucket: Bucket, clock: ManualClock) -> Topics:
    return start(bucket, clock)


def create(topics: Topics, name: str, partitions: int = 1, **keywords: Any) -> TopicImage:
    (result,) = topics.create_topics([NewTopic(name, partitions, **keywords)])
    assert isinstance(result, TopicImage), result
    return result


def refused(topics: Topics, new: NewTopic) -> ErrorCode:
    (result,) = topics.create_topics([new])
    assert isinstance(result, KafkaError)
    assert new.name == "there" or new.name not in topics.image.by_name
    return result.code


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("é"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("__consumer_offsets"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (NewTopic("a.b"), ErrorCode.INVALID_TOPIC_EXCEPTION),  # collides with a_b
        (NewTopic("t", 0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", -2), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", 100_001), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", configs={"nope": "1"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", configs={"retention.ms": "x"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", 1, -1, [(0, [1])]), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", -1, 1, [(0, [1])]), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", -1, -1, [(1, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, [(0, [1]), (0, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, [(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, [(0, [1, 1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_illegal_topics_are_refused(topics: Topics, bucket: Bucket, new: NewTopic, code: ErrorCode) -> None:
    create(topics, "there")
    create(topics, "a_b")
    records = len(bucket.records)
    assert refused(topics, new) == code
    assert len(bucket.records) == records


@pytest.mark.parametrize("name", ["a", "x" * 249, "A-Z_0.9", "...", "__mine"])
def test_legal_names_are_accepted(topics: Topics, name: str) -> None:
    assert create(topics, name).name == name


@pytest.mark.parametrize("replication_factor", [-1, 1, 3, 32_767])
def test_any_replication_factor_is_accepted(topics: Topics, replication_factor: int) -> None:
    create(topics, "t", replication_factor=replication_factor)


def test_assignments_give_the_partition_count(topics: Topics) -> None:
    assert create(topics, "t", -1, assignments=[(1, [2, 3]), (0, [1, 2])]).partitions == 2


def test_the_default_partition_count_is_the_brokers(bucket: Bucket, clock: ManualClock) -> None:
    assert create(start(bucket, clock, num__partitions=7), "t", -1).partitions == 7


def test_one_request_is_one_record_and_each_topic_has_its_own_error(topics: Topics, bucket: Bucket) -> None:
    results = topics.create_topics([NewTopic("a"), NewTopic("b", 0), NewTopic("c.d"), NewTopic("c_d")])
    assert [result.code if isinstance(result, KafkaError) else result.name for result in results] == [
        "a",
        ErrorCode.INVALID_PARTITIONS,
        "c.d",
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert len(bucket.records) == 1


def test_validate_only_creates_nothing(topics: Topics, bucket: Bucket) -> None:
    (result,) = topics.create_topics([NewTopic("a", 3)], validate_only=True)
    assert isinstance(result, TopicImage)
    assert not topics.image.by_name
    assert not bucket.records


def test_the_cluster_has_a_bound_of_partitions(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_rules, "PARTITIONS_MAX", 10)
    create(topics, "a", 6)
    results = topics.create_topics([NewTopic("b", 3), NewTopic("c", 2)])
    assert isinstance(results[0], TopicImage)
    assert isinstance(results[1], KafkaError)
    assert results[1].code == ErrorCode.POLICY_VIOLATION
    with pytest.raises(KafkaError) as raised:
        topics.create_partitions("a", 8)
    assert raised.value.code == ErrorCode.POLICY_VIOLATION


def test_listeners_hear_of_new_topics_before_and_of_deleted_ones_after_the_image(topics: Topics) -> None:
    create(topics, "old")
    recorder = Recorder(topics)
    topics.add_listener(recorder)
    new = create(topics, "new", 2, configs={"retention.ms": "5"})
    topics.create_partitions("new", 4)
    change = ConfigChange(ResourceType.TOPIC, "new", [ConfigOperation("retention.ms", Operation.SET, "6")])
    assert topics.alter_configs([change]) == [None]
    assert topics.delete_topics([new.topic_id]) == [None]
    assert recorder.events == [
        ("created", "old", 1, 604_800_000, True),
        ("created", "new", 2, 5, False),
        ("partitions", "new", 2, 4),
        ("config", "new", 6),
        ("deleted", "new", False),
    ]


def test_a_topic_created_again_has_another_id(topics: Topics) -> None:
    first = create(topics, "t")
    topics.delete_topics([first.topic_id])
    second = create(topics, "t")
    assert first.topic_id != second.topic_id
    (error,) = topics.delete_topics([first.topic_id])
    assert error is not None
    assert error.code == ErrorCode.UNKNOWN_TOPIC_ID
    assert "t" in topics.image.by_name


def test_a_deleted_topic_stays_deleted_after_a_restart(topics: Topics, bucket: Bucket, clock: ManualClock) -> None:
    topics.delete_topics([create(topics, "gone").topic_id])
    kept = create(topics, "kept")
    assert start(bucket, clock).image.by_name == {"kept": kept}


@pytest.mark.parametrize("count", [0, 1, 2, 3, -1])
def test_partitions_only_grow(topics: Topics, count: int) -> None:
    create(topics, "t", 3)
    with pytest.raises(KafkaError) as raised:
        topics.create_partitions("t", count)
    assert raised.value.code == ErrorCode.INVALID_PARTITIONS


def test_assignments_of_new_partitions_are_one_each(topics: Topics) -> None:
    create(topics, "t", 1)
    with pytest.raises(KafkaError) as raised:
        topics.create_partitions("t", 3, [(1, [1])])
    assert raised.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    topics.create_partitions("t", 3, [(1, [1]), (2, [9])], validate_only=True)
    assert topics.image.by_name["t"].partitions == 1
    topics.create_partitions("t", 3, [(1, [1]), (2, [9])])
    assert topics.image.by_name["t"].partitions == 3


def test_internal_topics_are_the_brokers_own(topics: Topics) -> None:
    internal = topics.ensure_internal_topic()
    assert internal is topics.ensure_internal_topic()
    assert (internal.name, internal.partitions, internal.internal) == ("__consumer_offsets", 50, True)
    assert topics.config_of(internal).cleanup_policy == ("compact",)
    (error,) = topics.delete_topics([internal.topic_id])
    assert error is not None
    assert error.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(KafkaError):
        topics.create_partitions("__consumer_offsets", 60)


def test_auto_creation_creates_only_missing_topics(topics: Topics, bucket: Bucket) -> None:
    there = create(topics, "there", 5)
    found = topics.auto_create(["there", "new", "bad name", "__consumer_offsets"])
    assert found["there"] == there
    assert found["new"] is topics.image.by_name["new"]
    assert isinstance(found["bad name"], KafkaError)
    assert found["__consumer_offsets"].partitions == 50  # type: ignore[union-attr]
    records = len(bucket.records)
    topics.auto_create(["there", "new"])
    assert len(bucket.records) == records


def test_while_the_bucket_is_unreachable_changes_fail_as_retriable_and_reads_go_on(
    topics: Topics, bucket: Bucket, clock: ManualClock
) -> None:
    there = create(topics, "there")
    recorder = Recorder(topics)
    topics.add_listener(recorder)
    bucket.faults = ["away"]
    assert refused(topics, NewTopic("t")) == ErrorCode.NOT_CONTROLLER
    assert refused(topics, NewTopic("u")) == ErrorCode.NOT_CONTROLLER
    (error,) = topics.delete_topics([there.topic_id])
    assert error is not None
    assert error.code == ErrorCode.NOT_CONTROLLER
    with pytest.raises(KafkaError):
        topics.claim_producer_ids()
    assert topics.image.by_name == {"there": there}
    assert [event[1] for event in recorder.events] == ["there"]
    clock.advance(1)
    create(topics, "u")
    # "t" was in doubt: it was published before "u".
    assert [event[1] for event in recorder.events] == ["there", "t", "u"]


def test_a_creation_whose_answer_was_lost_is_found_by_the_retry(
    topics: Topics, bucket: Bucket, clock: ManualClock
) -> None:
    bucket.faults = ["lost answer"]
    assert refused(topics, NewTopic("t")) == ErrorCode.NOT_CONTROLLER
    clock.advance(1)
    (again,) = topics.create_topics([NewTopic("t")])
    assert isinstance(again, KafkaError)
    assert again.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(bucket.records) == 1


def test_configs_that_this_kbroker_refuses_stop_the_start(bucket: Bucket, clock: ManualClock, topics: Topics) -> None:
    create(topics, "t", configs={"retention.ms": "5"})
    kind, text = bucket.records[0]
    bucket.records[0] = (kind, text.replace("retention.ms", "retention.xs"))
    with pytest.raises(StartError, match="topic t has configs"):
        start(bucket, clock)


def test_changes_from_many_threads_are_made_one_at_a_time(topics: Topics, bucket: Bucket) -> None:
    threads = [threading.Thread(target=topics.auto_create, args=([f"t{i % 5}"],)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(topics.image.by_name) == {f"t{i}" for i in range(5)}
    assert len(bucket.records) == 5
    topics.close()


def test_a_broker_setting_that_topics_refuse_stops_the_start(bucket: Bucket, clock: ManualClock) -> None:
    with pytest.raises(StartError, match=r"cleanup\.policy"):
        start(bucket, clock, log__cleanup__policy="shred")


def test_adopted_topics_keep_their_ids(topics: Topics, bucket: Bucket, clock: ManualClock) -> None:
    create(topics, "here")
    configs = {"retention.ms": "5"}
    adopted = [TopicImage("a", b"a" * 16, 3, configs), TopicImage("__consumer_offsets", b"o" * 16, 50, {})]
    topics.adopt(adopted, 5_000)
    topics.adopt(adopted, 10)  # asked for again: nothing is there twice, no producer id is given back
    for image in (topics.image, start(bucket, clock).image):
        assert [image.by_id[topic.topic_id] for topic in adopted] == adopted
        assert image.next_producer_id == 5_000
    for wrong in (
        TopicImage("here", b"x" * 16, 1, {}),
        TopicImage("a", b"x" * 16, 1, {}),
        TopicImage("no/name", b"x" * 16, 1, {}),
        TopicImage("b", b"x" * 16, 1, {"retention.ms": "x"}),
        TopicImage("b", b"x" * 16, 1 << 30, {}),
    ):
        with pytest.raises(KafkaError):
            topics.adopt([TopicImage("fine", b"f" * 16, 1, {}), wrong])
        assert "fine" not in topics.image.by_name


def test_a_topic_in_kafscales_format_needs_a_name_without_objects(topics: Topics) -> None:
    new = NewTopic("t", 1, configs={"kbroker.object.format": "kfs"})
    topics.segment_obstacle = lambda name: f"something of {name} is left"
    assert refused(topics, new) == ErrorCode.TOPIC_ALREADY_EXISTS
    assert isinstance(topics.create_topics([NewTopic("klix", 1)])[0], TopicImage)

    def away(name: str) -> str | None:
        raise StoreUnavailable(name)

    topics.segment_obstacle = away
    assert refused(topics, new) == ErrorCode.NOT_CONTROLLER
    topics.segment_obstacle = lambda name: None
    assert create(topics, "t", configs=new.configs).configs == new.configs
    with pytest.raises(KafkaError, match="come with data"):
        topics.adopt([TopicImage("u", bytes(16), 1, dict(new.configs))])
