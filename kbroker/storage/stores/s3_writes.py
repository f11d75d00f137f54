"""PUTs that bypass boto3: the route is learned from boto3's own PUTs, and bodies are sent in large pieces.

boto3 spends two milliseconds of Python on a request and several layers of it on each piece of a body, under the GIL.
Here a request is signed and sent on a persistent connection. 200 with an ETag is handled, and so is an unknown outcome:
StoreUnavailable, never retried here. A refusal (3xx, 4xx, 501) means that nothing was stored: boto3 then sends
the request anew. TLS, and every route that boto3 has not proven, is left to boto3.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import ReadOnlyCredentials

from kbroker.limits import KIB, MIB
from kbroker.storage.stores.http_answer import Answer
from kbroker.storage.stores.http_connections import Connection, ConnectionPool, NotPlain, Place, place_of
from kbroker.storage.stores.object_store import BODY_PIECE_BYTES, BodySource, StoreUnavailable, read_some

ANSWER_BYTES_MAX = 64 * KIB  # of an answer that is read so that the connection can be reused
SELF_SENT_BYTES = 4 * MIB  # per call, of a body that sends itself: it takes no memory
_SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^,]*/([^/,]+)/s3/aws4_request,")
_UNSIGNED = Config(s3={"payload_signing_enabled": False})


class _Route(NamedTuple):
    """Where boto3 has stored an object: the path is `prefix` and the quoted key."""

    place: Place  # of the server
    prefix: str  # of the path
    region: str  # of the signature
    user_agent: str


class _BodyFailed(Exception):
    """Reading the body failed, not the connection."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason


class DirectWrites:
    """Thread-safe.

    Args:
        credentials: returns fresh ones; None if there are none.
    """

    def __init__(self, credentials: Callable[[], ReadOnlyCredentials | None], connections: ConnectionPool) -> None:
        self._credentials = credentials
        self._connections = connections
        self._route: _Route | None = None
        self._sent = threading.local()

    def note(self, request: Any, **_: object) -> None:
        """Handler of botocore's event before-send.s3.PutObject."""
        self._sent.url, self._sent.headers = request.url, request.headers

    def learn(self, key: str) -> None:
        """boto3 has stored this object on the calling thread: later PUTs take the same route."""
        url, headers = self._sent.url, self._sent.headers
        parts = urlsplit(url)
        scope = _SCOPE.match(_text(headers.get("Authorization", "")))
        if parts.scheme == "http" and scope and not parts.query and parts.path.endswith(_quoted(key)):
            prefix = parts.path.removesuffix(_quoted(key))
            agent = _text(headers.get("User-Agent", ""))
            with contextlib.suppress(NotPlain):  # through a proxy
                self._route = _Route(place_of(url), prefix, scope[1], agent)

    def put(self, key: str, name: str, body: BodySource, headers: Mapping[str, str]) -> str:
        """Stores an object and returns its ETag. `name` is for error messages.

        Raises NotPlain when boto3 must send it (nothing was stored), StoreUnavailable, what reading the body raises.
        """
        route = self._route
        if route is None:
            raise NotPlain("boto3 has not stored anything yet")
        target = route.prefix + _quoted(key)
        signed = self._signed(route, target, headers)
        signed |= {"User-Agent": route.user_agent, "Content-Length": str(body.length), "Expect": "100-continue"}
        try:
            return self._connections.run(
                route.place, name, lambda connection: _exchange(connection, target, signed, name, body)
            )
        except NotPlain:
            self._route = None
            raise
        except _BodyFailed as failure:
            raise failure.reason from None

    def _signed(self, route: _Route, target: str, headers: Mapping[str, str]) -> dict[str, str]:
        credentials = self._credentials()
        if credentials is None:
            raise NotPlain("no credentials")
        host = route.place.authority
        request = AWSRequest("PUT", f"http://{host}{target}", headers={"Host": host, **headers})
        request.context["client_config"] = _UNSIGNED
        S3SigV4Auth(credentials, "s3", route.region).add_auth(request)
        return dict(request.headers.items())


def _exchange(connection: Connection, target: str, headers: Mapping[str, str], name: str, body: BodySource) -> str:
    connection.begin("PUT", target, headers)
    if not connection.is_body_wanted():
        answer = connection.answer()
        _check_refused(answer, name)
        raise NotPlain(f"{answer.status} {answer.reason} before the body")
    try:
        is_whole = _send(connection, body)
        answer = connection.answer()
        _check_refused(answer, name)
        return _etag(connection, answer, name, is_whole)
    except (OSError, http.client.HTTPException) as error:
        raise StoreUnavailable(f"{name}: {type(error).__name__}: {error}") from error


def _send(connection: Connection, body: BodySource) -> bool:
    """False when the server closed the connection early; its answer often says why."""
    buffer = memoryview(b"")
    position = 0
    while position < body.length:
        try:
            sent = connection.send_from(body, position, SELF_SENT_BYTES)
            if not sent:
                rest = min(BODY_PIECE_BYTES, body.length - position)
                buffer = buffer if len(buffer) >= rest else memoryview(bytearray(rest))
                sent = _read(body, position, buffer[:rest])
                connection.send(buffer[:sent])
        except (BrokenPipeError, ConnectionResetError):
            return False
        position += sent
    return True


def _read(body: BodySource, position: int, out: memoryview) -> int:
    try:
        return read_some(body, position, out)
    except Exception as error:
        raise _BodyFailed(error) from error


def _check_refused(answer: Answer, name: str) -> None:
    """Raises NotPlain when nothing was stored, StoreUnavailable for a failure of the server."""
    status = f"{answer.status} {answer.reason}"
    if 300 <= answer.status < 500 or answer.status == http.client.NOT_IMPLEMENTED:
        raise NotPlain(status)
    if answer.status >= 500:
        raise StoreUnavailable(f"{name}: {status}")


def _etag(connection: Connection, answer: Answer, name: str, is_whole: bool) -> str:
    etag = answer.getheader("ETag")
    if answer.status != http.client.OK or not etag or not is_whole:
        raise StoreUnavailable(f"{name}: {answer.status} {answer.reason}, which says nothing of the object")
    if answer.length is not None and answer.length <= ANSWER_BYTES_MAX:
        content = bytearray(answer.length)
        answer.fill(memoryview(content))
        if b"<Error" in content:
            raise StoreUnavailable(f"{name}: {answer.status} with an error: {bytes(content[:200])!r}")
        connection.reusable = answer.is_over
    return etag


def _quoted(key: str) -> str:
    return quote(key, safe="/~")


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
