"""Random bytes and mutated messages for every API and version: ProtocolError or a message, in bounded time."""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kbroker.errors import ProtocolError
from kbroker.protocol import codec, headers, records
from kbroker.protocol.api_keys import ApiKey, request_class, response_class
from kbroker.protocol.compiler import decode_whole, encode
from kbroker.protocol.fields import Message
from tests.reference.protocol_values import random_message

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "4"))
SEED = int(os.environ.get("KBROKER_FUZZ_SEED", "20261121"))
# Of the processor. One decode of these small inputs takes microseconds; only a stuck loop exceeds this.
DECODE_SECONDS_MAX = 2.0
# An object of a message takes up to some hundred bytes for each byte that announces it.
PEAK_BYTES_PER_INPUT_BYTE = 1_000
PEAK_BYTES_FLOOR = 300_000

EXTREMES = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\0\0\0",
    b"\x7f\xff",
    b"\x80\0",
    b"\xff\xff\xff\xff\x0f",
    b"\0",
)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to four small damages: flipped, overwritten with an extreme length, removed, doubled, cut, spliced."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(6)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            extreme = rng.choice(EXTREMES)
            out[at : at + len(extreme)] = extreme
        elif kind == 2:
            del out[at : at + rng.randrange(1, 5)]
        elif kind == 3:
            out[at:at] = out[at : at + rng.randrange(1, 20)]
        elif kind == 4:
            del out[at:]
        else:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(out)


def attempt(read: Callable[[bytes], Any], data: bytes) -> Any:
    """Reads `data`; anything but a message or a ProtocolError fails the test, with the input in the message."""
    start = time.thread_time()
    try:
        return read(data)
    except ProtocolError:
        return None
    except Exception as error:
        pytest.fail(f"{type(error).__name__}: {error} for {data.hex()}")
    finally:
        assert time.thread_time() - start < DECODE_SECONDS_MAX, data.hex()


def cases(cls: type[Message], version: int, rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return rng.randbytes(rng.choice((0, 1, 4, 20, 200)))
    return mutate(encode(random_message(cls, version, rng), version), rng)


def run(classes: list[type[Message]], share: float, read: Callable[[type[Message], int, bytes], Any]) -> None:
    """All classes and versions in turn until this test's share of the time is used."""
    targets = [(cls, version) for cls in classes for version in range(cls.VERSIONS.first, cls.VERSIONS.last + 1)]
    deadline = time.monotonic() + SECONDS * share
    rounds = 0
    while rounds == 0 or time.monotonic() < deadline:
        for cls, version in targets:
            rng = random.Random(f"{SEED} {rounds} {cls.__name__} {version}")
            data = cases(cls, version, rng)
            message = attempt(partial(read, cls, version), data)
            if message is not None:
                again = encode(message, version)  # what was read can be written and read again
                # compared as bytes: a damaged float may be not-a-number, which equals nothing
                assert encode(decode_whole(cls, version, again), version) == again, data.hex()
        rounds += 1


def test_requests_decode_or_raise_a_protocol_error() -> None:
    run(
        [request_class(key) for key in ApiKey],
        0.5,
        lambda cls, version, body: codec.decode_request(cls.API_KEY, version, memoryview(body)),
    )


def test_responses_decode_or_raise_a_protocol_error() -> None:
    run([response_class(key) for key in ApiKey], 0.25, decode_whole)


def test_log_records_decode_or_raise_a_protocol_error() -> None:
    rng = random.Random(SEED)
    deadline = time.monotonic() + SECONDS * 0.1
    rounds = 0
    while rounds == 0 or time.monotonic() < deadline:
        for cls in records.WRITTEN_VERSION:
            version = rng.randint(cls.VERSIONS.first, cls.VERSIONS.last)
            data = mutate(records.encode_record(random_message(cls, version, rng), version), rng)
            attempt(partial(records.decode_record, cls), data)
            attempt(records.decode_group_key, data)
        rounds += 1


def test_headers_decode_or_raise_a_protocol_error() -> None:
    rng = random.Random(SEED)
    deadline = time.monotonic() + SECONDS * 0.1
    rounds = 0
    while rounds == 0 or time.monotonic() < deadline:
        key = rng.choice(list(ApiKey))
        header = headers.RequestHeader(
            key, rng.randrange(-2, 20), rng.randrange(2**31), rng.choice((None, "", "client"))
        )
        attempt(headers.decode_request_header, mutate(headers.encode_request_header(header), rng))
        attempt(headers.decode_request_header, rng.randbytes(rng.randrange(30)))
        rounds += 1


def test_memory_is_bounded_by_the_input() -> None:
    rng = random.Random(SEED)
    classes = [request_class(key) for key in ApiKey]
    for cls in classes:
        for version in (cls.VERSIONS.first, cls.VERSIONS.last):
            attempt(partial(decode_whole, cls, version), encode(cls(), version))
    for cls in classes:
        for version in (cls.VERSIONS.first, cls.VERSIONS.last):
            body = mutate(encode(random_message(cls, version, rng), version), rng) + b"\1" * 2_000
            tracemalloc.start()
            attempt(partial(decode_whole, cls, version), body)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < PEAK_BYTES_FLOOR + PEAK_BYTES_PER_INPUT_BYTE * len(body), (cls, version, peak)
