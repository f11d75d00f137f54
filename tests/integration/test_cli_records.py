"""`kbroker consume` and `kbroker produce` as a person types them."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import signal
import subprocess
import termios
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from confluent_kafka import Consumer, Producer
from conftest import ON_A_FOLDER
from kafka.partitioner import murmur2
from record_commands import RecordCommands, new_topic, numbers, transactions
from until import until

pytestmark = ON_A_FOLDER

SECONDS = 30
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
BYTES = bytes(range(256))


@pytest.fixture
def kbroker(broker: BrokerProcess) -> RecordCommands:
    return RecordCommands(broker.bootstrap)


@pytest.mark.parametrize("codec", CODECS)
def test_produced_records_are_consumed(kbroker: RecordCommands, codec: str) -> None:
    topic = new_topic(kbroker.bootstrap, 3)
    sent = {f"key{n}": f"välue {n}" for n in range(1200)}
    lines = "".join(f"{key}:{value}\n" for key, value in sent.items()).encode()
    kbroker.produce(topic, lines, "--key-separator", ":", "--compression", codec)
    found = kbroker.records(topic)
    assert {record["key"]: record["value"] for record in found} == sent
    assert {record["partition"] for record in found} == {0, 1, 2}
    plain = kbroker.ended("consume", topic, "--from-beginning", "--count", "1200", "--timeout", "30")
    assert sorted(plain.lines) == sorted(sent.values())


def test_keys_go_to_the_partitions_that_kafkas_clients_choose(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap, 7)
    kbroker.produce(topic, b"".join(b"k%d=v\n" % n for n in range(200)), "--key-separator", "=")
    for record in kbroker.records(topic):
        assert record["partition"] == (murmur2(record["key"].encode()) & 0x7FFFFFFF) % 7


def test_produce_creates_a_topic(kbroker: RecordCommands) -> None:
    kbroker.produce("made-by-produce", b"one\ntwo", "--partition", "0")
    assert kbroker.values("made-by-produce") == ["one", "two"]
    refused = kbroker.ended("produce", "made-by-produce", "--partition", "9", lines=b"x")
    assert (refused.code, refused.output) == (1, b"")
    assert "made-by-produce has no partition 9: they are 0 to 0" in refused.errors


def test_what_consume_prints_as_json_produce_stores_again(kbroker: RecordCommands) -> None:
    """Keys, values, headers, timestamps, partitions and nulls, of text and of any bytes."""
    topic, copy = new_topic(kbroker.bootstrap, 3), new_topic(kbroker.bootstrap, 3)
    producer = Producer({"bootstrap.servers": kbroker.bootstrap, "log_level": 0})
    parts = (None, b"", b"text", "wört €\n".encode(), BYTES)
    for number, (key, value) in enumerate(itertools.product(parts, parts)):
        headers = [("h", key), ("ü", value), ("h", None), ("", b"")]
        producer.produce(topic, value, key, number % 3, timestamp=1_700_000_000_000 + number, headers=headers)
    assert producer.flush(SECONDS) == 0
    printed = kbroker.consume(topic, "--json")
    stored = kbroker.ended("produce", copy, "--json", lines=printed.output)
    assert (stored.code, stored.errors) == (0, "25 records\n")
    again = kbroker.consume(copy, "--json")
    assert sorted(again.lines) == sorted(line.replace(topic, copy) for line in printed.lines)
    as_hex = kbroker.consume(topic, "--json", "--key", "hex", "--value", "base64")
    other = new_topic(kbroker.bootstrap, 3)
    assert kbroker.ended("produce", other, "--json", lines=as_hex.output).code == 0
    assert sorted(kbroker.consume(other, "--json").lines) == sorted(
        line.replace(topic, other) for line in printed.lines
    )


def test_any_bytes_go_through_as_lines(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap)
    lines = BYTES.replace(b"\n", b"") + b"\n\n\xff\xfe\0\n" + "ü\n".encode() + b"x" * 300_000 + b"\nlast"
    kbroker.produce(topic, lines)
    assert kbroker.consume(topic).output == lines + b"\n"


def test_options_say_what_lines_do_not(kbroker: RecordCommands, tmp_path: Path) -> None:
    topic = new_topic(kbroker.bootstrap, 2)
    (tmp_path / "1").write_bytes(b"a:1,b:NULL\tk\tv\n\tk\tNULL\n")
    (tmp_path / "2").write_bytes(b"h:\tNULL\tx\n")
    ended = kbroker.ended(
        "produce", topic, str(tmp_path / "1"), str(tmp_path / "2"), "--headers-from-line", "--key-separator", r"\t",
        "--null-value", "NULL", "--header", "all=1=2", "--partition", "1", "--timestamp", "2026-01-02T03:04:05Z",
        "--acks", "1",
    )  # fmt: skip
    assert (ended.code, ended.errors) == (0, "3 records\n")
    shown = kbroker.consume(topic, "--format", r"%p %o %T %k %K %v %S %h\n")
    assert shown.lines == [
        "1 0 1767323045000 k 1 v 1 a=1,b=NULL,all=1=2",
        "1 1 1767323045000 k 1  -1 all=1=2",
        "1 2 1767323045000  -1 x 1 h=,all=1=2",
    ]


def test_a_tombstone_has_a_key_and_no_value(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap)
    with kbroker.started("produce", topic, "--tombstone", "--key", "gone", "--header", "why=test") as running:
        assert running.wait(SECONDS) == 0  # standard input is open and says nothing
    (record,) = kbroker.records(topic)
    assert (record["key"], record["value"], record["headers"]) == ("gone", None, [["why", "test"]])


def test_without_acknowledgements_records_arrive(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap)
    kbroker.produce(topic, numbers(25_000), "--acks", "0")
    until(lambda: len(kbroker.consume(topic).lines) == 25_000, "records")
    assert kbroker.consume(topic).output == numbers(25_000)


def test_a_slow_writers_lines_are_sent_as_they_come(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap)
    with kbroker.started("produce", topic) as running:
        assert running.stdin is not None
        for number in range(3):
            running.stdin.write(b"%d\n" % number)
            running.stdin.flush()
            until(lambda: len(kbroker.values(topic)) == number + 1, f"record {number}")  # noqa: B023
        running.stdin.close()
        assert running.wait(SECONDS) == 0


def test_a_record_that_the_topic_does_not_take_is_named(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap, max_message_bytes="100000")
    lines = b"a\n" * 3000 + b"x" * 200_000 + b"\nb\n"
    ended = kbroker.ended("produce", topic, lines=lines)
    assert ended.code == 1
    assert ended.errors.startswith(f"kbroker: lines 3001 to 3002: {topic}-0: ")
    assert ended.errors.endswith("(MESSAGE_TOO_LARGE); what comes before is stored\n")
    assert len(kbroker.consume(topic).lines) == 3000


def test_a_line_that_is_no_record_is_named(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap)
    ended = kbroker.ended("produce", topic, "--json", lines=b'{"value": "a"}\n{"value": 1}\n')
    assert ended.code == 1
    assert ended.errors == (
        "kbroker: line 2 is not a record: value: neither text nor base64 nor hex; what comes before is stored\n"
    )
    assert kbroker.values(topic) == ["a"]


def test_reading_starts_where_offset_says(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap, 2)
    for partition in range(2):
        for number in range(5):
            kbroker.produce(
                topic, b"%d-%d" % (partition, number), "-p", str(partition), "--timestamp", str(1000 * number)
            )

    def found(*options: str) -> list[str]:
        return sorted(kbroker.values(topic, *options))

    everything = [f"{partition}-{number}" for partition in range(2) for number in range(5)]
    assert found() == found("--from-beginning") == found("--offset", "earliest") == everything
    assert found("--offset", "latest") == []
    assert found("--offset", "3") == ["0-3", "0-4", "1-3", "1-4"]
    assert found("--offset", "-1") == ["0-4", "1-4"]
    assert found("--offset", "@2500") == ["0-3", "0-4", "1-3", "1-4"]
    assert found("--offset", "@1970-01-01T00:00:04Z", "--partition", "1") == ["1-4"]
    assert found("-p", "1", "-p", "0", "-o", "4") == ["0-4", "1-4"]
    outside = kbroker.consume(topic, "--offset", "9", "--partition", "0")
    assert outside.output == b""
    assert outside.errors == f"kbroker: {topic}-0 has offsets 0 to 5: reading starts at 5\n"
    counted = kbroker.ended("consume", topic, "-o", "-4", "-p", "0", "--count", "2")
    assert counted.lines == ["0-1", "0-2"]


def test_new_records_are_printed_as_they_come(kbroker: RecordCommands) -> None:
    """Without --offset reading starts at the end, and ends with code 0 when it is interrupted."""
    topic = new_topic(kbroker.bootstrap)
    kbroker.produce(topic, b"before\n")
    with kbroker.started("consume", topic) as running:
        assert running.stdout is not None
        os.set_blocking(running.stdout.fileno(), False)
        found: list[bytes] = []

        def printed() -> bool:
            kbroker.produce(topic, b"after\n")
            found.append(running.stdout.read() or b"")
            return b"after\n" in found[-1]

        until(printed, "record")
        running.send_signal(signal.SIGINT)
        assert running.wait(SECONDS) == 0
        assert running.stderr.read() == b""
    assert b"before" not in b"".join(found)


@pytest.mark.parametrize(
    ("number", "options", "code"),
    [
        (signal.SIGINT, (), 0),
        (signal.SIGTERM, (), 0),
        (signal.SIGINT, ("--count", "100000"), 130),
        (signal.SIGTERM, ("--count", "100000"), 143),
    ],
)
def test_a_signal_commits_what_was_printed(
    kbroker: RecordCommands, number: signal.Signals, options: tuple[str, ...], code: int
) -> None:
    topic = new_topic(kbroker.bootstrap)
    kbroker.produce(topic, numbers(1000))
    group = ("--group", topic, "--offset", "earliest")
    with kbroker.started("consume", topic, *group, *options) as running:
        assert running.stdout is not None
        first = [running.stdout.readline() for _ in range(1000)]
        kbroker.produce(topic, b"later\n")
        assert running.stdout.readline() == b"later\n"
        running.send_signal(number)
        assert running.wait(SECONDS) == code
        assert running.stderr.read() == b""
        assert running.stdout.read() == b""
    assert b"".join(first) == numbers(1000)
    kbroker.produce(topic, b"last\n")
    assert kbroker.consume(topic, *group).lines == ["last"]


def test_a_reader_that_has_gone_ends_it_quietly(kbroker: RecordCommands) -> None:
    """As `| head` does. What was not printed is not committed."""
    topic = new_topic(kbroker.bootstrap)
    kbroker.produce(topic, b"x" * 1000 + b"\n" + numbers(20_000))
    group = ("--group", topic, "--offset", "earliest")
    with kbroker.started("consume", topic, *group) as running:
        assert running.stdout is not None
        assert len(running.stdout.readline()) == 1001
        running.stdout.close()
        assert running.wait(SECONDS) == 0
        assert running.stderr.read() == b""
    left = kbroker.consume(topic, *group).lines
    assert left[-1] == "19999"
    assert len(left) > 10_000


def test_a_signal_ends_it_while_nothing_reads_its_output(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap)
    kbroker.produce(topic, b"x" * 1000 + b"\n" + numbers(50_000))
    with kbroker.started("consume", topic, "--from-beginning") as running:
        assert running.stdout is not None
        assert len(running.stdout.readline()) == 1001  # the rest is more than a pipe holds
        running.send_signal(signal.SIGINT)
        assert running.wait(SECONDS) == 0
        assert running.stderr.read() == b""


def test_a_full_disk_is_one_line(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap)
    kbroker.produce(topic, b"x\n")
    with open("/dev/full", "wb") as full, kbroker.started("consume", topic, "-e", stdout=full) as running:
        assert running.wait(SECONDS) == 1
        assert running.stderr.read() == b"kbroker: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize(("command", "closed"), [("consume", 1), ("produce", 0)])
def test_a_closed_stream_is_one_line(kbroker: RecordCommands, command: str, closed: int) -> None:
    topic = new_topic(kbroker.bootstrap)
    with kbroker.started(command, topic, preexec_fn=lambda: os.close(closed)) as running:
        assert running.wait(SECONDS) == 1
        assert running.stderr.read().endswith(b"is closed\n")


def test_members_of_a_group_share_partitions_and_go_on_where_they_were(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap, 4)
    group = ("--group", topic, "--offset", "earliest")
    kbroker.produce(topic, b"".join(b"%d:%d\n" % (n, n) for n in range(100)), "-K", ":")
    counted = kbroker.ended("consume", topic, *group, "--count", "30")
    assert (counted.code, len(counted.lines)) == (0, 30)
    rest = kbroker.consume(topic, *group)
    assert sorted(counted.lines + rest.lines) == sorted(map(str, range(100)))
    assert kbroker.consume(topic, *group).output == b""
    kbroker.produce(topic, b"one\n", "-p", "1")
    kbroker.produce(topic, b"two\n", "-p", "2")
    assert kbroker.consume(topic, *group, "--partition", "2").lines == ["two"]  # assigned, not joined
    assert kbroker.consume(topic, *group).lines == ["one"]


def test_a_group_that_does_not_take_the_member_is_one_line(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap)
    member = Consumer({
        "bootstrap.servers": kbroker.bootstrap, "group.id": topic, "log_level": 0,
        "partition.assignment.strategy": "cooperative-sticky",
    })  # fmt: skip
    try:
        member.subscribe([topic])
        until(lambda: member.poll(0.1) or member.assignment(), "assignment")
        ended = kbroker.ended("consume", topic, "--group", topic)
        assert (ended.code, ended.output) == (1, b"")
        assert ended.errors == f"kbroker: group {topic}: INCONSISTENT_GROUP_PROTOCOL\n"
    finally:
        member.close()


def test_markers_and_open_transactions_do_not_hold_up_the_end(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap)
    producer = transactions(kbroker.bootstrap, topic)
    committed = ("--isolation", "read_committed")
    every = [str(number) for number in range(20)]
    assert kbroker.values(topic) == every
    assert kbroker.values(topic, *committed) == every[:10] + every[15:]
    assert kbroker.values(topic, "-o", "-1") == []  # the last offset is a marker's
    assert kbroker.values(topic, "-o", "12", *committed) == every[15:]
    producer.begin_transaction()
    producer.produce(topic, "open")
    assert producer.flush(SECONDS) == 0
    assert kbroker.values(topic) == [*every, "open"]
    assert kbroker.values(topic, *committed, "--group", topic) == every[:10] + every[15:]
    producer.abort_transaction(SECONDS)
    assert kbroker.values(topic, *committed, "--group", topic) == []


def test_a_terminal_shows_rate_and_lag(kbroker: RecordCommands) -> None:
    topic = new_topic(kbroker.bootstrap)
    kbroker.produce(topic, numbers(1000))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, b"\0\x18\0\x50\0\0\0\0")
    os.set_blocking(ours, False)
    shown = bytearray()

    def is_shown(text: bytes) -> bool:
        with contextlib.suppress(BlockingIOError):
            shown.extend(os.read(ours, 65536))
        return text in shown

    with kbroker.started("consume", topic, "--from-beginning", stdout=subprocess.DEVNULL, stderr=theirs) as running:
        until(lambda: is_shown(b"1,000 records, "), "status")
        until(lambda: is_shown(b" records/s, "), "rate")
        until(lambda: is_shown(b"lag 0"), "lag")
        running.send_signal(signal.SIGINT)
        assert running.wait(SECONDS) == 0
    os.close(theirs)
    os.close(ours)


def test_a_terminal_shows_how_much_of_a_file_is_sent(kbroker: RecordCommands, tmp_path: Path) -> None:
    (tmp_path / "numbers").write_bytes(numbers(100_000))
    topic = new_topic(kbroker.bootstrap)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, b"\0\x18\0\xa0\0\0\0\0")
    with kbroker.started("produce", topic, str(tmp_path / "numbers"), stderr=theirs) as running:
        assert running.wait(SECONDS) == 0
    shown = os.read(ours, 65536)
    assert b"[####" in shown
    assert b"100%" in shown
    assert shown.endswith(b"100000 records\r\n")
    os.close(theirs)
    os.close(ours)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("consume", "no-such-topic"), 1, "there is no topic 'no-such-topic'"),
        (("consume", "bad name"), 1, "INVALID_TOPIC_EXCEPTION"),
        (("consume", "x" * 300), 1, "INVALID_TOPIC_EXCEPTION"),
        (("produce", "bad name"), 1, "INVALID_TOPIC_EXCEPTION"),
        (("consume", "{topic}", "--partition", "7"), 1, "has no partition 7: they are 0 to 0"),
        (("consume", "{topic}x"), 1, "did you mean '{topic}'?"),
        (("produce", "{topic}", "/no/such/file"), 1, "cannot read /no/such/file: No such file or directory"),
        (("produce", "{topic}", "/"), 1, "cannot read /: it is a directory"),
        (("consume", "{topic}", "--command-config", "/no/such/file"), 2, "cannot read /no/such/file"),
    ],
)
def test_bad_input_is_one_line(kbroker: RecordCommands, arguments: tuple[str, ...], code: int, said: str) -> None:
    topic = new_topic(kbroker.bootstrap)
    ended = kbroker.ended(*(part.replace("{topic}", topic) for part in arguments), lines=b"x\n")
    assert ended.code == code, ended.errors
    assert said.replace("{topic}", topic) in ended.errors.splitlines()[-1]
    assert ended.output == b""


def test_a_plain_locale_prints_any_bytes(broker: BrokerProcess) -> None:
    kbroker = RecordCommands(broker.bootstrap, {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"})
    topic = new_topic(broker.bootstrap)
    kbroker.produce(topic, "ü\n".encode() + b"\xff\n", "--key", "schlüssel", "--header", "h=\xff")
    shown = kbroker.consume(topic, "--format", r"%k %v %h\n")
    assert shown.output == "schlüssel ü h=ÿ\n".encode() + "schlüssel ".encode() + b"\xff h=" + "ÿ\n".encode()
    assert [record["key"] for record in kbroker.records(topic)] == ["schlüssel"] * 2
