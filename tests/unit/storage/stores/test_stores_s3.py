"""The S3 store against a server that misbehaves: what becomes of each failure."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kbroker.storage.stores.object_store import (
    BytesBody,
    ChecksumMismatch,
    InvalidRange,
    NotFound,
    ObjectMeta,
    ObjectStore,
    PreconditionFailed,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from kbroker.storage.stores.store_url import open_store


class ScriptedServer:
    """Answers every request with one scripted (status, headers, body); a negative length cuts the connection."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, {}, b""  # type: ignore[var-annotated]
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                headers = {name.lower(): value for name, value in self.headers.items()}
                script.requests.append((self.command, self.path, headers, body))
                self.send_response(script.status)
                for name, value in {"Content-Length": str(len(script.body)), **script.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(script.body)
                if script.headers.get("Content-Length"):
                    self.close_connection = True

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def fail(self, status: int, code: str) -> None:
        self.status = status
        self.body = f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()
        self.headers = {"Content-Type": "application/xml"}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


@pytest.fixture
def store(server: ScriptedServer) -> Iterator[ObjectStore]:
    opened = open_store("s3://bucket", server.endpoint, connect_timeout_s=2, read_timeout_s=2)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", NotFound),
        (412, "PreconditionFailed", PreconditionFailed),
        (409, "ConditionalRequestConflict", PreconditionFailed),
        (403, "AccessDenied", StoreDenied),
        (403, "InvalidAccessKeyId", StoreDenied),
        (403, "SignatureDoesNotMatch", StoreDenied),
        (401, "Unauthorized", StoreDenied),
        (400, "ExpiredToken", StoreDenied),
        (400, "BadDigest", ChecksumMismatch),
        (400, "RequestTimeout", StoreUnavailable),
        (408, "Timeout", StoreUnavailable),
        (429, "TooManyRequests", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
        (503, "SlowDown", StoreUnavailable),
        (504, "GatewayTimeout", StoreUnavailable),
        (501, "NotImplemented", StoreError),
        (400, "InvalidArgument", StoreError),
        (416, "InvalidRange", InvalidRange),
    ],
)
def test_error_codes_of_the_server_are_mapped_and_not_retried(
    server: ScriptedServer, store: ObjectStore, status: int, code: str, kind: type[StoreError]
) -> None:
    server.fail(status, code)
    with pytest.raises(kind) as caught:
        store.put("some/key", b"x", if_none_match=True)
    assert type(caught.value) is kind
    assert "some/key" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1  # nothing is retried below us


def test_a_missing_bucket_has_its_own_message(server: ScriptedServer, store: ObjectStore) -> None:
    server.fail(404, "NoSuchBucket")
    for call in (lambda: store.put("k", b"", if_match="x"), lambda: store.get("k"), lambda: list(store.list(""))):
        with pytest.raises(StoreError, match="bucket bucket does not exist") as caught:
            call()
        assert not isinstance(caught.value, (NotFound, PreconditionFailed))


def test_if_match_on_a_missing_object_is_a_failed_condition(server: ScriptedServer, store: ObjectStore) -> None:
    server.fail(404, "NoSuchKey")
    with pytest.raises(PreconditionFailed):
        store.put("k", b"", if_match='"x"')
    server.fail(409, "OperationAborted")
    with pytest.raises(StoreUnavailable):
        store.put("k", b"")


def test_a_put_sends_condition_length_and_checksum(server: ScriptedServer, store: ObjectStore) -> None:
    server.headers = {"ETag": '"abc"'}
    assert store.put("k", BytesBody(b"123456789"), if_none_match=True, crc32c=0xE3069283).etag == '"abc"'
    method, path, headers, body = server.requests[0]
    assert (method, path, body) == ("PUT", "/bucket/k", b"123456789")
    assert headers["x-amz-checksum-crc32c"] == "4waSgw=="
    assert headers["if-none-match"] == "*"
    assert headers["content-length"] == "9"
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert not {name for name in headers if name.startswith("x-amz-checksum-") and name != "x-amz-checksum-crc32c"}
    store.put("k", b"123456789", if_match='"abc"')
    assert server.requests[1][2]["if-match"] == '"abc"'
    assert server.requests[1][2]["x-amz-checksum-crc32c"] == "4waSgw=="


