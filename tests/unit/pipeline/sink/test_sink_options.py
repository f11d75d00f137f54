"""The options of a write: what is taken, translated for the client, and refused by name."""

from __future__ import annotations

import pytest

from kbroker.pipeline.options import OptionError
from kbroker.pipeline.sink.columns import RecordColumns, record_columns
from kbroker.pipeline.sink.options import SinkOptions, parse_options

BOOTSTRAP = {"kafka.bootstrap.servers": "b:9092"}
HEADERS = "array<struct<key:string,value:binary>>"


def parsed(streaming: bool = False, **options: str) -> SinkOptions:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return parse_options(BOOTSTRAP | given, streaming=streaming)


def test_the_client_is_idempotent_and_partitions_as_java_does() -> None:
    client = parsed().client
    assert client["enable.idempotence"] == "true"
    assert client["acks"] == "all"
    assert client["partitioner"] == "murmur2_random"
    assert client["bootstrap.servers"] == "b:9092"


def test_names_of_javas_producer_are_translated() -> None:
    client = parsed(
        kafka__max__request__size="5000000",
        kafka__send__buffer__bytes="1000",
        kafka__sasl__mechanism="PLAIN",
        kafka__sasl__jaas__config='org.apache.X required username="u" password="p;=";',
        kafka__linger__ms="7",
        kafka__max__block__ms="1",
    ).client
    assert client["message.max.bytes"] == "5000000"
    assert client["socket.send.buffer.bytes"] == "1000"
    assert client["sasl.mechanisms"] == "PLAIN"
    assert (client["sasl.username"], client["sasl.password"]) == ("u", "p;=")
    assert client["linger.ms"] == "7"
    assert "max.block.ms" not in client


def test_the_queue_holds_the_largest_record() -> None:
    assert int(parsed(kafka__max__request__size="100000000").client["queue.buffering.max.kbytes"]) * 1024 > 100_000_000
    small = parsed(kafka__buffer__memory="65536").client
    assert small["queue.buffering.max.kbytes"] == "64"
    assert small["message.max.bytes"] == "65536"


@pytest.mark.parametrize("acks", ["1", "0"])
def test_fewer_acks_end_idempotence_as_in_javas_producer(acks: str) -> None:
    assert parsed(kafka__acks=acks).client["enable.idempotence"] == "false"
    assert parsed(kafka__acks="-1").client["enable.idempotence"] == "true"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.bootstrap.servers": " "}, "Option 'kafka.bootstrap.servers' must be specified"),
        ({"kafka.key.serializer": "x"}, "Kafka option 'key.serializer' is not supported as keys are serialized"),
        ({"kafka.value.serializer": "x"}, "Kafka option 'value.serializer' is not supported as value are serialized"),
        ({"kafka.transactional.id": "x"}, "'transactional.id' is not supported .*'kbroker.transactional'"),
        ({"kafka.partitioner.class": "x"}, "partitioner.class"),
        ({"kafka.max.request.size": "big"}, "kafka.max.request.size must be a whole number, not 'big'"),
        ({"kafka.delivery.timeout.ms": "0"}, "kafka.delivery.timeout.ms must be a positive whole number, not '0'"),
        ({"kafka.sasl.jaas.config": "x"}, "kafka.sasl.jaas.config"),
        ({"object.store": "file:x"}, "no option 'object.store': it is for reading"),
        ({"topics": "x"}, "no option 'topics'; did you mean 'topic'"),
        ({"topic": "a b"}, "'a b' is not the name of a topic"),
        ({"topic": ""}, "'' is not the name of a topic"),
        ({"includeHeaders": "si"}, "includeheaders must be true or false"),
        ({"kbroker.transactional": "yes"}, "kbroker.transactional must be true or false, not 'yes'"),
        ({"kbroker.job.id": "a"}, "kbroker.job.id needs option 'kbroker.transactional'"),
        ({"kbroker.transactional": "true", "kbroker.job.id": "a/b"}, "kbroker.job.id must be 1 to 100 letters"),
        ({"kbroker.transactional": "true", "kafka.acks": "1"}, "needs kafka.acks=all"),
        ({"kbroker.transactional": "true", "kafka.security.protocol": "SSL"}, "security.protocol=PLAINTEXT"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options(BOOTSTRAP | options, streaming=False)


def test_a_stream_goes_by_its_querys_id() -> None:
    with pytest.raises(OptionError, match="a stream uses its query's id"):
        parsed(streaming=True, kbroker__transactional="true", kbroker__job__id="a")


def test_columns_are_found_by_name_and_others_are_left_out() -> None:
    fields = [("offset", "bigint"), ("headers", HEADERS), ("value", "binary"), ("topic", "string"), ("key", "string")]
    assert record_columns(fields, None) == RecordColumns(value=2, key=4, headers=1, partition=None, topic=3)
    assert record_columns(fields, "t").topic is None
    assert record_columns([("topic", "int"), ("value", "string collate UTF8_LCASE")], "t").value == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."),
        ([("topic", "string")], "Required attribute 'value' not found"),
        ([("topic", "string"), ("Value", "string")], "Required attribute 'value' not found"),
        (
            [("topic", "string"), ("value", "int")],
            r"value attribute unsupported type int. value must be a\(n\) string or binary",
        ),
        ([("topic", "int"), ("value", "string")], r"topic attribute unsupported type int. topic must be a\(n\) string"),
        (
            [("topic", "string"), ("value", "string"), ("partition", "bigint")],
            r"partition attribute unsupported type bigint. partition must be a\(n\) int",
        ),
        (
            [("topic", "string"), ("value", "string"), ("headers", "map<string,binary>")],
            r"headers attribute unsupported type map<string,binary>. headers must be a\(n\) array<struct<",
        ),
    ],
)
def test_a_wrong_column_is_refused_in_the_kafka_sinks_words(fields: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        record_columns(fields, None)
