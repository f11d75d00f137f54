"""Options of format("kbroker"): the kafka source's names, defaults and errors."""

from __future__ import annotations

import pytest

from kbroker.pipeline.column_names import DDL
from kbroker.pipeline.options import (
    EARLIEST,
    LATEST,
    LIMITS,
    Offsets,
    OptionError,
    Timestamps,
    check_batch,
    check_schema,
    check_stream,
    parse_options,
    refuse_limits,
    schema_ddl,
)

BASE = {"object.store": "file:/x", "subscribe": "t"}


def parsed(**options: str):
    return parse_options({**BASE, **{name.replace("__", "."): value for name, value in options.items()}})


def test_defaults_are_the_kafka_sources() -> None:
    options = parsed()
    assert options.topics == ("t",)
    assert (options.starting, options.ending) == (None, None)
    assert options.fail_on_data_loss
    assert not options.read_committed
    assert options.bootstrap is None
    assert schema_ddl(BASE) == (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
    )


def test_names_are_case_insensitive_and_headers_come_last() -> None:
    options = parse_options({"OBJECT.STORE": "file:/x", "SubScribe": " a , b,a", "INCLUDEHEADERS": "True"})
    assert options.topics == ("a", "b")
    assert options.columns[-1] == "headers"


def test_offsets_and_timestamps() -> None:
    assert parsed(startingOffsets="earliest").starting == EARLIEST
    assert parsed(endingOffsets="Latest").ending == LATEST
    given = parsed(startingOffsets='{"t":{"0":5,"1":-2}}').starting
    assert given == Offsets({("t", 0): 5, ("t", 1): EARLIEST}, "startingOffsets")
    given = parsed(startingOffsetsByTimestamp='{"t":{"0":99}}', startingOffsets="earliest").starting
    assert given == Timestamps({("t", 0): 99}, None, "startingOffsetsByTimestamp")
    given = parsed(startingTimestamp="7", startingOffsetsByTimestamp='{"t":{"0":99}}').starting
    assert given == Timestamps(None, 7, "startingTimestamp")


def test_columns() -> None:
    assert parsed(columns="offset, KEY ,timestamptype").columns == ("offset", "key", "timestampType")
    with pytest.raises(OptionError, match="columns: nix"):
        parsed(columns="key,nix")
    with pytest.raises(OptionError, match="fixed schema"):
        check_schema([("a", "binary")], BASE)


