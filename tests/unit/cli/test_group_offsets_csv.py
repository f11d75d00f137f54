"""CSV files of offsets, as kafka-consumer-groups.sh writes and reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli.group.offsets_csv import read_offsets, write_offsets
from kbroker.option_values import ConfigError

OFFSETS = {("orders", 0): 5, ("orders", 10): 0, ("payments", 0): 2**63 - 1}


def read(folder: Path, text: str | bytes, group_id: str = "g") -> dict[tuple[str, int], int]:
    path = folder / "offsets.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_offsets(str(path), group_id)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert write_offsets(OFFSETS) == "orders,0,5\norders,10,0\npayments,0,9223372036854775807\n"
    assert read(tmp_path, write_offsets(OFFSETS)) == OFFSETS


def test_of_a_file_with_several_groups_one_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, 'other,t,0,1\n"g",t,0,2\r\n\ng,t,1,3\n') == {("t", 0): 2, ("t", 1): 3}


def test_names_that_kafka_quotes_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, '"a-topic-with-a-name-of-more-than-24-characters",0,1\n') == {
        ("a-topic-with-a-name-of-more-than-24-characters", 0): 1
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no offsets"),
        ("other,t,0,1\n", "has no offsets of group 'g'"),
        ("t,0,1\nt,0\n", "line 2: neither topic,partition,offset nor group,topic,partition,offset"),
        ("t,x,1\n", "line 1: 'x' is not a whole number"),
        ("t,-1,1\n", "line 1: -1 is not a partition"),
        ("t,2147483648,1\n", "line 1: 2147483648 is not a partition"),
        ("t,0,\n", "line 1: '' is not a whole number"),
        (f"t,0,{2**63}\n", "is not a usable number"),
        ("t,0,1\nt,0,2\n", "line 2: t:0 is named before"),
        (",0,1\n", "line 1: no topic"),
        ('t,0,"1\n', "line 1: "),
        (b"\xff\x00\n", "is not a text file"),
    ],
)
def test_the_line_that_is_wrong_is_named(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["missing", ".", "a\0b"])
def test_what_is_no_file_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot read|is not a text file"):
        read_offsets(str(tmp_path / name), "g")
