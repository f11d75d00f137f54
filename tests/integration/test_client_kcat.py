"""kcat with the distribution's librdkafka: an old client that checks for exact versions of the APIs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import ON_A_FOLDER, every_codec, require
from scenarios import IDEMPOTENT, MODES, Mode, new_topic
from workload import Delivered, Headers, Message, Read, Shape

pytestmark = pytest.mark.feature("kcat")

TIMEOUT_SECONDS = 30.0
SEPARATOR = "~|~"
NULL = b""  # with -Z, an empty key or value is null
# Lengths first, so that any bytes can follow.
FORMAT = r"%p %o %T %K %S %h\n%k%s\n"


@pytest.fixture(autouse=True)
def _kcat() -> None:
    require(shutil.which("kcat"), "no kcat on PATH: run scripts/fetch_tools.sh")


def kcat(bootstrap: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """Runs kcat and returns what it printed. Raises AssertionError with its messages."""
    command = ["kcat", "-b", bootstrap, "-m", "20", *arguments]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        raise AssertionError(f"{' '.join(arguments)} hangs after {len(printed)} bytes: {printed[-2000:]!r}") from None
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stderr.decode(errors='replace')}"
    return done.stdout


class Kcat:
    """The command line tool; a run of it produces to one partition."""

    name = "kcat"
    shape = Shape.PLAIN
    partitions = 1

    def send(
        self, bootstrap: str, topic: str, messages: Sequence[tuple[int | None, Message]], *, codec: str, mode: Mode
    ) -> None:
        lines = [
            (message.key or NULL) + SEPARATOR.encode() + (message.value or NULL) + b"\n" for _, message in messages
        ]
        kcat(
            bootstrap, "-P", "-t", topic, "-K", SEPARATOR, "-Z", "-z", codec,
            "-X", f"acks={mode.acks}", "-X", f"enable.idempotence={str(mode.idempotent).lower()}",
            "-X", f"message.max.bytes={8 << 20}",
            stdin=b"".join(lines),
        )  # fmt: skip

    def read_assigned(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> Read:
        read: Read = {}
        for partition, count in counts.items():
            start = ("-C", "-q", "-t", topic, "-p", str(partition), "-o", "beginning")
            printed = kcat(bootstrap, *start, "-c", str(count), "-f", FORMAT)
            read |= parse(printed, count)
        return read

    def read_subscribed(self, bootstrap: str, topic: str, group: str, count: int) -> Read:
        printed = kcat(
            bootstrap, "-q", "-c", str(count), "-f", FORMAT, "-X", "auto.offset.reset=earliest", "-G", group, topic
        )  # fmt: skip
        return parse(printed, count)


def parse(printed: bytes, count: int) -> Read:
    """The messages that kcat printed with FORMAT."""
    read: Read = {}
    position = 0
    for _ in range(count):
        line_end = printed.index(b"\n", position)
        partition, offset, stamp, key_length, value_length, *headers = printed[position:line_end].split(b" ", 5)
        position = line_end + 1
        key, position = _field(printed, position, int(key_length))
        value, position = _field(printed, position, int(value_length))
        position += 1
        read.setdefault(int(partition), []).append(
            Delivered(int(offset), key, value, _headers(b"".join(headers)), int(stamp))
        )
    assert position == len(printed)
    return read


def _field(printed: bytes, position: int, length: int) -> tuple[bytes | None, int]:
    if length < 0:
        return None, position
    return printed[position : position + length], position + length


def _headers(text: bytes) -> Headers:
    pairs = (pair.partition(b"=") for pair in text.split(b",") if pair)
    return tuple((name.decode(), value) for name, _, value in pairs)


CLIENT = Kcat()


@pytest.mark.feature("produce and consume")
@every_codec(in_a_bucket="snappy")
def test_every_codec_and_acks_is_read_back(broker: BrokerProcess, codec: str) -> None:
    scenarios.every_mode(broker, CLIENT, codec, MODES)


@pytest.mark.feature("produce and consume")
@ON_A_FOLDER
def test_large_messages_are_read_back(broker: BrokerProcess) -> None:
    scenarios.large_messages(broker, CLIENT, "none")


@pytest.mark.feature("restarts")
@ON_A_FOLDER
def test_restarts_keep_everything(broker: BrokerProcess) -> None:
    scenarios.restarts(broker, CLIENT)


@pytest.mark.feature("produce and consume")
@ON_A_FOLDER
def test_keyed_text_keeps_its_order(broker: BrokerProcess) -> None:
    scenarios.real_text(broker, CLIENT, "lz4", 12_000)


@pytest.mark.feature("produce and consume")
@ON_A_FOLDER
def test_headers_are_read_back(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CLIENT, "headers")
    kcat(broker.bootstrap, "-P", "-t", topic, "-H", "a=1", "-H", "b=two", stdin=b"value\n")
    printed = kcat(broker.bootstrap, "-C", "-q", "-t", topic, "-o", "beginning", "-c", "1", "-f", FORMAT)
    assert parse(printed, 1)[0][0].headers == (("a", b"1"), ("b", b"two"))


@ON_A_FOLDER
def test_files_sent_as_messages_are_read_back(broker: BrokerProcess, tmp_path: Path) -> None:
    """Any bytes."""
    topic = new_topic(broker, CLIENT, "files")
    contents = [bytes(range(256)) * size for size in (1, 40, 3000)]
    paths = []
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
        paths.append(str(tmp_path / str(number)))
    kcat(broker.bootstrap, "-P", "-t", topic, "-p", "0", *paths)
    read = CLIENT.read_assigned(broker.bootstrap, topic, {0: len(contents)})
    assert [message.value for message in read[0]] == contents


@ON_A_FOLDER
def test_topics_are_listed_and_offsets_found_by_time(broker: BrokerProcess) -> None:
    topic = new_topic(broker, CLIENT, "listed")
    CLIENT.send(
        broker.bootstrap, topic, [(0, Message(b"k", b"v%d" % i)) for i in range(5)], codec="none", mode=IDEMPOTENT
    )
    listed = json.loads(kcat(broker.bootstrap, "-L", "-J", "-t", topic))
    assert [entry["topic"] for entry in listed["topics"]] == [topic]
    assert listed["brokers"] == [{"id": 1, "name": broker.bootstrap}]
    for time, offset in ((-1, 5), (-2, 0), (1, 0), (1 << 41, -1)):
        printed = kcat(broker.bootstrap, "-Q", "-t", f"{topic}:0:{time}").decode()
        found = re.search(r"offset (-?\d+)", printed)
        assert found, printed
        assert int(found[1]) == offset, f"time {time}: {printed}"
