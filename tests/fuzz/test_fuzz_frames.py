"""Random and mutated frames: parsers never crash, and a broker that got them still serves the others."""

from __future__ import annotations

import logging
import os
import random
import socket
import struct
import time

from kbroker._fast.requests.fetch_codec import decode_fetch
from kbroker._fast.requests.produce_codec import decode_produce
from kbroker.protocol.codec import encode_request_frame
from tests.unit.wire.wire_harness import (
    Client,
    batch,
    fetch_request,
    produce_many,
    produce_request,
    produced,
    wire_broker,
)

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "3"))


def mutated(rng: random.Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.randint(1, 6)):
        kind = rng.randrange(5)
        at = rng.randrange(len(data)) if data else 0
        if kind == 0 and data:
            data[at] = rng.randrange(256)
        elif kind == 1 and data:
            data[at] = rng.choice((0, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del data[at : at + rng.randint(1, 8)]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            data[at : at + 4] = rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0"))
    return bytes(data)


def good_frames() -> list[bytes]:
    frames = []
    for version in range(3, 14):
        topic = b"i" * 16 if version == 13 else "t"
        for records in (None, batch(b"a", b"b"), batch(b"a", codec="lz4")):
            request = produce_many([(topic, [(0, records), (1, records)])], timeout_ms=50)
            frames.append(bytes(encode_request_frame(0, version, 1, "c", request))[4:])
    for version in range(4, 18):
        topic = b"i" * 16 if version >= 13 else "t"
        session = (1, 1) if version >= 7 else (0, -1)
        request = fetch_request((topic, 0, 0), (topic, 1, 0), session=session)
        frames.append(bytes(encode_request_frame(1, version, 1, "c", request))[4:])
    return frames


def test_parsers_survive_any_bytes():
    rng = random.Random(20)
    frames = good_frames()
    end = time.monotonic() + SECONDS
    parsed = 0
    while time.monotonic() < end:
        frame = mutated(rng, rng.choice(frames))
        parsed += (decode_produce(frame) is not None) + (decode_fetch(frame) is not None)
    assert parsed > 0


def test_a_broker_survives_any_bytes(tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    rng = random.Random(21)
    frames = good_frames()
    with wire_broker(tmp_path, {"t": 2}) as broker, Client(broker) as steady:
        end = time.monotonic() + SECONDS
        rounds = 0
        while time.monotonic() < end:
            with Client(broker) as client:
                client.socket.settimeout(0.02)
                try:
                    for _ in range(rng.randint(1, 4)):
                        frame = mutated(rng, rng.choice(frames))
                        length = len(frame) if rng.random() < 0.9 else rng.randint(-5, 2 * len(frame))
                        client.socket.sendall(struct.pack(">i", length) + frame)
                    if rng.random() < 0.5:
                        client.socket.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # the broker has closed already
            rounds += 1
            if rounds % 50 == 0:
                assert produced(steady.ask(0, 9, produce_request(batch(b"steady")))).error_code == 0
        assert produced(steady.ask(0, 9, produce_request(batch(b"steady")))).error_code == 0
    assert not caplog.records  # malformed input is a warning, never an internal error
