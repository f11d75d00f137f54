"""Server-side copies between two places of one S3 service.

An object may be copied in whole or in part, with a tail of our own: for an import its batches and then an index. Ranges
that are too small for a part are not copied: their callers join and send them.
"""

from __future__ import annotations

import contextlib

from kbroker._fast.base.crc32c import combine, crc32c
from kbroker.exchange.creating_store import CreatingStore
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.stores.object_store import PART_BYTES_MIN, ObjectMeta, ObjectStore, StoreError, UploadedPart
from kbroker.storage.stores.store_url import S3_SCHEME, split_s3_url
from kbroker.storage.stores.store_wrappers import RetryingStore

COPY_BYTES_MIN = PART_BYTES_MIN
COPY_BYTES_MAX = 5 * 1024 * 1024 * 1024  # of one part


class ServerCopy:
    """Copies from one prefix of `store` to another one. Its keys are below these. Raises StoreError."""

    def __init__(
        self, store: ObjectStore, source_prefix: str, target_prefix: str, retries: RetryPolicy | None = None
    ) -> None:
        retries = retries or RetryPolicy()
        self.bytes_copied = 0
        self._store = CreatingStore(RetryingStore(store, retries), retries)
        self._source = source_prefix
        self._target = target_prefix

    def copy(
        self, source_key: str, etag: str, start: int, length: int, crc: int, target_key: str, tail: bytes = b""
    ) -> ObjectMeta:
        """Creates an object of a range, which has this CRC-32C, and `tail`. PreconditionFailed, NotFound: the source
        has changed, or the target exists."""
        full = self._target + target_key
        upload_id = self._store.create_multipart(full)
        try:
            copied = self._store.upload_part_copy(
                full, upload_id, 1, self._source + source_key, start, length, if_match=etag
            )
            parts: list[UploadedPart] = [copied]
            if tail:
                parts.append(self._store.upload_part(full, upload_id, 2, tail, crc32c=crc32c(tail)))
            meta = self._store.complete(full, upload_id, parts, combine(crc, crc32c(tail), len(tail)))
        except BaseException:
            with contextlib.suppress(StoreError):
                self._store.abort_multipart(full, upload_id)
            raise
        self.bytes_copied += length
        return meta._replace(key=target_key)

    def close(self) -> None:
        """Closes the store."""
        self._store.close()


def fits(length: int) -> bool:
    """Whether so many bytes can be a copied part that is not the last."""
    return COPY_BYTES_MIN <= length <= COPY_BYTES_MAX


def server_copy(source_url: str, target_url: str, endpoint: str | None, region: str | None) -> ServerCopy | None:
    """The copies between two URLs of one service; None for other URLs. ValueError for malformed ones."""
    if not (source_url.startswith(S3_SCHEME) and target_url.startswith(S3_SCHEME)):
        return None
    from kbroker.storage.stores.s3_store import S3Store  # boto3 takes a third of a second to import

    source_bucket, source_prefix = split_s3_url(source_url)
    target_bucket, target_prefix = split_s3_url(target_url)
    store = S3Store(target_bucket, endpoint=endpoint, region=region, copy_bucket=source_bucket)
    return ServerCopy(store, source_prefix, target_prefix)
