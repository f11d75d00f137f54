"""The object store on S3 and compatible servers, through boto3.

The client library's own retries are off, because they would hide unknown outcomes. Payloads are not signed (use
TLS, or loopback); their integrity rests on a CRC-32C header sent with every put and part. Importing this module
imports boto3, so only ``store_url.open_store`` does it, and only for ``s3://``.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

import boto3
import botocore.session
from botocore import exceptions as aws
from botocore.config import Config
from botocore.credentials import ReadOnlyCredentials

from kbroker.limits import KIB
from kbroker.storage.stores.http_answer import Answer
from kbroker.storage.stores.http_connections import ConnectionPool, NotPlain
from kbroker.storage.stores.object_store import (
    Body,
    BodySource,
    ChecksumMismatch,
    InvalidRange,
    NotFound,
    ObjectMeta,
    PendingUpload,
    PreconditionFailed,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    UploadedPart,
    as_source,
    body_crc32c,
    check_conditions,
    check_key,
    check_parts,
    check_range,
    read_exactly,
)
from kbroker.storage.stores.s3_reads import URL_EXPIRES_SECONDS, DirectReads
from kbroker.storage.stores.s3_writes import DirectWrites

DIRECT_BYTES_MIN = 64 * KIB  # smaller bodies go through boto3
DELETE_KEYS_MAX = 1000  # of one DeleteObjects request
_READ_BYTES = 256 * KIB
_PIECE_BYTES = 128 * KIB  # of a body through boto3, which must be sent within the time that connecting may take
_DENIED_CODES = {
    "AccessDenied",
    "AccountProblem",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "XAdminUserNotFound",  # versitygw: no such access key
}
_CHECKSUM_CODES = {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"}
_BUSY_CODES = {
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",  # a clash with another operation in progress on the key
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
}
_MISSING_CODES = {"NoSuchKey", "NoSuchUpload", "NoSuchVersion", "NotFound", "404"}


class S3Store:
    """One client with a pool of connections; boto3 clients may be used from any thread."""

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 30.0,
        connections_max: int = 32,
        copy_bucket: str | None = None,
    ) -> None:
        """`copy_bucket`: where the sources of upload_part_copy are, if in another one."""
        self._bucket = bucket
        self._copy_bucket = copy_bucket or bucket
        core = botocore.session.get_session()
        try:
            session = boto3.session.Session(botocore_session=core)
            self._client = session.client(
                "s3",
                endpoint_url=endpoint,
                region_name=region or session.region_name or "us-east-1",
                config=Config(
                    signature_version="s3v4",
                    connect_timeout=connect_timeout_s,
                    read_timeout=read_timeout_s,
                    max_pool_connections=connections_max,
                    tcp_keepalive=True,
                    retries={"total_max_attempts": 1, "mode": "standard"},
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    s3={"payload_signing_enabled": False, "addressing_style": "path" if endpoint else "auto"},
                ),
            )
            self._credentials = session.get_credentials()
            authorities = core.get_config_variable("ca_bundle")
        except aws.BotoCoreError as error:  # AWS' files or variables name something missing
            if isinstance(error, ValueError):
                raise
            self._raise_mapped(error, "configuration", None, conditional=False)
        self._connections = ConnectionPool(connect_timeout_s, read_timeout_s, connections_max, authorities=authorities)
        self._direct_reads = DirectReads(self._sign, self._connections)
        self._direct_writes = DirectWrites(self._frozen_credentials, self._connections)
        self._client.meta.events.register("before-send.s3.PutObject", self._direct_writes.note)

    def _frozen_credentials(self) -> ReadOnlyCredentials | None:
        if self._credentials is None:
            return None
        try:
            return self._credentials.get_frozen_credentials()
        except Exception as error:  # refreshing raises many kinds; boto3 will raise the same
            raise NotPlain(str(error)) from error

    def _sign(self, method: str, key: str) -> str:
        parameters = {"Bucket": self._bucket, "Key": key}
        if method == "HEAD":
            parameters["ChecksumMode"] = "ENABLED"
        try:
            url: str = self._client.generate_presigned_url(f"{method.lower()}_object", parameters, URL_EXPIRES_SECONDS)
        except Exception as error:  # as below
            raise NotPlain(str(error)) from error
        return url

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        check_key(key)
        check_conditions(if_none_match, if_match)
        # Always sent: without it, a server may store a truncated body when its sender dies half-way.
        crc32c = body_crc32c(body) if crc32c is None else crc32c
        source = as_source(body)
        if source.length >= DIRECT_BYTES_MIN:
            headers = {"x-amz-checksum-crc32c": _encode_crc(crc32c)}
            headers |= {"If-None-Match": "*"} if if_none_match else {}
            headers |= {"If-Match": if_match} if if_match is not None else {}
            with contextlib.suppress(NotPlain):
                etag = self._direct_writes.put(key, self._name(key), source, headers)
                return ObjectMeta(key, source.length, etag, crc32c, 0)
        arguments, size = self._body_arguments(body, crc32c)
        if if_none_match:
            arguments["IfNoneMatch"] = "*"
        if if_match is not None:
            arguments["IfMatch"] = if_match
        conditional = if_none_match or if_match is not None
        try:
            answer = self._call("put_object", key, arguments, conditional=conditional)
        except NotFound as error:
            if if_match is None:
                raise
            raise PreconditionFailed(str(error)) from error
        self._direct_writes.learn(key)
        return ObjectMeta(key, size, answer["ETag"], crc32c, 0)

    def get(self, key: str, start: int | None = None, length: int | None = None, if_match: str | None = None) -> bytes:
        first = check_range(start, length)
        if length == 0:
            return b""
        answer = self._open(key, None if start is None and length is None else first, length, if_match)
        with contextlib.closing(answer["Body"]) as body:
            try:
                data: bytes = body.read()
            except Exception as error:
                self._raise_mapped(error, "get_object", key, conditional=False)
        if len(data) != answer["ContentLength"]:
            raise StoreUnavailable(f"{self._name(key)}: {len(data)} of {answer['ContentLength']} bytes came")
        return data

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None = None) -> int:
        check_range(start, len(out))
        if not len(out):
            return 0
        if len(out) >= DIRECT_BYTES_MIN:
            with contextlib.suppress(NotPlain):
                self._direct_reads.get_into(key, start, out, if_match)
                return len(out)
        answer = self._open(key, start, len(out), if_match)
        if answer["ContentLength"] < len(out):
            answer["Body"].close()
            raise InvalidRange(f"{self._name(key)} ends before {start + len(out)}")
        filled = 0
        with contextlib.closing(answer["Body"]) as body:
            while filled < len(out):
                try:
                    piece = body.read(min(_READ_BYTES, len(out) - filled))
                except Exception as error:
                    self._raise_mapped(error, "get_object", key, conditional=False)
                if not piece:
                    raise StoreUnavailable(f"{self._name(key)}: {filled} of {len(out)} bytes came")
                out[filled : filled + len(piece)] = piece
                filled += len(piece)
        return filled

    def open_copied(self, key: str, start: int, length: int, if_match: str | None) -> Any:
        """The stream of a range of a copy's source object (in `copy_bucket`)."""
        return self._open(key, start, length, if_match, self._copy_bucket)["Body"]

    def _open(
        self, key: str, start: int | None, length: int | None, if_match: str | None, bucket: str | None = None
    ) -> dict[str, Any]:
        """A GET whose answer is checked to be the requested range, cut at the object's end."""
        arguments: dict[str, Any] = {}
        if start is not None:
            arguments["Range"] = f"bytes={start}-" if length is None else f"bytes={start}-{start + length - 1}"
        if if_match is not None:
            arguments["IfMatch"] = if_match
        answer = self._call("get_object", key, arguments, conditional=True, bucket=bucket)
        if start is not None:
            got = answer.get("ContentRange", "")
            try:
                span, total = got.removeprefix("bytes ").split("/")
                first, last = (int(part) for part in span.split("-"))
                end = int(total) if length is None else min(int(total), start + length)
                exact = (first, last) == (start, end - 1)
            except ValueError:
                exact = False
            if not exact or answer["ContentLength"] != last - first + 1:
                answer["Body"].close()
                raise StoreError(f"{self._name(key)}: asked for {arguments['Range']}, store sent {got!r}")
        return answer

    def head(self, key: str) -> ObjectMeta:
        with contextlib.suppress(NotPlain):
            direct = self._direct_reads.head(key)
            if direct.status == 404:
                raise NotFound(f"{self._name(key)}: there is no such object")
            with contextlib.suppress(ValueError):
                return _meta_of(key, direct)
        answer = self._call("head_object", key, {"ChecksumMode": "ENABLED"}, conditional=False)
        return ObjectMeta(
            key, answer["ContentLength"], answer["ETag"], _decode_crc(answer), _milliseconds(answer["LastModified"])
        )

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        arguments: dict[str, Any] = {"Prefix": prefix}
        if start_after is not None:
            arguments["StartAfter"] = start_after
        while True:
            answer = self._call("list_objects_v2", None, arguments, conditional=False)
            for item in answer.get("Contents", ()):
                yield ObjectMeta(item["Key"], item["Size"], item["ETag"], None, _milliseconds(item["LastModified"]))
            if not answer.get("IsTruncated"):
                return
            if not answer.get("NextContinuationToken"):
                raise StoreError(f"{self._name(prefix)}: the store truncated a listing without a continuation token")
            arguments["ContinuationToken"] = answer["NextContinuationToken"]

    def delete(self, keys: Iterable[str]) -> None:
        batch: list[str] = []  # type: ignore[valid-type]
        for key in keys:
            batch.append(key)
            if len(batch) == DELETE_KEYS_MAX:
                self._delete_batch(batch)
                batch = []
        if batch:
            self._delete_batch(batch)

    def _delete_batch(self, keys: Sequence[str]) -> None:
        if len(keys) == 1:
            try:
                self._call("delete_object", keys[0], {}, conditional=False)
            except NotFound:
                pass
            return
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = self._call("delete_objects", None, {"Delete": wanted}, conditional=False)
        failed = [error for error in answer.get("Errors", ()) if error.get("Code") not in _MISSING_CODES]
        if failed:
            code, key = failed[0].get("Code", ""), failed[0].get("Key", "")
            kind = _error_class(code, 0, conditional=False)
            raise kind(f"{self._name(key)}: {code} deleting it and {len(failed) - 1} more")

    def create_multipart(self, key: str) -> str:
        check_key(key)
        # Without naming the algorithm here, S3 refuses parts that carry a CRC-32C.
        answer = self._call("create_multipart_upload", key, {"ChecksumAlgorithm": "CRC32C"}, conditional=False)
        upload_id: str = answer["UploadId"]
        return upload_id

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None
    ) -> UploadedPart:
        crc = body_crc32c(body) if crc32c is None else crc32c
        arguments, size = self._body_arguments(body, crc)
        arguments |= {"UploadId": upload_id, "PartNumber": number}
        answer = self._call("upload_part", key, arguments, conditional=False)
        return UploadedPart(number, answer["ETag"], size, crc)

    def upload_part_copy(
        self,
        key: str,
        upload_id: str,
        number: int,
        source_key: str,
        start: int,
        length: int,
        *,
        if_match: str | None = None,
    ) -> UploadedPart:
        arguments: dict[str, Any] = {
            "UploadId": upload_id,
            "PartNumber": number,
            "CopySource": {"Bucket": self._copy_bucket, "Key": source_key},
            "CopySourceRange": f"bytes={start}-{start + length - 1}",
        }
        if if_match is not None:
            arguments["CopySourceIfMatch"] = if_match
        result = self._call("upload_part_copy", key, arguments, conditional=True)["CopyPartResult"]
        crc = _decode_crc(result)
        if crc is None and result.get("ChecksumCRC32C"):
            # versitygw returns the source's own checksum. For a multipart object that is a checksum of checksums, with
            # which no upload can be completed: the part is uploaded instead of copied.
            with contextlib.closing(_CopiedRange(self, source_key, start, length, if_match)) as body:
                return self.upload_part(key, upload_id, number, body)
        return UploadedPart(number, result["ETag"], length, crc)

    def complete_multipart(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = False
    ) -> ObjectMeta:
        check_parts(parts)
        listed: list[dict[str, Any]] = []  # type: ignore[valid-type]
        for part in parts:
            named: dict[str, Any] = {"PartNumber": part.number, "ETag": part.etag}
            if part.crc32c is not None:
                named["ChecksumCRC32C"] = _encode_crc(part.crc32c)
            listed.append(named)
        arguments: dict[str, Any] = {"UploadId": upload_id, "MultipartUpload": {"Parts": listed}}
        if if_none_match:
            arguments["IfNoneMatch"] = "*"
        answer = self._call("complete_multipart_upload", key, arguments, conditional=if_none_match)
        return ObjectMeta(key, sum(part.size for part in parts), answer["ETag"], None, 0)

    def abort_multipart(self, key: str, upload_id: str) -> None:
        try:
            self._call("abort_multipart_upload", key, {"UploadId": upload_id}, conditional=False)
        except NotFound:
            pass

    def list_multipart(self, prefix: str) -> Iterator[PendingUpload]:
        arguments: dict[str, Any] = {"Prefix": prefix}
        while True:
            answer = self._call("list_multipart_uploads", None, arguments, conditional=False)
            for item in answer.get("Uploads", ()):
                if item["Key"].startswith(prefix):  # some servers ignore the prefix
                    yield PendingUpload(item["Key"], item["UploadId"], _milliseconds(item["Initiated"]))
            markers = answer.get("NextKeyMarker"), answer.get("NextUploadIdMarker")
            if not answer.get("IsTruncated"):
                return
            if not markers[0] or markers == (arguments.get("KeyMarker"), arguments.get("UploadIdMarker")):
                raise StoreError(f"{self._name(prefix)}: the store truncated a listing without a marker")
            arguments |= {"KeyMarker": markers[0], "UploadIdMarker": markers[1] or ""}

    def close(self) -> None:
        self._connections.close()
        self._client.close()

    def _body_arguments(self, body: Body, crc32c: int) -> tuple[dict[str, Any], int]:
        if isinstance(body, (bytes, bytearray, memoryview)):
            size = len(body)
            arguments: dict[str, Any] = {"Body": bytes(body)}
        else:
            size = body.length
            arguments = {"Body": _BodyFile(body) if size else b"", "ContentLength": size}
        arguments["ChecksumCRC32C"] = _encode_crc(crc32c)
        return arguments, size

    def _call(
        self,
        operation: str,
        key: str | None,
        arguments: dict[str, Any],
        *,
        conditional: bool,
        bucket: str | None = None,
    ) -> dict[str, Any]:
        target = {"Bucket": bucket or self._bucket} | ({} if key is None else {"Key": key})
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(**target, **arguments)
        except Exception as error:
            body = arguments.get("Body")
            if isinstance(body, _BodyFile) and body.failure is not None:
                raise body.failure from error
            self._raise_mapped(error, operation, key, conditional=conditional)
        return answer

    def _name(self, key: str | None) -> str:
        return f"s3://{self._bucket}/{key or ''}"

    def _raise_mapped(self, error: Exception, operation: str, key: str | None, *, conditional: bool) -> NoReturn:
        """Maps boto3's exceptions to ours, with their text on one line."""
        text = f"{self._name(key)}: {operation}: {' '.join(str(error).split())}"
        if isinstance(error, StoreError):
            raise error
        if isinstance(error, aws.ClientError):
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code == "NoSuchBucket":
                raise StoreError(f"bucket {self._bucket} does not exist") from error
            raise _error_class(code, status, conditional=conditional)(text) from error
        if isinstance(error, (aws.NoCredentialsError, aws.PartialCredentialsError, aws.CredentialRetrievalError)):
            raise StoreDenied(text) from error
        if isinstance(error, (aws.HTTPClientError, aws.ConnectionError, aws.IncompleteReadError, OSError)):
            raise StoreUnavailable(text) from error
        if isinstance(error, aws.BotoCoreError):
            raise StoreError(text) from error
        raise error


