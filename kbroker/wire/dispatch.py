"""Frames to handlers and back, for every API but Produce and Fetch, which the reactor serves itself.

A request whose API key, version or bytes this broker does not know closes its connection with one log line. ApiVersions
above the served range is the exception: it is answered in version 0 with UNSUPPORTED_VERSION and the range (KIP-511).
An unexpected exception of a handler is logged with its traceback and closes the connection; expected failures are
handlers' own answers.
"""

from __future__ import annotations

import functools
import logging
import struct
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, Executor, Future
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker.errors import AnswerTooLong, ProtocolError
from kbroker.handlers.api_versions import unsupported_version_response
from kbroker.handlers.base import Context, Handler, RequestInfo, Waiting
from kbroker.handlers.first_error import first_error
from kbroker.limits import KIB, MIB
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.codec import decode_request, encode_answer
from kbroker.protocol.fields import Bytes, Message, VersionRange
from kbroker.protocol.headers import decode_request_header
from kbroker.wire.refusal import refusal

if TYPE_CHECKING:
    from kbroker._fast.net.connection import Connection

logger = logging.getLogger("kbroker.wire")

# An idle member sends the same heartbeat for hours. Their handlers do not change the message.
REPEATED = frozenset({ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT})
REPEATED_BYTES_MAX = 256
REPEATED_MAX = 8192  # frames remembered: about 1 KiB each

INLINE_BYTES_MAX = 8 * KIB  # a longer request may take milliseconds, whatever its handler: it takes a worker
LARGE_BYTES_MIN = 1 * MIB  # such a request takes a hundred times its bytes of memory, and seconds


class AdvertisedListener(NamedTuple):
    """The address that clients of one listener are told."""

    host: str
    port: int


class WireRequest(Protocol):
    """What dispatch uses of kbroker._fast.net.request.Request."""

    api_key: int
    api_version: int
    correlation_id: int
    connection: Connection | None  # None: closed
    body: memoryview
    size: int

    def release_frame(self) -> int: ...

    def begin_handling(self) -> None: ...

    def begin_waiting(self) -> None: ...

    def set_aside(self) -> None: ...

    def complete_parts(self, parts: list[Bytes], error_code: int = 0) -> None: ...

    def close_connection(self, reason: str = "", *, protocol_error: bool = False) -> None: ...


