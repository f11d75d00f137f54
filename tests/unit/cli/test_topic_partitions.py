"""Topics with partitions as a person types them."""

from __future__ import annotations

import pytest

from kbroker.cli.topic_partitions import parse_topic_partition
from kbroker.option_values import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", ("orders", None)),
        ("orders:0", ("orders", [0])),
        ("orders:3,1,3", ("orders", [1, 3])),
        (" a.b-c_d:2147483647 ", ("a.b-c_d", [2147483647])),
    ],
)
def test_a_topic_may_name_partitions(text: str, expected: tuple[str, list[int] | None]) -> None:
    assert parse_topic_partition(text) == expected


@pytest.mark.parametrize("text", ["", " ", ":1"])
def test_a_topic_is_needed(text: str) -> None:
    with pytest.raises(ConfigError, match="names no topic"):
        parse_topic_partition(text)


@pytest.mark.parametrize("text", ["t:", "t:,", "t:1,", "t:x", "t:-1", "t:1:2", "t:2147483648", "t:1.0", "t:²", "t:1-3"])
def test_a_partition_is_a_number(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a partition"):
        parse_topic_partition(text)
