"""What the heartbeats of idle group members cost the broker: CPU of a real broker behind real sockets.

    python -m bench.idle_members [--protocol classic|consumer] [--members 5000] [--interval 3] [--seconds 20]

Members are in groups of their own and share connections; each sends a heartbeat once per interval, by default that of
its protocol (3 and 5 seconds), evenly spread.
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

from kbroker.protocol.apis.groups.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kbroker.protocol.apis.groups.k12_heartbeat import HeartbeatRequest
from kbroker.protocol.apis.groups.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kbroker.protocol.apis.groups.k68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kbroker.protocol.apis.topics.k19_create_topics import CreatableTopic, CreateTopicsRequest
from kbroker.protocol.codec import decode_response_frame, encode_request_frame
from tests.integration.broker_process import BrokerProcess

CONNECTIONS = 250
JOIN, SYNC, HEARTBEAT, CONSUMER_HEARTBEAT, CREATE = (11, 3), (14, 2), (12, 4), (68, 1), (19, 5)
INTERVAL_SECONDS = {"classic": 3.0, "consumer": 5.0}
TOPIC = "orders"


class Connection:
    """One connection of several members."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames: list[bytes] = []

    def ask(self, api: tuple[int, int], request: Any) -> Any:
        key, version = api
        self.socket.sendall(encode_request_frame(key, version, 1, "idle", request))
        return decode_response_frame(key, version, memoryview(self.receive()))[1]

    def receive(self) -> bytes:
        (length,) = struct.unpack(">i", self._read(4))
        return self._read(length)

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            if not piece:
                raise ConnectionError("closed by the broker")
            data += piece
        return data

    def join(self, group_id: str) -> None:
        """Makes a group of one member, and its heartbeat."""
        joined = self.ask(
            JOIN,
            JoinGroupRequest(
                group_id=group_id,
                session_timeout_ms=45_000,
                rebalance_timeout_ms=60_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(40))],
            ),
        )
        plan = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(80))]
        synced = self.ask(
            SYNC,
            SyncGroupRequest(group_id=group_id, generation_id=1, member_id=joined.member_id, assignments=plan),
        )
        assert (joined.error_code, synced.error_code) == (0, 0)
        request = HeartbeatRequest(group_id=group_id, generation_id=1, member_id=joined.member_id)
        self.frames.append(encode_request_frame(*HEARTBEAT, 1, "idle", request))

    def join_consumer_group(self, group_id: str) -> None:
        """Makes a consumer group (KIP-848) of one member, and its heartbeat."""
        joined = self.ask(
            CONSUMER_HEARTBEAT,
            ConsumerGroupHeartbeatRequest(
                group_id=group_id,
                member_id=f"member-of-{group_id}",
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=[TOPIC],
                topic_partitions=[],
            ),
        )
        assert joined.error_code == 0, joined
        request = ConsumerGroupHeartbeatRequest(
            group_id=group_id, member_id=joined.member_id, member_epoch=joined.member_epoch
        )
        self.frames.append(encode_request_frame(*CONSUMER_HEARTBEAT, 1, "idle", request))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def send_heartbeats(connections: list[Connection], interval: float, seconds: float) -> int:
    """All heartbeats that are due in `seconds`, at an even pace; how many were answered."""
    turns = [(connection, frame) for connection in connections for frame in connection.frames]
    turns = [turns[index % len(turns)] for index in range(0, len(turns) * 997, 997)]  # neighbours do not share sockets
    begun, sent = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < seconds:
        due = int(passed / interval * len(turns))
        batch = [turns[number % len(turns)] for number in range(sent, due)]
        for connection, frame in batch:
            connection.socket.sendall(frame)
        for connection, _ in batch:
            answer = connection.receive()  # correlation id, no tags, throttle time, error code
            assert answer[9:11] == b"\0\0", answer
        sent = due
        time.sleep(0.002)
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", choices=sorted(INTERVAL_SECONDS), default="classic")
    parser.add_argument("--members", type=int, default=5_000)
    parser.add_argument("--interval", type=float, help="seconds between two heartbeats of a member")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure")
    options = parser.parse_args()
    interval = options.interval or INTERVAL_SECONDS[options.protocol]
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder) / "data", "--object-store", f"file:{folder}/objects").start()
        try:
            connections = [Connection((broker.host, broker.port)) for _ in range(min(CONNECTIONS, options.members))]
            connections[0].ask(
                CREATE,
                CreateTopicsRequest(topics=[CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)]),
            )
            for member in range(options.members):
                connection, group_id = connections[member % len(connections)], f"idle-{member}"
                (connection.join if options.protocol == "classic" else connection.join_consumer_group)(group_id)
            before = cpu_seconds(broker.pid)
            time.sleep(5)
            silent = (cpu_seconds(broker.pid) - before) / 5
            before = cpu_seconds(broker.pid)
            sent = send_heartbeats(connections, interval, options.seconds)
            used = cpu_seconds(broker.pid) - before - silent * options.seconds
        finally:
            broker.kill()
    print(
        f"{options.members} {options.protocol} members, {sent} heartbeats in {options.seconds:.0f} s: "
        f"{used / options.seconds:.1%} of a core, {used / sent * 1e6:.0f} us each; without them {silent:.1%}"
    )


if __name__ == "__main__":
    main()
