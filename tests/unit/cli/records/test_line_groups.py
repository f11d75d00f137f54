"""Lines of pipes and files, in groups."""

from __future__ import annotations

import os
import threading
from itertools import chain
from pathlib import Path

import pytest

from kbroker.cli.records import lines
from kbroker.cli.records.lines import GROUP_LINES, LineTooLong, line_groups


def groups_of(path: Path, data: bytes) -> list[list[bytes]]:
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return list(line_groups(descriptor))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"a\rb\n\r\n\n", [b"a\rb", b"", b""]),
        (b"a\r\r\n", [b"a\r"]),
        (b"\0\xff\xfe\n\xed\xa0\x80", [b"\0\xff\xfe", b"\xed\xa0\x80"]),
    ],
)
def test_a_line_is_what_stands_before_its_end(tmp_path: Path, data: bytes, expected: list[bytes]) -> None:
    assert list(chain(*groups_of(tmp_path / "f", data))) == expected


def test_long_files_come_in_groups_that_keep_the_order(tmp_path: Path) -> None:
    expected = [b"%d" % number * (number % 7) for number in range(50_000)]
    groups = groups_of(tmp_path / "f", b"\n".join(expected) + b"\n")
    assert list(chain(*groups)) == expected
    assert len(groups) > 1
    assert max(map(len, groups)) <= GROUP_LINES


def test_a_line_longer_than_a_read_is_whole(tmp_path: Path) -> None:
    long = os.urandom(3 * lines.READ_BYTES).replace(b"\n", b"")
    assert list(chain(*groups_of(tmp_path / "f", b"a\n" + long + b"\nb"))) == [b"a", long, b"b"]


def test_a_line_that_no_request_can_hold_fails_after_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1_000_000)
    (tmp_path / "f").write_bytes(b"a\nb\n" + bytes(2_000_000))
    descriptor = os.open(tmp_path / "f", os.O_RDONLY)
    found = line_groups(descriptor)
    assert next(found) == [b"a", b"b"]
    with pytest.raises(LineTooLong):
        next(found)
    os.close(descriptor)


def test_a_pipe_gives_what_it_has_without_waiting_for_more() -> None:
    """A slow writer's lines are sent as they come."""
    readable, writable = os.pipe()
    found = line_groups(readable)
    os.write(writable, b"one\ntwo\nthr")
    assert next(found) == [b"one", b"two"]
    os.write(writable, b"ee\n")
    assert next(found) == [b"three"]
    os.write(writable, b"rest")
    os.close(writable)
    assert list(found) == [[b"rest"]]
    os.close(readable)


def test_what_is_ready_goes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINGER_S", 60.0)  # the writer below is never waited for that long
    readable, writable = os.pipe()

    def write() -> None:
        for number in range(1000):
            os.write(writable, b"%d\n" % number)
        os.close(writable)

    writer = threading.Thread(target=write)
    writer.start()
    groups = list(line_groups(readable))
    writer.join()
    assert groups == [[b"%d" % number for number in range(1000)]]
    os.close(readable)


def test_reads_are_told(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x\n" * 100_000)
    sizes: list[int] = []
    descriptor = os.open(tmp_path / "f", os.O_RDONLY)
    assert sum(map(len, line_groups(descriptor, sizes.append))) == 100_000
    assert sum(sizes) == 200_000
    os.close(descriptor)