def test_a_schema_may_only_have_the_tables_columns() -> None:
    table = [(name, kind.lower()) for name, kind in DDL.items() if name != "headers"]
    assert check_schema(table, BASE) == tuple(name for name, _ in table)
    assert check_schema([("value", "binary"), ("offset", "bigint")], BASE) == ("value", "offset")
    headers = [("headers", "array<struct<key:string,value:binary>>")]
    assert check_schema(headers, {**BASE, "includeHeaders": "true"}) == ("headers",)
    for wrong in (headers, [], [("key", "string")], [("key", "binary"), ("key", "binary")]):
        with pytest.raises(OptionError, match="fixed schema"):
            check_schema(wrong, BASE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t"}, "object.store"),
        ({"object.store": "file:/x"}, "One of the following options must be specified"),
        ({**BASE, "assign": '{"t":[0]}'}, "Only one of the following options"),
        ({**BASE, "readMemoryBytes": "1000000"}, "readMemoryBytes must be at least 16777216, not 1000000"),
        ({**BASE, "readMemoryBytes": "9" * 20}, "readMemoryBytes must be at most 1099511627776, not 9"),
        ({**BASE, "readMemoryBytes": "64m"}, "readMemoryBytes must be a positive whole number"),
        ({**BASE, "subscribe": " , "}, "No topics to subscribe to"),
        ({"object.store": "file:/x", "assign": "t"}, "No topicpartitions to assign"),
        ({"object.store": "file:/x", "assign": '{"t":["0"]}'}, "No topicpartitions to assign"),
        ({"object.store": "file:/x", "subscribePattern": "("}, "subscribePattern"),
        ({**BASE, "startingOffsets": "first"}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"t":{"0":-3}}'}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"t":{"0":true}}'}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"t":{"0":9223372036854775808}}'}, "startingOffsets"),
        ({**BASE, "startingTimestamp": "soon"}, "startingTimestamp"),
        ({**BASE, "endingTimestamp": "9223372036854775808"}, "endingTimestamp: 9223372036854775808 is out of range"),
        ({**BASE, "endingOffsetsByTimestamp": '{"t":{"0":9223372036854775808}}'}, "endingOffsetsByTimestamp"),
        ({**BASE, "minPartitions": "0"}, "minPartitions must be a positive"),
        ({**BASE, "failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false"),
        ({**BASE, "kafka.isolation.level": "serializable"}, "isolation.level"),
        ({**BASE, "kafka.auto.offset.reset": "latest"}, "'auto.offset.reset' is not supported"),
        ({**BASE, "tail": "broker"}, "kafka.bootstrap.servers"),
        ({**BASE, "tail": "yes"}, "tail must be"),
        ({**BASE, "startOffsets": "latest"}, "did you mean 'startingoffsets'"),
        ({**BASE, "path": "x"}, r'load\("x"\): a topic is named by .option\("subscribe", "x"\).load\(\)'),
        ({"object.store": "file:/x", "PATH": 'o"r'}, r'.option\("subscribe", "o\\"r"\)'),
        ({**BASE, "object.store": " "}, "'object.store' must be set"),
        ({**BASE, "debug": "yes"}, "debug must be true or false, not 'yes'"),
        ({**BASE, "includeHeaders": ""}, "includeHeaders must be true or false"),
        ({**BASE, "columns": ""}, "columns: none given"),
        ({**BASE, "subscribe": ""}, "No topics to subscribe to"),
        ({"object.store": "file:/x", "subscribePattern": ""}, "Pattern to subscribe is empty"),
        ({"object.store": "file:/x", "assign": "{}"}, "No topicpartitions to assign"),
        ({"object.store": "file:/x", "assign": '{"t":[-1]}'}, "No topicpartitions to assign"),
        ({"object.store": "file:/x", "assign": '{"t":[0],"t":[1]}'}, "No topicpartitions to assign"),
        ({"object.store": "file:/x", "assign": "[" * 100_000}, "No topicpartitions to assign"),
        ({**BASE, "startingOffsets": ""}, "startingOffsets: expected JSON"),
        ({**BASE, "startingOffsets": "null"}, "startingOffsets: expected JSON"),
        ({**BASE, "startingOffsets": '{"t":5}'}, "startingOffsets: expected JSON"),
        ({**BASE, "startingOffsets": '{"t":{"0":1.5}}'}, "startingOffsets: expected JSON"),
        ({**BASE, "startingOffsets": '{"t":{"x":1}}'}, "startingOffsets: expected JSON"),
        ({**BASE, "startingOffsets": '{"t":{"0":1,"0":2}}'}, "startingOffsets: expected JSON"),
        ({**BASE, "startingOffsets": '{"t":' * 100_000}, "startingOffsets: expected JSON"),
        ({**BASE, "startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "startingOffsetsByTimestamp: expected JSON"),
        ({**BASE, "startingOffsetsByTimestampStrategy": "first"}, "must be one of 'error', 'latest'"),
        ({**BASE, "startingTimestamp": "-1"}, "startingTimestamp: -1 is out of range"),
        ({**BASE, "startingTimestamp": "2025-01-01"}, "startingTimestamp must be a whole number"),
        ({**BASE, "startingTimestamp": "9" * 5000}, "startingTimestamp must be a whole number"),
        ({**BASE, "minPartitions": "1e3"}, "minPartitions must be a positive"),
        ({**BASE, "splitBytes": "4MiB"}, "splitBytes must be a positive"),
        ({**BASE, "maxOffsetsPerTrigger": "-5"}, "maxOffsetsPerTrigger must be a positive"),
        ({**BASE, "minOffsetsPerTrigger": "many"}, "minOffsetsPerTrigger must be a positive"),
        ({**BASE, "maxTriggerDelay": "-1s"}, "maxTriggerDelay"),
        ({**BASE, "maxTriggerDelay": ""}, "maxTriggerDelay"),
        ({**BASE, "kafka.isolation.level": ""}, "isolation.level"),
        ({**BASE, "maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({**BASE, "minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, r"\(6\) is higher than the max"),
        ({**BASE, "maxBytesPerTrigger": "1m"}, "maxBytesPerTrigger must be a positive"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options(options)


def test_options_of_the_kafka_source_without_a_meaning_here_are_accepted() -> None:
    parsed(kafka__group__id="g", groupIdPrefix="x", kafkaConsumer__pollTimeoutMs="1")


def test_options_without_meaning_in_a_batch_query_are_refused() -> None:
    with pytest.raises(OptionError, match="starting offset can't be latest"):
        check_batch(parsed(startingOffsets="latest"))
    with pytest.raises(OptionError, match="endingOffsets for t-0 can't be earliest"):
        check_batch(parsed(endingOffsets='{"t":{"0":-2}}'))


def test_options_without_meaning_in_a_stream_are_refused() -> None:
    with pytest.raises(OptionError, match="ending offset not valid in streaming"):
        check_stream(parsed(endingOffsets="latest"))


def test_limits_are_refused_where_spark_cannot_be_told_of_them() -> None:
    refuse_limits(parsed(maxTriggerDelay="1m"))
    for limit in LIMITS:
        with pytest.raises(OptionError, match=f"{limit}: this session cannot limit"):
            refuse_limits(parsed(**{limit: "5"}))
