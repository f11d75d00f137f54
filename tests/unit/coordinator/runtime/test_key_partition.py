import pytest

from kbroker.coordinator.runtime.key_partition import group_partition, java_hash


@pytest.mark.parametrize(("group", "partition"), [("kbroker-group", 46), ("txn-1", 10), ("polygenelubricants", 0)])
def test_golden_vectors(group: str, partition: int) -> None:
    assert group_partition(group, 50) == partition


def test_the_hash_equals_javas() -> None:
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert java_hash("") == 0
    assert java_hash("\U0001f600") == 31 * 0xD83D + 0xDE00  # surrogate pair: two chars
