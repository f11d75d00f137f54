"""The control socket of a running broker: a Unix socket in its data directory, one JSON line each way.

Access to the directory is access to the socket. Commands: ``flush`` (answers when the flush is committed to the
bucket), ``proposals`` (looks for swap proposals of jobs, and answers when it has judged those it found), ``settings``
(those that the broker was started with, as TOML, secrets masked).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)
SOCKET_NAME = "control.sock"
REQUEST_BYTES_MAX = 65536
ANSWER_BYTES_MAX = 16 << 20  # settings come from files of 1 MiB at most


class _Address:
    """A path for bind and connect that is short however deep the data directory lies."""

    def __init__(self, data_dir: Path) -> None:
        self._fd = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._fd}/{SOCKET_NAME}"

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)


class ControlServer:
    """Accepts commands on one thread and runs each on a thread of its own. Commands may run in parallel."""

    def __init__(self, data_dir: Path, commands: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
        self._path = data_dir / SOCKET_NAME
        self._commands = commands
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path.unlink(missing_ok=True)
        with _Address(data_dir) as address:
            self._socket.bind(address)
        self._path.chmod(0o600)
        self._socket.listen(8)
        threading.Thread(target=self._run, name="kbroker-control", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="kbroker-control", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(10)
                request = json.loads(_read_line(connection, REQUEST_BYTES_MAX))
                command = self._commands.get(request["command"])
                if command is None:
                    raise ValueError(f"unknown command {request['command']!r}")
                answer = command(request)
            except Exception as error:
                answer = {"error": str(error) or type(error).__name__}
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                logger.debug("the control client closed its connection")

    def close(self) -> None:
        """Stops accepting and removes the socket; running commands are not interrupted."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # close alone would not wake the thread from accept
        self._socket.close()
        self._path.unlink(missing_ok=True)


def _read_line(connection: socket.socket, bytes_max: int) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = connection.recv(4096)
        if not piece or len(data) > bytes_max:
            raise ValueError("no complete line")
        data += piece
    return bytes(data)


def send_command(data_dir: Path, command: str, timeout: float, **arguments: Any) -> dict[str, Any]:
    """Sends one command to the broker of `data_dir`. Raises OSError when none runs there, RuntimeError on its error."""
    with _Address(data_dir) as address, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(address)
        connection.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
        try:
            answer = json.loads(_read_line(connection, ANSWER_BYTES_MAX))
        except ValueError:
            raise RuntimeError("the broker closed the connection before it answered") from None
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer
