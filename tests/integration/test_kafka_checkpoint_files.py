"""Kafka's text checkpoints, whole, cut at each byte, corrupt and oddly spelled: read or refused as by Apache Kafka."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import java_tools
import pytest
from conftest import require
from java_tools import JVM

from kbroker.errors import CorruptionError
from kbroker.exchange.kafka_log.checkpoint_file import parse_leader_epochs, parse_partition_offsets

pytestmark = pytest.mark.java

GIVEN_UP = "given up"
EPOCHS = b"0\n3\n0 0\n5 17\n6 9223372036854775807\n"
OFFSETS = b"0\n3\norders 0 5\norders 12 0\na.b_c-d 3 9223372036854775807\n"
SPELLINGS = [
    "+0\n-0\n", "00\n01\n3 0\n", " 0\n", "0 \n", "0\n 1\n3 0\n", "0\n0x1\n", "1\n0\n", "2147483648\n", "0\n-1\n",
    "0\n2147483647\n", "0\n0\n\n", "0\n1\n\n", "0\n1\n3 0\n\n", "0\r\n1\r\n3 0\r\n", "0\r1\r3 0\r", "0\n\r1\n3 0\n",
    "0\n1\n 3 0\n", "0\n1\n3\t\x0b\f 0 \n", "0\n1\n3\x1c0\n", "0\n1\n3\x850\n", "0\n1\n3\u20280\n", "0\n1\n3\xa00\n",
    "0\n1\n3 1_0\n", "0\n1\n3 0x1\n", "0\n1\n3 1.0\n", "0\n1\n3 1e3\n", "0\n1\n3 \u0663\n", "0\n1\n3 \U0001d7d8\n",
    "0\n1\n3 + 1\n", "0\n1\n+3 -1\n", "0\n1\n3 --1\n", "0\n1\n-1 -5\n", "0\n2\n5 0\n5 1\n", "0\n3\n5 9\n6 1\n4 3\n",
    "0\n1\n2147483647 1\n", "0\n1\n2147483648 1\n", "0\n1\n-2147483648 -9223372036854775808\n",
    "0\n1\n0 9223372036854775808\n", "0\n1\n0 00000000000000000000000000000001\n", "0\n2\na 0 5\na 0 6\n",
    "0\n2\na 0 5\na 00 6\n", "0\n1\na -1 -5\n", "0\n1\n 0 5\n", "0\n1\na\tb 0 5\n", "0\n1\n\u0663 0 1\n",
    "0\n1\n\U0001d7d8 0 1\n", "0\n1\na 0 5 6\n", "0\n1\na 0\n", "\ufeff0\n", "\0" * 30, "0\n\0\n", "version: 0\n",
]  # fmt: skip


def cases() -> list[bytes]:
    found = [text.encode() for text in SPELLINGS] + [b"\xff", b"0\n1\n\xed\xa0\x80 0 1\n"]
    for whole in (EPOCHS, OFFSETS):
        found += [whole[:length] for length in range(len(whole) + 1)]
        chance = random.Random(17)
        for _ in range(200):
            rotten = bytearray(whole)
            rotten[chance.randrange(len(rotten))] ^= 1 << chance.randrange(8)
            found.append(bytes(rotten))
    return found


def ours(data: bytes, kind: str) -> str:
    try:
        if kind == "epochs":
            return "".join(f"{epoch} {start};" for epoch, start in parse_leader_epochs(data))
        offsets = parse_partition_offsets(data, "x")
    except CorruptionError:
        return GIVEN_UP
    rows = sorted((f"{topic} {partition}", offset) for (topic, partition), offset in offsets.items())
    return "".join(f"{partition} {offset};" for partition, offset in rows)


def test_each_file_is_read_or_refused_as_by_kafka(tmp_path: Path) -> None:
    require(not java_tools.missing(), java_tools.missing())
    made = cases()
    folder = tmp_path / "logs" / "t-0"
    folder.mkdir(parents=True)
    for number, data in enumerate(made):
        (folder / str(number)).write_bytes(data)
    class_path = java_tools.compiled_apps()
    done = subprocess.run(
        ["java", *JVM, "-cp", class_path, "CheckpointFiles", str(folder)], capture_output=True, timeout=60, check=True
    )
    differing = {}
    lines = done.stdout.decode().split("\n")[:-1]
    for line in lines:
        number, kind, theirs = line.split("\t", 2)
        mine = ours(made[int(number)], kind)
        if mine != theirs:
            differing[made[int(number)], kind] = (theirs, mine)
    assert len(lines) == 2 * len(made)
    assert differing == {}
    assert sum(GIVEN_UP in line for line in lines) > 100
