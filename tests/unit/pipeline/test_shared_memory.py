"""Batches in memory shared with a reader, which is here a thread that maps it as the JVM does."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from kbroker.limits import MIB
from kbroker.pipeline.shared_memory import PLACE_BYTES, PLACES, PLACES_BYTES, SEND, SENT, share

SECRET = "0123456789abcdef0123456789abcdef"
PLACE = struct.Struct(">iiqq")
SCHEMA = pa.schema([("value", pa.binary()), ("offset", pa.int64())])


def batch(number: int, value_bytes: int = 10, rows: int = 3) -> pa.RecordBatch:
    values = [bytes([number % 256]) * value_bytes for _ in range(rows)]
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary()), pa.array([number] * rows)], schema=SCHEMA)


class Reader(threading.Thread):
    """Reads up to `wanted` batches, then hangs up. It answers for those before only when `held` are unanswered.

    From batch `blind_from` on it cannot open the memory.
    """

    def __init__(self, wanted: int = 1 << 30, held: int = 1, blind_from: int = 1 << 30) -> None:
        super().__init__(daemon=True)
        self.wanted, self.held, self.blind_from = wanted, held, blind_from
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.secret = b""
        self.batches: list[pa.RecordBatch] = []
        self.file_bytes: list[int] = []
        self.starts: list[int] = []
        self.start()

    def run(self) -> None:
        connection, _ = self.server.accept()
        with connection, connection.makefile("rb") as told:
            self.secret = told.read(len(SECRET))
            unanswered = 0
            asked = False
            while len(self.batches) < self.wanted and len(place := told.read(PLACE.size)) == PLACE.size:
                _, file, _, length = PLACE.unpack(place)
                if file == SENT:
                    self.batches.append(pa.ipc.read_record_batch(pa.py_buffer(told.read(length)), SCHEMA))
                elif len(self.batches) < self.blind_from:
                    self.take(*PLACE.unpack(place))
                else:
                    if not asked:
                        connection.sendall(bytes(unanswered) + bytes([SEND]))
                        unanswered = 0
                    asked = True
                    continue
                unanswered += 1
                if unanswered == self.held:
                    connection.sendall(bytes(unanswered))
                    unanswered = 0

    def take(self, process: int, file: int, start: int, length: int) -> None:
        descriptor = os.open(f"/proc/{process}/fd/{file}", os.O_RDONLY)
        try:
            self.file_bytes.append(os.fstat(descriptor).st_size)
            with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
                message = mapped[start : start + length]
        finally:
            os.close(descriptor)
        self.starts.append(start)
        self.batches.append(pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA))

    def ended(self) -> Reader:
        self.join()
        self.server.close()
        return self


def test_a_reader_finds_every_batch_in_order_and_spark_gets_no_row() -> None:
    reader = Reader()
    sent = [batch(number) for number in range(10)]
    assert list(share(iter(sent), reader.port, SECRET)) == []
    assert reader.ended().batches == sent
    assert reader.secret == SECRET.encode()


def test_as_many_batches_as_there_are_places_are_in_use_at_once() -> None:
    reader = Reader(held=PLACES)
    sent = [batch(number) for number in range(3 * PLACES)]
    list(share(iter(sent), reader.port, SECRET))
    assert reader.ended().batches == sent
    assert len(set(reader.starts[:PLACES])) == PLACES


def test_a_batch_beyond_a_place_is_alone_in_a_larger_file_which_shrinks_after_it() -> None:
    reader = Reader()
    sent = [batch(0), batch(1, value_bytes=3 * MIB), batch(2), batch(3, value_bytes=PLACE_BYTES, rows=1), batch(4)]
    list(share(iter(sent), reader.port, SECRET))
    assert reader.ended().batches == sent
    assert reader.starts[1] == reader.starts[3] == PLACES_BYTES
    assert reader.file_bytes[1] > PLACES_BYTES + 9 * MIB
    assert reader.file_bytes[0] == reader.file_bytes[2] == reader.file_bytes[4] == PLACES_BYTES


@pytest.mark.parametrize("blind_from", [0, 1, 5])
def test_a_reader_that_cannot_open_the_memory_gets_the_bytes(blind_from: int) -> None:
    reader = Reader(blind_from=blind_from)
    sent = [batch(number, value_bytes=3 * MIB if number == 6 else 10) for number in range(12)]
    assert list(share(iter(sent), reader.port, SECRET)) == []
    assert reader.ended().batches == sent
    assert len(reader.starts) == blind_from


def test_a_reader_that_hangs_up_ends_the_task_without_an_error() -> None:
    reader = Reader(wanted=2)
    made = 0

    def endless() -> Iterator[pa.RecordBatch]:
        nonlocal made
        while True:
            made += 1
            yield batch(made)

    assert list(share(endless(), reader.port, SECRET)) == []
    assert len(reader.ended().batches) == 2
    assert made <= 2 + PLACES + 1


def test_without_a_batch_no_reader_is_sought() -> None:
    assert list(share(iter(()), 1, SECRET)) == []


def test_an_error_of_the_batches_is_raised_and_ends_the_connection() -> None:
    reader = Reader()

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(0)
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        list(share(failing(), reader.port, SECRET))
    assert reader.ended().batches == [batch(0)]


def test_no_file_stays_open_after_the_end() -> None:
    before = set(os.listdir("/proc/self/fd"))
    reader = Reader()
    list(share(iter([batch(0)]), reader.port, SECRET))
    reader.ended()
    assert set(os.listdir("/proc/self/fd")) <= before
