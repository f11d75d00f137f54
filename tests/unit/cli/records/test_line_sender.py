"""What is said of lines that cannot be sent, and of files that cannot be read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kbroker.cli.failure import CommandFailed
from kbroker.cli.records import lines
from kbroker.cli.records.line_records import Given, Outgoing, TextLines, json_parser
from kbroker.cli.records.line_sender import LineSender
from kbroker.cli.records.producer import RecordTooLarge
from kbroker.client.cluster_client import ClientError
from kbroker.clock import ManualClock

PARSE = TextLines("t", Given()).parse


class Sent:
    """A producer and its topics: keeps values; `refuse` may raise for what is sent."""

    def __init__(self, refuse: Callable[[list[Outgoing]], None] = lambda records: None) -> None:
        self.refuse = refuse
        self.values: list[bytes | None] = []

    def send(self, records: Iterable[Outgoing]) -> None:
        found = list(records)
        self.refuse(found)
        self.values += [record.value for record in found]

    def partitions(self, topic: str) -> list[int]:
        return [0, 1]

    def sender(self) -> LineSender:
        return LineSender(self, self, ManualClock(), False)


def file_of(folder: Path, data: bytes, name: str = "f") -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


def fails(sent: Sent, names: list[str], parse=PARSE) -> str:
    sender = sent.sender()
    with pytest.raises(CommandFailed) as failure:
        sender.send_files(names, parse)
    assert "\n" not in failure.value.message
    return failure.value.message


def test_files_are_sent_in_their_order(tmp_path: Path) -> None:
    sent = Sent()
    sender = sent.sender()
    names = [file_of(tmp_path, b"a\nb", "1"), file_of(tmp_path, b"", "2"), file_of(tmp_path, b"c\n", "3")]
    sender.send_files(names, PARSE)
    assert sent.values == [b"a", b"b", b"c"]
    assert sender.sent == 3


def test_nothing_is_sent_when_one_of_the_files_cannot_be_read(tmp_path: Path) -> None:
    sent = Sent()
    good = file_of(tmp_path, b"a\n")
    missing = str(tmp_path / "missing")
    assert fails(sent, [good, missing]) == f"cannot read {missing}: {os.strerror(errno.ENOENT)}"
    assert fails(sent, [good, str(tmp_path)]) == f"cannot read {tmp_path}: it is a directory"
    assert sent.values == []


def test_the_lines_before_one_that_is_no_record_are_sent(tmp_path: Path) -> None:
    sent = Sent()
    name = file_of(tmp_path, b'{"value": "a"}\n{"value": "b"}\nnonsense\n{"value": "c"}\n')
    said = fails(sent, [name], json_parser("t", Given()))
    assert said == f"{name}: line 3 is not a record: not JSON: Expecting value at column 1; what comes before is stored"
    assert sent.values == [b"a", b"b"]
    assert fails(sent, [file_of(tmp_path, b"x")], json_parser("t", Given())).endswith("column 1")


def test_a_partition_that_the_topic_does_not_have_is_no_record(tmp_path: Path) -> None:
    name = file_of(tmp_path, b'{"value": "a", "partition": 1}\n{"value": "b", "partition": 2}\n')
    assert "line 2 is not a record: t has no partition 2: they are 0 to 1" in fails(
        Sent(), [name], json_parser("t", Given())
    )


@pytest.mark.parametrize("error", [ClientError("no broker answers"), CommandFailed("t-0: INVALID_RECORD")])
def test_a_failure_names_the_lines_that_may_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(lines, "GROUP_LINES", 2)

    def refuse(records: list[Outgoing]) -> None:
        if b"c" in [record.value for record in records]:
            raise error

    name = file_of(tmp_path, b"a\nb\nc\nd\ne\n")
    assert fails(Sent(refuse), [name]) == f"{name}: lines 3 to 4: {error}; what comes before is stored"
    assert fails(Sent(refuse), [file_of(tmp_path, b"c\n")]) == f"{name}: line 1: {error}"


def test_a_record_that_is_too_large_is_named_by_its_line(tmp_path: Path) -> None:
    def refuse(records: list[Outgoing]) -> None:
        raise RecordTooLarge(2, "t-0: too large")

    name = file_of(tmp_path, b"a\nb\nc\nd\n")
    assert fails(Sent(refuse), [name]) == f"{name}: lines 3 to 4: t-0: too large; what comes before is stored"


def test_a_line_that_no_request_can_hold_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1 << 20)
    sent = Sent()
    name = file_of(tmp_path, b"a\n" + bytes(2 << 20))
    assert fails(sent, [name]) == f"{name}: line 2: the line is longer than 1 MiB; what comes before is stored"
    assert sent.values == [b"a"]


def test_an_interruption_says_how_much_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(records: list[Outgoing]) -> None:
        if b"stop" in [record.value for record in records]:
            raise KeyboardInterrupt

    names = [file_of(tmp_path, b"a\nb\n", "1"), file_of(tmp_path, b"stop\n", "2")]
    with pytest.raises(KeyboardInterrupt):
        Sent(refuse).sender().send_files(names, PARSE)
    assert capsys.readouterr().err == "kbroker: interrupted; 2 records are stored\n"
    with pytest.raises(KeyboardInterrupt):
        Sent(refuse).sender().send_files([file_of(tmp_path, b"a\n", "1"), names[1]], PARSE)
    assert capsys.readouterr().err == "kbroker: interrupted; 1 record is stored\n"
