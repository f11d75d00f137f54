"""The answer to an HTTP/1.1 request: its head is parsed here, its body goes into the caller's memory.

http.client takes 0.16 ms for the head alone, as it parses headers like those of e-mail. Of the grammar (RFC 9112) this
takes what object stores send; what it does not understand it passes over, and then no length or name is known.
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
    """The head of an answer behind those that only say that it will come (100 Continue).

    Attributes:
        status, reason: of the first line.
        length: of the body, bytes; None where the head does not say it.
        will_close: the server ends the connection behind the body.

    Raises:
        BadStatusLine, HTTPException: this is no answer, or its head is too long.
        ConnectionResetError: the connection ended before the head did.
        OSError: as the socket raises it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = b""  # what has come and is not taken
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
        """Behind the body: another request may follow. The server keeps the connection, and nothing came that belongs
        to no answer."""
        return not self.will_close and not self._rest

    def getheader(self, name: str) -> str:
        """The value of a header; empty without one, those of several with commas between."""
        return self._headers.get(name.lower(), "")

    def fill(self, out: memoryview) -> None:
        """The next bytes of the body. Raises ConnectionError when it ends before, TimeoutError when nothing comes."""
        filled = min(len(self._rest), len(out))
        out[:filled] = self._rest[:filled]
        self._rest = self._rest[filled:]
        # In one call if the socket can: the thread takes the interpreter lock once for a body and not for its pieces.
        flags = 0 if isinstance(self._socket, ssl.SSLSocket) else _WAIT_ALL
        while filled < len(out):
            try:
                count = self._socket.recv_into(out[filled:], 0, flags)
            except BlockingIOError:
                raise TimeoutError(errno.ETIMEDOUT, "nothing came") from None
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
