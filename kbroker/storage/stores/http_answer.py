"""The answer to an HTTP/1.1 request: its head is parsed here, its body goes into the caller's memory.

http.client takes 0.16 ms for the head alone, because it parses headers as e-mail. This parser knows the part of the
grammar (RFC 9112) that object stores send. It skips what it does not understand; then no length or name is known.
"""

from __future__ import annotations

import errno
import http.client
import re
import socket
import ssl

from kbroker.limits import KIB

HEAD_BYTES_MAX = 64 * KIB  # of all heads of one answer
_PIECE_BYTES = 16 * KIB
_END = re.compile(rb"\r?\n\r?\n")
_END_BYTES_MAX = 4
_LINE_END = re.compile(r"\r?\n")
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: (.*))?")
_WAIT_ALL = getattr(socket, "MSG_WAITALL", 0)


class Answer:
    """The head of an answer; interim ones (100 Continue) are skipped.

    Attributes:
        status, reason: of the first line.
        length: of the body, bytes; None where the head does not say.
        will_close: the server closes the connection after the body.

    Raises:
        BadStatusLine, HTTPException: not an HTTP answer, or its head is too long.
        ConnectionResetError: the connection ended before the head did.
        OSError: as the socket raises it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = b""  # received and not consumed
        self._head_bytes = 0
        while True:
            first, *lines = _LINE_END.split(self._head())
            match = _STATUS.fullmatch(first)
            if match is None:
                raise http.client.BadStatusLine(first[:100])
            if match[2] != "100":
                break
        self.status = int(match[2])
        self.reason = (match[3] or "").strip()
        self._headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip()
            self._headers[name] = f"{self._headers[name]}, {value}" if name in self._headers else value
        length = self._headers.get("content-length", "")
        is_length = length.isdecimal() and len(length) < 20 and "transfer-encoding" not in self._headers
        self.length = int(length) if is_length else None
        self.will_close = match[1] == "0" or "close" in self._headers.get("connection", "").lower()

    @property
    def is_over(self) -> bool:
        """After the body: whether another request may follow. The server keeps the connection open, and no stray bytes
        have arrived."""
        return not self.will_close and not self._rest

    def getheader(self, name: str) -> str:
        """The value of a header, "" if absent; repeated headers are joined by commas."""
        return self._headers.get(name.lower(), "")

    def fill(self, out: memoryview) -> None:
        """Fills `out` with the body's next bytes. Raises ConnectionError when it ends early, TimeoutError."""
        filled = min(len(self._rest), len(out))
        out[:filled] = self._rest[:filled]
        self._rest = self._rest[filled:]
        # In one call if the socket can: the thread takes the GIL once per body and not once per piece.
        flags = 0 if isinstance(self._socket, ssl.SSLSocket) else _WAIT_ALL
        while filled < len(out):
            try:
                count = self._socket.recv_into(out[filled:], 0, flags)
            except BlockingIOError:
                raise TimeoutError(errno.ETIMEDOUT, "nothing was received") from None
            if not count:
                raise ConnectionError(f"the connection ended after {filled} of {len(out)} bytes")
            filled += count

    def _head(self) -> str:
        searched = 0
        while (end := _END.search(self._rest, searched)) is None:
            searched = max(0, len(self._rest) - _END_BYTES_MAX + 1)
            if self._head_bytes + len(self._rest) > HEAD_BYTES_MAX:
                raise http.client.HTTPException("the answer's head does not end")
            more = self._socket.recv(_PIECE_BYTES)
            if not more:
                raise ConnectionResetError("the connection ended before the answer's head did")
            self._rest += more
        self._head_bytes += end.end()
        head, self._rest = self._rest[: end.start()], self._rest[end.end() :]
        return head.decode("latin-1")
