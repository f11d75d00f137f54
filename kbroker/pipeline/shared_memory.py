"""Hands a task's Arrow batches to its reader in the JVM by memory that both have mapped.

Through Spark's socket each byte is copied seven times; here once, out of the columns. The reader is told where a batch
is (SharedReader.java), and answers with a byte when it has used it. A reader that may not open another process's file
asks for the bytes instead, once: it then gets those of every batch that it has not used, and of all after it.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from kbroker.limits import MIB

PLACES = 4
PLACE_BYTES = 2 * MIB  # a larger batch has the memory for itself
PLACES_BYTES = PLACES * PLACE_BYTES
SENT = -1  # in place of a file: the bytes follow
SEND = 2  # an answer: the file cannot be opened
_PLACE = struct.Struct(">iiqq")  # process, its file, start and length


class ReaderGone(Exception):
    """The reader has the rows it wants, or its task was stopped."""


class SharedMemory:
    """Memory for the batches of one task, and the connection with its reader. Not thread-safe."""

    def __init__(self, port: int, secret: str, first: pa.RecordBatch) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.sendall(secret.encode())
        self._file = os.memfd_create("kbroker")
        os.ftruncate(self._file, PLACES_BYTES)
        self._file_bytes = PLACES_BYTES
        self._mapped = pa.memory_map(f"/proc/self/fd/{self._file}", "r+")
        self._writer = pa.ipc.new_stream(self._mapped, first.schema)
        self._writer.write_batch(first.slice(0, 0))  # so that the schema, which the reader knows, is not in a place
        self._place = 0
        self._in_use: deque[tuple[int, int]] = deque()  # start and length of each batch, in the order of use
        self._is_sent = False  # whether the reader gets the bytes

    def close(self) -> None:
        """Gives the memory up when the reader has used it. After an error too: the reader is to come upon that."""
        with suppress(ReaderGone):
            self.wait(0)
        self._connection.close()
        self._mapped.close()
        os.close(self._file)

    def send(self, batch: pa.RecordBatch) -> None:
        """Copies a batch into a free place, for which it may wait. Raises ReaderGone."""
        size = pa.ipc.get_record_batch_size(batch)
        if size > PLACE_BYTES:
            self.wait(0)
            self._resize(PLACES_BYTES + size)
            start = PLACES_BYTES
        else:
            self.wait(PLACES - 1)
            if self._file_bytes > PLACES_BYTES:
                self.wait(0)
                self._resize(PLACES_BYTES)
            start = self._place * PLACE_BYTES
            self._place = (self._place + 1) % PLACES
        self._mapped.seek(start)
        self._writer.write_batch(batch)
        self._in_use.append((start, self._mapped.tell() - start))
        self._tell(*self._in_use[-1])

    def wait(self, in_use: int) -> None:
        """Until at most so many batches are in use. Raises ReaderGone."""
        while len(self._in_use) > in_use:
            try:
                answers = self._connection.recv(len(self._in_use))
            except ConnectionError:
                answers = b""
            if not answers:
                raise ReaderGone
            for answer in answers:
                if answer == SEND:
                    self._send_bytes()
                else:
                    self._in_use.popleft()

    def _send_bytes(self) -> None:
        """From now on; the reader passes over what it was told before."""
        self._is_sent = True
        for start, length in self._in_use:
            self._tell(start, length)

    def _tell(self, start: int, length: int) -> None:
        try:
            if self._is_sent:
                self._connection.sendall(_PLACE.pack(os.getpid(), SENT, 0, length))
                self._mapped.seek(start)
                self._connection.sendall(self._mapped.read_buffer(length))
            else:
                self._connection.sendall(_PLACE.pack(os.getpid(), self._file, start, length))
        except ConnectionError:
            raise ReaderGone from None

    def _resize(self, size: int) -> None:
        self._mapped.resize(size)
        self._file_bytes = size


def share(batches: Iterator[pa.RecordBatch], port: int, secret: str) -> Iterator[pa.RecordBatch]:
    """Hands all batches to the reader at a port of this host, and yields none."""
    memory: SharedMemory | None = None
    try:
        for batch in batches:
            if memory is None:
                memory = SharedMemory(port, secret, batch)
            memory.send(batch)
            del batch  # before the next one is made
    except ReaderGone:
        pass
    finally:
        if memory is not None:
            memory.close()
    yield from ()
