"""The object store on S3 and compatible servers: boto3, and requests of our own for large bodies.

Importing this module imports boto3, so only ``store_url.open_store`` does it, and only for ``s3://``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from kbroker.limits import KIB
from kbroker.storage.stores.http_answer import Answer
from kbroker.storage.stores.http_connections import ConnectionPool, NotPlain
from kbroker.storage.stores.object_store import (
    Body,
    InvalidRange,
    NotFound,
    ObjectMeta,
    PendingUpload,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    UploadedPart,
    as_source,
    body_crc32c,
    check_conditions,
    check_key,
    check_parts,
    check_range,
)
from kbroker.storage.stores.s3_bodies import CopiedRange, body_arguments, decode_crc, encode_crc
from kbroker.storage.stores.s3_client import MISSING_CODES, S3Client, error_class
from kbroker.storage.stores.s3_login import S3Login
from kbroker.storage.stores.s3_reads import DirectReads
from kbroker.storage.stores.s3_writes import DirectWrites

DIRECT_BYTES_MIN = 64 * KIB  # smaller bodies go through boto3
DELETE_KEYS_MAX = 1000  # of one DeleteObjects request
_READ_BYTES = 256 * KIB


class S3Store:
    """May be used from any thread, as all that it is made of; holds no lock of its own."""

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
        login: S3Login | None = None,
    ) -> None:
        """`copy_bucket`: where the sources of upload_part_copy are, if in another one."""
        self._client = S3Client(
            bucket,
            endpoint=endpoint,
            region=region,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            connections_max=connections_max,
            login=login,
        )
        self._copy_bucket = copy_bucket or bucket
        self._connections = ConnectionPool(
            connect_timeout_s, read_timeout_s, connections_max, authorities=self._client.authorities
        )
        self._direct_reads = DirectReads(self._client.sign, self._connections)
        self._direct_writes = DirectWrites(self._client.frozen_credentials, self._connections)
        self._client.before_put(self._direct_writes.note)

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
            headers = {"x-amz-checksum-crc32c": encode_crc(crc32c)}
            headers |= {"If-None-Match": "*"} if if_none_match else {}
            headers |= {"If-Match": if_match} if if_match is not None else {}
            with contextlib.suppress(NotPlain):
                etag = self._direct_writes.put(key, self._client.name(key), source, headers)
                return ObjectMeta(key, source.length, etag, crc32c, 0)
        arguments, size = body_arguments(body, crc32c)
        if if_none_match:
            arguments["IfNoneMatch"] = "*"
        if if_match is not None:
            arguments["IfMatch"] = if_match
        conditional = if_none_match or if_match is not None
        try:
            answer = self._client.call("put_object", key, arguments, conditional=conditional)
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
        answer = self._client.open_range(key, None if start is None and length is None else first, length, if_match)
        with contextlib.closing(answer["Body"]) as body:
            try:
                data: bytes = body.read()
            except Exception as error:
                self._client.raise_mapped(error, "get_object", key, conditional=False)
        if len(data) != answer["ContentLength"]:
            raise StoreUnavailable(f"{self._client.name(key)}: received {len(data)} of {answer['ContentLength']} bytes")
        return data

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None = None) -> int:
        check_range(start, len(out))
        if not len(out):
            return 0
        if len(out) >= DIRECT_BYTES_MIN:
            with contextlib.suppress(NotPlain):
                self._direct_reads.get_into(key, start, out, if_match)
                return len(out)
        answer = self._client.open_range(key, start, len(out), if_match)
        if answer["ContentLength"] < len(out):
            answer["Body"].close()
            raise InvalidRange(f"{self._client.name(key)} ends before {start + len(out)}")
        filled = 0
        with contextlib.closing(answer["Body"]) as body:
            while filled < len(out):
                try:
                    piece = body.read(min(_READ_BYTES, len(out) - filled))
                except Exception as error:
                    self._client.raise_mapped(error, "get_object", key, conditional=False)
                if not piece:
                    raise StoreUnavailable(f"{self._client.name(key)}: received {filled} of {len(out)} bytes")
                out[filled : filled + len(piece)] = piece
                filled += len(piece)
        return filled

    def head(self, key: str) -> ObjectMeta:
        with contextlib.suppress(NotPlain):
            direct = self._direct_reads.head(key)
            if direct.status == 404:
                raise NotFound(f"{self._client.name(key)}: there is no such object")
            with contextlib.suppress(ValueError):
                return _meta_of(key, direct)
        answer = self._client.call("head_object", key, {"ChecksumMode": "ENABLED"}, conditional=False)
        return ObjectMeta(
            key, answer["ContentLength"], answer["ETag"], decode_crc(answer), _milliseconds(answer["LastModified"])
        )

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectMeta]:
        arguments: dict[str, Any] = {"Prefix": prefix}
        if start_after is not None:
            arguments["StartAfter"] = start_after
        while True:
            answer = self._client.call("list_objects_v2", None, arguments, conditional=False)
            for item in answer.get("Contents", ()):
                yield ObjectMeta(item["Key"], item["Size"], item["ETag"], None, _milliseconds(item["LastModified"]))
            if not answer.get("IsTruncated"):
                return
            if not answer.get("NextContinuationToken"):
                name = self._client.name(prefix)
                raise StoreError(f"{name}: the store truncated a listing without a continuation token")
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
                self._client.call("delete_object", keys[0], {}, conditional=False)
            except NotFound:
                pass
            return
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = self._client.call("delete_objects", None, {"Delete": wanted}, conditional=False)
        failed = [error for error in answer.get("Errors", ()) if error.get("Code") not in MISSING_CODES]
        if failed:
            code, key = failed[0].get("Code", ""), failed[0].get("Key", "")
            kind = error_class(code, 0, conditional=False)
            raise kind(f"{self._client.name(key)}: {code} deleting it and {len(failed) - 1} more")

    def create_multipart(self, key: str) -> str:
        check_key(key)
        # Without naming the algorithm here, S3 refuses parts that carry a CRC-32C.
        answer = self._client.call("create_multipart_upload", key, {"ChecksumAlgorithm": "CRC32C"}, conditional=False)
        upload_id: str = answer["UploadId"]
        return upload_id

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, crc32c: int | None = None
    ) -> UploadedPart:
        crc = body_crc32c(body) if crc32c is None else crc32c
        arguments, size = body_arguments(body, crc)
        arguments |= {"UploadId": upload_id, "PartNumber": number}
        answer = self._client.call("upload_part", key, arguments, conditional=False)
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
        result = self._client.call("upload_part_copy", key, arguments, conditional=True)["CopyPartResult"]
        crc = decode_crc(result)
        if crc is None and result.get("ChecksumCRC32C"):
            # versitygw returns the source's own checksum. For a multipart object that is a checksum of checksums, with
            # which no upload can be completed: the part is uploaded instead of copied.
            def opened(first: int, count: int) -> Any:
                return self._client.open_range(source_key, first, count, if_match, self._copy_bucket)["Body"]

            with contextlib.closing(CopiedRange(opened, source_key, start, length)) as body:
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
                named["ChecksumCRC32C"] = encode_crc(part.crc32c)
            listed.append(named)
        arguments: dict[str, Any] = {"UploadId": upload_id, "MultipartUpload": {"Parts": listed}}
        if if_none_match:
            arguments["IfNoneMatch"] = "*"
        answer = self._client.call("complete_multipart_upload", key, arguments, conditional=if_none_match)
        return ObjectMeta(key, sum(part.size for part in parts), answer["ETag"], None, 0)

    def abort_multipart(self, key: str, upload_id: str) -> None:
        try:
            self._client.call("abort_multipart_upload", key, {"UploadId": upload_id}, conditional=False)
        except NotFound:
            pass

    def list_multipart(self, prefix: str) -> Iterator[PendingUpload]:
        arguments: dict[str, Any] = {"Prefix": prefix}
        while True:
            answer = self._client.call("list_multipart_uploads", None, arguments, conditional=False)
            for item in answer.get("Uploads", ()):
                if item["Key"].startswith(prefix):  # some servers ignore the prefix
                    yield PendingUpload(item["Key"], item["UploadId"], _milliseconds(item["Initiated"]))
            markers = answer.get("NextKeyMarker"), answer.get("NextUploadIdMarker")
            if not answer.get("IsTruncated"):
                return
            if not markers[0] or markers == (arguments.get("KeyMarker"), arguments.get("UploadIdMarker")):
                raise StoreError(f"{self._client.name(prefix)}: the store truncated a listing without a marker")
            arguments |= {"KeyMarker": markers[0], "UploadIdMarker": markers[1] or ""}

    def close(self) -> None:
        self._connections.close()
        self._client.close()


def _meta_of(key: str, answer: Answer) -> ObjectMeta:
    """Raises ValueError when a header is missing or not as S3 sends it."""
    etag, modified = answer.getheader("ETag"), answer.getheader("Last-Modified")
    if answer.length is None or not etag or not modified:
        raise ValueError("no length, ETag or time")
    checksum = {
        "ChecksumCRC32C": answer.getheader("x-amz-checksum-crc32c"),
        "ChecksumType": answer.getheader("x-amz-checksum-type"),
    }
    return ObjectMeta(key, answer.length, etag, decode_crc(checksum), _milliseconds(parsedate_to_datetime(modified)))


def _milliseconds(moment: Any) -> int:
    return round(moment.timestamp() * 1000)
