
import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.topic_config import parse_topic_config
from tests.unit.storage.flush.flush_harness import Storage, batch, topic_id


@pytest.fixture
def storage(tmp_path):
    s = Storage(tmp_path).start()
    yield s
    s.close()


def test_topics_are_found_by_name_and_id(storage):
    topic = storage.add_topic("t", 3)
    assert storage.table.by_name["t"] is storage.table.by_id[topic_id("t")] is topic
    assert storage.table.partition("t", 2) is topic.partitions[2]
    assert storage.table.partition_by_id(topic_id("t"), 1) is topic.partitions[1]
    for index in (-1, 3):
        assert storage.table.partition("t", index) is None
    assert storage.table.partition("u", 0) is None
    assert storage.add_topic("t", 3) is topic
    with pytest.raises(ValueError, match="another id"):
        storage.table.add_topic("t", bytes(16), 1, topic.config)


def test_the_dictionaries_stay_the_same_objects_and_partition_lists_are_replaced(storage):
    # The I/O threads hold the dictionaries; a reader of a topic's partitions keeps the list that it holds.
    storage.add_topic("t", 1)
    table, partitions = storage.table.by_name, storage.table.by_name["t"].partitions
    storage.add_topic("u", 1)
    storage.table.add_partitions(topic_id("t"), 4)
    storage.table.add_partitions(topic_id("t"), 2)
    assert table is storage.table.by_name
    assert set(table) == {"t", "u"}
    assert len(partitions) == 1
    assert len(storage.table.by_name["t"].partitions) == 4


def test_ordinals_are_never_used_twice(storage):
    storage.add_topic("t", 3)
    storage.table.remove_topic(topic_id("t"))
    storage.table.add_topic("t", bytes(16), 3, parse_topic_config({}))
    assert sorted(p.ordinal for p in storage.table.all_partitions()) == [3, 4, 5]


def test_a_removed_topic_refuses_appends_and_wakes_fetches(storage):
    told = []
    storage.table.on_removed = told.append
    topic = storage.add_topic("t", 1)
    assert storage.table.remove_topic(topic_id("t")) is topic
    assert told == [topic]
    assert topic.partitions[0].deleted
    assert topic.partitions[0].leader_epoch == -1
    assert storage.table.remove_topic(topic_id("t")) is None
    assert not storage.table.by_name
    assert not storage.table.by_id
    with pytest.raises(Exception):  # noqa: B017, PT011 - a FastKafkaError with the engine's own code
        topic.partitions[0].append_bytes(batch([b"v"]), 0)


def test_configs_reach_the_hot_path(storage):
    topic = storage.add_topic("t", 2)
    assert topic.partitions[1].rules.max_message_bytes == 1_048_588
    config = parse_topic_config({"max.message.bytes": "77", "cleanup.policy": "compact"})
    storage.table.set_config(topic_id("t"), config)
    rules = topic.partitions[1].rules
    assert (rules.max_message_bytes, rules.compacted, rules.delete_enabled) == (77, True, False)
    storage.table.add_partitions(topic_id("t"), 3)
    assert topic.partitions[2].rules.max_message_bytes == 77


def test_delete_records_is_refused_as_in_kafka(storage):
    topic = storage.add_topic("t", 1)
    storage.append("t", 0, batch([b"v"] * 3))
    storage.sync()
    log = topic.partitions[0].log
    for offset in (-2, 4):
        with pytest.raises(KafkaError) as caught:
            log.delete_target(offset)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (log.delete_target(-1), log.delete_target(2)) == (3, 2)
    storage.table.set_config(topic_id("t"), parse_topic_config({"cleanup.policy": "compact"}))
    with pytest.raises(KafkaError) as caught:
        log.delete_target(0)
    assert caught.value.code == ErrorCode.POLICY_VIOLATION
    assert topic.partitions[0].log_start_offset == 0, "judging moves nothing"


def test_epochs_begin_when_leading_begins(storage):
    topic = storage.add_topic("t", 1)
    log = topic.partitions[0].log
    assert log.epochs.entries == ((1, 0),)
    storage.append("t", 0, batch([b"v"] * 3))
    storage.sync()
    assert log.end_offset_for(1) == (1, 3)
    assert log.end_offset_for(0) == (0, 0)
    assert log.end_offset_for(2) == (-1, -1)
