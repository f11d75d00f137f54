"""murmur2 as Java's client computes it: the vectors of Kafka's own UtilsTest, and kafka-python as a second opinion."""

from __future__ import annotations

import random

import pytest

from kbroker.protocol.partitioner import murmur2, partition_of

JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", JAVA)
def test_murmur2_has_the_values_of_kafkas_tests(key) -> None:
    assert murmur2(key) == JAVA[key] & 0xFFFFFFFF
    for count in (1, 3, 12, 100):
        assert partition_of(key, count) == (JAVA[key] & 0x7FFFFFFF) % count


def test_kafka_python_agrees() -> None:
    reference = pytest.importorskip("kafka.partitioner.default").murmur2
    rng = random.Random(3)
    for length in [*range(20), 100, 1001]:
        key = rng.randbytes(length)
        assert murmur2(key) == reference(key) & 0xFFFFFFFF