def test_short_bodies_and_wrong_ranges_are_errors(server: ScriptedServer, store: ObjectStore) -> None:
    server.body = b"12345"
    server.headers = {"Content-Length": "10", "ETag": '"e"'}
    with pytest.raises(StoreUnavailable):
        store.get("k")
    for content_range in ("bytes 0-4/100", "bytes 2-6/100", "bytes 1-5/x", ""):
        server.status = 206
        server.headers = {"ETag": '"e"', "Content-Range": content_range}
        with pytest.raises(StoreError, match="store sent"):
            store.get("k", 1, 5)
    server.headers = {"ETag": '"e"', "Content-Range": "bytes 1-5/100"}
    assert store.get("k", 1, 5) == b"12345"
    server.headers = {"ETag": '"e"', "Content-Range": "bytes 1-10/100", "Content-Length": "10"}
    with pytest.raises(StoreUnavailable):
        store.get_into("k", 1, memoryview(bytearray(10)))


def test_a_dead_server_is_unavailable(server: ScriptedServer) -> None:
    server.close()
    store = open_store("s3://bucket", server.endpoint, connect_timeout_s=1, read_timeout_s=1)
    for call in (lambda: store.get("k"), lambda: store.put("k", b""), lambda: next(store.list(""))):
        with pytest.raises(StoreUnavailable):
            call()
    server.server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.thread = threading.Thread(target=server.server.serve_forever, daemon=True)
    server.thread.start()


def test_missing_credentials_are_denied(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreDenied, match="credentials"):
        open_store("s3://bucket", server.endpoint).get("k")


def test_a_configuration_that_boto3_cannot_use_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / "config"
    damaged.write_text("[profile")
    for variable, value, said in (
        ("AWS_PROFILE", "no-such", r"s3://bucket/: .*profile \(no-such\) could not be found"),
        ("AWS_CONFIG_FILE", str(damaged), "Unable to parse config file"),
    ):
        with monkeypatch.context() as patched:
            patched.setenv(variable, value)
            with pytest.raises(StoreError, match=said):
                open_store("s3://bucket")
    with monkeypatch.context() as patched:
        patched.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
        patched.setenv("AWS_ACCESS_KEY_ID", "half")
        with pytest.raises(StoreDenied, match="Partial credentials"):
            open_store("s3://bucket")
    with pytest.raises(ValueError, match="Invalid endpoint"):
        open_store("s3://bucket", "nowhere")


def test_a_listing_that_is_cut_without_a_token_is_an_error(server: ScriptedServer, store: ObjectStore) -> None:
    server.body = b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
    server.headers = {"Content-Type": "application/xml"}
    with pytest.raises(StoreError, match="truncated a listing"):
        list(store.list(""))


def test_a_failure_inside_a_batch_delete_is_raised(server: ScriptedServer, store: ObjectStore) -> None:
    for code, kind in (("AccessDenied", StoreDenied), ("InternalError", StoreUnavailable), ("Odd", StoreError)):
        server.body = f"<DeleteResult><Error><Key>b</Key><Code>{code}</Code></Error></DeleteResult>".encode()
        server.headers = {"Content-Type": "application/xml"}
        with pytest.raises(kind, match=code):
            store.delete(["a", "b"])
    server.body = b"<DeleteResult><Error><Key>b</Key><Code>NoSuchKey</Code></Error></DeleteResult>"
    store.delete(["a", "b"])


def test_boto3_is_imported_for_s3_only() -> None:
    check = (
        "import sys, kbroker.storage.stores.store_url as u, kbroker.storage.ledger.ownership, "
        "kbroker.storage.ledger.numbered_log, "
        "kbroker.storage.stores.store_probe; u.open_store('file:/tmp'); sys.exit('boto3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


HEAD_200 = {"Content-Length": "0", "ETag": '"e"', "Last-Modified": "Fri, 27 Nov 2026 12:00:00 GMT"}


@pytest.mark.parametrize(
    ("checksum", "crc32c"),
    [
        ({"x-amz-checksum-crc32c": "4waSgw=="}, 0xE3069283),
        ({"x-amz-checksum-crc32c": "4waSgw==", "x-amz-checksum-type": "FULL_OBJECT"}, 0xE3069283),
        ({"x-amz-checksum-crc32c": "4waSgw==", "x-amz-checksum-type": "COMPOSITE"}, None),
        ({}, None),
    ],
)
def test_a_head_takes_one_request(
    server: ScriptedServer, store: ObjectStore, checksum: dict[str, str], crc32c: int | None
) -> None:
    server.headers = {**HEAD_200, **checksum}
    assert store.head("k") == ObjectMeta("k", 0, '"e"', crc32c, 1_795_780_800_000)
    assert [request[0] for request in server.requests] == ["HEAD"]


def test_a_head_of_no_object_takes_one_request(server: ScriptedServer, store: ObjectStore) -> None:
    server.fail(404, "NoSuchKey")
    with pytest.raises(NotFound):
        store.head("k")
    assert [request[0] for request in server.requests] == ["HEAD"]