class Dispatcher:
    """Calls handlers: inline ones on the calling I/O thread, the others and long requests on `workers`, large requests
    on `large_workers`. These are few, so that few large requests are in memory at a time; others overtake them.

    With `complete` false, requests that have no handler wait until `serve_all` brings the rest of the handlers.

    The queues need no bound of their own: a connection has one request at a time here, and connections are limited.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        context: Context,
        workers: Executor,
        large_workers: Executor | None = None,
        *,
        complete: bool = True,
    ) -> None:
        self._handlers = dict(handlers)
        self._context = context
        self._workers = workers
        self._large_workers = large_workers or workers
        self._lock = threading.Lock()  # guards _waiting; None: all handlers are there
        self._waiting: list[WireRequest] | None = None if complete else []

    def serve_all(self, handlers: Mapping[int, Handler]) -> None:
        """Sets all handlers. Requests that waited for them continue on workers."""
        self._handlers = dict(handlers)
        with self._lock:
            waiting, self._waiting = self._waiting, None
        for request in waiting or ():
            self._workers.submit(self, request)

    @property
    def waiting_count(self) -> int:
        """Requests that wait for the handlers that are not loaded yet."""
        return len(self._waiting or ())

    def _wait_for_handler(self, request: WireRequest) -> bool:
        with self._lock:
            if self._waiting is None:
                return False
            self._waiting.append(request)
            return True

    def __call__(self, request: WireRequest) -> None:
        """Takes one request from a reactor, which is answered by request.complete_parts, perhaps later."""
        key, version = request.api_key, request.api_version
        handler = self._handlers.get(key)
        if handler is None and self._waiting is not None:
            if self._wait_for_handler(request):
                return
            handler = self._handlers.get(key)  # set meanwhile
        if handler is None:
            request.close_connection(refusal(key, None, version), protocol_error=True)
        elif not handler.min_version <= version <= handler.max_version:
            self._refuse_version(handler, request)
        elif request.size >= LARGE_BYTES_MIN:
            self._large_workers.submit(self._serve, handler, request, False)
        elif handler.inline and request.size <= INLINE_BYTES_MAX:
            self._serve(handler, request, True)
        else:
            self._workers.submit(self._serve, handler, request, False)

    def _refuse_version(self, handler: Handler, request: WireRequest) -> None:
        if request.api_key != ApiKey.API_VERSIONS:
            _refuse(handler, request)
            return
        answer = unsupported_version_response()
        parts = encode_answer(request.api_key, 0, request.correlation_id, answer)
        request.complete_parts(parts, answer.error_code)

    def _serve(self, handler: Handler, request: WireRequest, inline: bool) -> None:
        connection = request.connection
        if connection is None:  # closed while the request waited for a worker
            return
        request.begin_handling()
        try:
            info, message = _decode(request, connection)
        except ProtocolError as error:
            _refuse(handler, request, str(error))
            return
        if inline and handler.is_long is not None and handler.is_long(message):
            self._workers.submit(self._answer, handler, request, info, message)
        else:
            self._answer(handler, request, info, message)

    def _answer(self, handler: Handler, request: WireRequest, info: RequestInfo, message: Message) -> None:
        if request.connection is None:  # closed while the request waited for a worker
            return
        try:
            response = handler.handle(self._context, info, message)
        except Exception:
            _fail(request)
            return
        request.release_frame()  # a handler that answers later keeps copies of what it needs
        if isinstance(response, Waiting):
            request.set_aside()
            response = response.answer
        if isinstance(response, Future):
            request.begin_waiting()
            response.add_done_callback(lambda future: _finish_later(request, future))
        else:
            _finish(request, response)


def _refuse(handler: Handler, request: WireRequest, fault: str = "") -> None:
    versions = VersionRange(handler.min_version, handler.max_version)
    request.close_connection(refusal(request.api_key, versions, request.api_version, fault), protocol_error=True)


def _decode(request: WireRequest, connection: Connection) -> tuple[RequestInfo, Message]:
    frame = request.body
    if request.api_key in REPEATED and len(frame) <= REPEATED_BYTES_MAX:
        tail = bytes(frame[8:])  # after the correlation id
        return _decode_repeated(request.api_key, request.api_version, tail, connection.peer, connection.listener)
    return _decode_frame(frame, request.api_key, request.api_version, connection.peer, connection.listener, connection)


def _decode_frame(
    frame: memoryview,
    api_key: int,
    api_version: int,
    peer: str,
    listener: AdvertisedListener,
    connection: Connection | None,
) -> tuple[RequestInfo, Message]:
    header, position = decode_request_header(frame)
    info = RequestInfo(
        api_key=api_key,
        api_version=api_version,
        client_id=header.client_id,
        client_host=peer.rpartition(":")[0].strip("[]"),
        advertised_host=listener.host,
        advertised_port=listener.port,
        connection=connection,
    )
    return info, decode_request(api_key, api_version, frame[position:])


@functools.lru_cache(REPEATED_MAX)
def _decode_repeated(
    api_key: int, api_version: int, tail: bytes, peer: str, listener: AdvertisedListener
) -> tuple[RequestInfo, Message]:
    """Decodes a frame that repeats but for its correlation id."""
    frame = struct.pack(">hhi", api_key, api_version, 0) + tail
    return _decode_frame(memoryview(frame), api_key, api_version, peer, listener, None)


def _finish(request: WireRequest, response: Message) -> None:
    try:
        parts = encode_answer(request.api_key, request.api_version, request.correlation_id, response)
    except AnswerTooLong as error:
        request.close_connection(f"the answer to API key {request.api_key} version {request.api_version}: {error}")
        return
    except Exception:
        _fail(request)
        return
    request.complete_parts(parts, first_error(response))


def _finish_later(request: WireRequest, future: Future[Message]) -> None:
    error = CancelledError() if future.cancelled() else future.exception()
    if isinstance(error, CancelledError):  # or a future that the answer was to be built from is
        request.close_connection("the broker stops")
    elif error is not None:
        _fail(request, error)
    else:
        _finish(request, future.result())


def _fail(request: WireRequest, error: BaseException | None = None) -> None:
    logger.error("API key %d version %d failed", request.api_key, request.api_version, exc_info=error or True)
    request.close_connection("internal error")
