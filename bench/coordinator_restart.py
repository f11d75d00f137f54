"""A restart of a real broker that coordinates many groups: from exec to the last group's offsets, after kill -9.

    python -m bench.coordinator_restart [--commits 10000000] [--groups 10000] [--offsets 10] [--held] [--single]

Offsets are committed through sockets by OffsetCommit requests of all a group's partitions, many in flight; after the
restart every group must answer with exactly the offsets committed last. With `--single` each request carries one
offset: the longest log for its content. With `--held` the object store is away meanwhile, so that the whole history is
in the write-ahead log; otherwise flushes and snapshots run as they do.

Preparing takes about 45 us for each offset, 8 minutes for 10 million; with `--single` twice as long.
"""

from __future__ import annotations

import argparse
import itertools
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from bench.idle_members import Connection, cpu_seconds
from kbroker.errors import ErrorCode
from kbroker.protocol.apis.groups.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kbroker.protocol.apis.groups.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kbroker.protocol.apis.groups.k10_find_coordinator import FindCoordinatorRequest
from kbroker.protocol.apis.topics.k19_create_topics import CreatableTopic, CreateTopicsRequest
from kbroker.protocol.codec import decode_response_frame, encode_request_frame
from tests.integration.broker_process import BrokerProcess

TOPIC = "orders.events"
CONNECTIONS = 8
IN_FLIGHT = 32  # requests of one connection
FETCHED_GROUPS = 100  # of one OffsetFetch
COMMIT, FETCH, FIND, CREATE = (8, 8), (9, 8), (10, 3), (19, 5)
_MAGIC_OFFSET = 0x1122334455667700  # stands for partition 0's offset in a template, + partition for the others
_RETRIABLE = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)


class Restart(NamedTuple):
    """What one restart took, in seconds since exec."""

    ready: float  # clients are accepted
    answered: float  # every group has answered right
    cpu: float
    load_text: str  # the broker's own lines about it


class CommitFrames:
    """The OffsetCommit frames of one group, made once; only the offsets in them change."""

    def __init__(self, group_id: str, partitions: range, single: bool) -> None:
        per_frame = [range(p, p + 1) for p in partitions] if single else [partitions]
        self._frames = [_template(group_id, part) for part in per_frame]
        self._single = single
        self.offsets_per_frame = 1 if single else len(partitions)

    def next(self, round_number: int, offset: int) -> bytearray:
        frame, places = self._frames[round_number % len(self._frames)]
        for partition, place in places:
            struct.pack_into(">q", frame, place, offset + partition)
        return frame


def _template(group_id: str, partitions: range) -> tuple[bytearray, list[tuple[int, int]]]:
    topics = [
        OffsetCommitRequestTopic(
            name=TOPIC,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=_MAGIC_OFFSET + partition, committed_leader_epoch=3
                )
                for partition in partitions
            ],
        )
    ]
    request = OffsetCommitRequest(
        group_id=group_id, generation_id_or_member_epoch=-1, member_id="", retention_time_ms=-1, topics=topics
    )
    frame = bytearray(encode_request_frame(*COMMIT, 1, "bench", request))
    return frame, [(p, frame.index(struct.pack(">q", _MAGIC_OFFSET + p))) for p in partitions]


def group_name(group: int) -> str:
    return f"consumers-{group}"


def create_topics(broker: BrokerProcess, offsets: int) -> None:
    """The topic whose offsets are committed, and the internal one."""
    connection = Connection((broker.host, broker.port))
    connection.ask(
        CREATE, CreateTopicsRequest(topics=[CreatableTopic(name=TOPIC, num_partitions=offsets, replication_factor=1)])
    )
    while connection.ask(FIND, FindCoordinatorRequest(key=group_name(0), key_type=0)).error_code:
        time.sleep(0.05)
    connection.socket.close()


@contextmanager
def without_store(objects: Path) -> Iterator[None]:
    """Takes the folder of the object store away: every flush fails."""
    away = objects.with_name("objects-away")
    objects.rename(away)
    objects.touch()
    try:
        yield
    finally:
        objects.unlink()
        away.rename(objects)