def _error_class(code: str, status: int, *, conditional: bool) -> type[StoreError]:
    if status == 412 or code == "PreconditionFailed" or (status == 409 and conditional):
        return PreconditionFailed
    if code in _CHECKSUM_CODES:
        return ChecksumMismatch
    if status in (401, 403) or code in _DENIED_CODES:
        return StoreDenied
    if status == 416:
        return InvalidRange
    # Some servers answer 404 for an unknown access key or tenant: only these codes mean the object.
    if code in _MISSING_CODES:
        return NotFound
    if (status >= 500 and status != 501) or status in (408, 429) or code in _BUSY_CODES:
        return StoreUnavailable
    return StoreError


class _CopiedRange:
    """A range of an object as a body: one request for each pass over it."""

    def __init__(self, store: S3Store, key: str, start: int, length: int, if_match: str | None) -> None:
        self.length = length
        self._store = store
        self._key = key
        self._start = start
        self._if_match = if_match
        self._stream: Any = None
        self._position = 0

    def read_into(self, position: int, out: memoryview) -> int:
        if self._stream is None or position != self._position:
            self.close()
            left = self.length - position
            self._stream = self._store.open_copied(self._key, self._start + position, left, self._if_match)
        try:
            piece: bytes = self._stream.read(len(out))
        except Exception as error:
            raise StoreUnavailable(f"{self._key}: {' '.join(str(error).split())}") from error
        if not piece:
            raise StoreUnavailable(f"{self._key}: {position} of {self.length} bytes came")
        out[: len(piece)] = piece
        self._position = position + len(piece)
        return len(piece)

    def close(self) -> None:
        """Ends the request under way."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class _BodyFile:
    """A BodySource as the file object that botocore reads: one small buffer, reused for every piece.

    A returned view is valid until the next read; the HTTP layer has sent it by then. botocore asks for 16 KiB at a time
    and takes any length, so larger pieces are returned: fewer iterations.
    """

    def __init__(self, source: BodySource) -> None:
        self._source = source
        self._position = 0
        self._buffer = memoryview(bytearray(min(_PIECE_BYTES, source.length)))
        self.failure: BaseException | None = None  # botocore wraps what a body raises; this is the original

    def read(self, size: int = -1) -> memoryview | bytes:
        if size is None or size < 0:
            raise ValueError("a streamed body is never read whole")
        count = min(len(self._buffer), self._source.length - self._position)
        if count <= 0 or size == 0:
            return b""
        try:
            read_exactly(self._source, self._position, self._buffer[:count])
        except BaseException as error:
            self.failure = error
            raise
        self._position += count
        return self._buffer[:count].toreadonly()

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._source.length)[whence]
        return self._position

    def tell(self) -> int:
        return self._position


def _encode_crc(value: int) -> str:
    return base64.b64encode(value.to_bytes(4, "big")).decode("ascii")


def _decode_crc(answer: dict[str, Any]) -> int | None:
    """The CRC-32C of the whole object; None if absent or a checksum of checksums (multipart)."""
    text = answer.get("ChecksumCRC32C")
    if not text or answer.get("ChecksumType") == "COMPOSITE":
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return int.from_bytes(raw, "big") if len(raw) == 4 else None


def _meta_of(key: str, answer: Answer) -> ObjectMeta:
    """Raises ValueError when a header is missing or not as S3 sends it."""
    etag, modified = answer.getheader("ETag"), answer.getheader("Last-Modified")
    if answer.length is None or not etag or not modified:
        raise ValueError("no length, ETag or time")
    checksum = {
        "ChecksumCRC32C": answer.getheader("x-amz-checksum-crc32c"),
        "ChecksumType": answer.getheader("x-amz-checksum-type"),
    }
    return ObjectMeta(key, answer.length, etag, _decode_crc(checksum), _milliseconds(parsedate_to_datetime(modified)))


def _milliseconds(moment: Any) -> int:
    return round(moment.timestamp() * 1000)