def prepare(broker: BrokerProcess, commits: int, groups: int, offsets: int, single: bool) -> dict[int, list[int]]:
    """Commits; the newest offset of each group's partitions."""
    connections = [Connection((broker.host, broker.port)) for _ in range(CONNECTIONS)]
    frames = [CommitFrames(group_name(group), range(offsets), single) for group in range(groups)]
    newest = {group: [-1] * offsets for group in range(groups)}
    requests = commits // frames[0].offsets_per_frame
    waiting: list[Connection] = []

    def settle(down_to: int) -> None:
        while len(waiting) > down_to:
            answer = waiting.pop(0).receive()
            assert answer[-5:-3] == b"\0\0", answer  # the last partition's error

    for number in range(requests):
        group, turn = number % groups, number // groups
        offset = turn * 100
        connection = connections[number % CONNECTIONS]
        connection.socket.sendall(frames[group].next(turn, offset))
        waiting.append(connection)
        for partition in [turn % offsets] if single else range(offsets):
            newest[group][partition] = offset + partition
        settle(CONNECTIONS * IN_FLIGHT)
    settle(0)
    for connection in connections:
        connection.socket.close()
    return newest


def ask_all(address: tuple[str, int], newest: dict[int, list[int]]) -> float:
    """Asks every group until all have answered with exactly these offsets; the moment of the last answer."""
    connections = [_connect(address) for _ in range(CONNECTIONS)]
    probe = list(newest)[:FETCHED_GROUPS]  # groups of nearly every shard
    while _wrong(probe, connections[0].ask(FETCH, _fetch(probe)), newest):
        time.sleep(0.01)
    missing = list(newest)
    while missing:
        asked = list(zip(_pieces(missing), itertools.cycle(connections)))
        for groups, connection in asked:
            connection.socket.sendall(encode_request_frame(*FETCH, 1, "bench", _fetch(groups)))
        frames = [connection.receive() for _, connection in asked]
        done = time.monotonic()
        missing = []
        for (groups, _), frame in zip(asked, frames, strict=True):
            missing += _wrong(groups, decode_response_frame(*FETCH, memoryview(frame))[1], newest)
    for connection in connections:
        connection.socket.close()
    return done


def _fetch(groups: list[int]) -> OffsetFetchRequest:
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_name(g), topics=None) for g in groups])


def _wrong(groups: list[int], response: Any, newest: dict[int, list[int]]) -> list[int]:
    """The groups that cannot answer yet. Raises if one has answered and is wrong."""
    later = []
    for group, answer in zip(groups, response.groups, strict=True):
        if answer.error_code in _RETRIABLE:
            later.append(group)
            continue
        assert not answer.error_code, answer
        found = {p.partition_index: p.committed_offset for t in answer.topics for p in t.partitions}
        assert found == {p: o for p, o in enumerate(newest[group]) if o >= 0}, (group, found)
    return later


def _connect(address: tuple[str, int]) -> Connection:
    while True:
        try:
            return Connection(address)
        except ConnectionRefusedError:
            time.sleep(0.01)


def _pieces(groups: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(groups), FETCHED_GROUPS):
        yield groups[start : start + FETCHED_GROUPS]


def restart(broker: BrokerProcess, newest: dict[int, list[int]]) -> Restart:
    """kill -9, start, ask every group."""
    broker.kill()
    log_length = len(broker.log())
    begun = time.monotonic()
    broker.start()
    ready = time.monotonic() - begun
    answered = ask_all((broker.host, broker.port), newest) - begun
    return Restart(ready, answered, cpu_seconds(broker.pid), broker.log()[log_length:])


def measure(folder: Path, options: Any) -> Iterator[Restart]:
    """Prepares one broker and restarts it."""
    flags = ["--object-store", f"file:{folder}/objects"]
    if options.held:
        flags += ["--wal-bytes", "16GiB"]
    broker = BrokerProcess(folder / "data", *flags).start()
    try:
        begun = time.monotonic()
        create_topics(broker, options.offsets)
        with without_store(folder / "objects") if options.held else nullcontext():
            newest = prepare(broker, options.commits, options.groups, options.offsets, options.single)
            cpu = cpu_seconds(broker.pid)
            broker.kill()
        seconds = time.monotonic() - begun
        print(f"{options.commits} commits in {seconds:.0f} s, broker CPU {cpu:.0f} s", flush=True)
        for _ in range(options.restarts):
            yield restart(broker, newest)
    finally:
        broker.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=10_000_000, help="offsets committed before the restart")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--offsets", type=int, default=10, help="partitions that each group commits")
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--single", action="store_true", help="one offset per request")
    parser.add_argument("--folder", type=Path, help="keep the data there; what it holds already is the older history")
    parser.add_argument("--held", action="store_true", help="the store is away: nothing is flushed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for result in measure(options.folder or Path(folder), options):
            print(
                f"ready after {result.ready:.2f} s, all groups right after {result.answered:.2f} s, "
                f"{result.cpu:.2f} s of CPU"
            )
            print("\n".join(line for line in result.load_text.splitlines() if "recovered" in line or "shards" in line))


if __name__ == "__main__":
    main()
