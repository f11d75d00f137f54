"""A store that retries conditional creations until their outcome is certain.

For imports and exports, which are not resumed. The rules are those of storage.stores.conditional_write: the object that
is read back decides. Only length and CRC-32C are compared, because bodies are large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker._fast.base.crc32c import combine, crc32c
from kbroker.limits import MIB
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.stores.conditional_write import OutcomeUnknown
from kbroker.storage.stores.object_store import (
    Body,
    NotFound,
    ObjectMeta,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    UploadedPart,
    as_source,
    body_crc32c,
)
from kbroker.storage.stores.store_wrappers import StoreWrapper

READ_BYTES = 4 * MIB


class StoredRange:
    """A range of an object as a body, read while it is sent. `failure`: the error of a failed read."""

    def __init__(self, store: ObjectStore, key: str, etag: str, start: int, length: int) -> None:
        self.length = length
        self.failure: StoreError | None = None
        self._store = store
        self._key = key
        self._etag = etag
        self._start = start

    def read_into(self, position: int, out: memoryview) -> int:
        count = min(len(out), self.length - position)
        if count:
            try:
                self._store.get_into(self._key, self._start + position, out[:count], if_match=self._etag)
            except StoreError as error:
                self.failure = error
                raise
        return count


class CreatingStore(StoreWrapper):
    """`inner` retries all else. Creations raise PreconditionFailed when another object is there, OutcomeUnknown."""

    def __init__(self, inner: ObjectStore, retries: RetryPolicy) -> None:
        super().__init__(inner)
        self._retries = retries

    def put(
        self,
        key: str,
        body: Body,
        *,
        if_none_match: bool = False,
        if_match: str | None = None,
        crc32c: int | None = None,
    ) -> ObjectMeta:
        if not if_none_match:
            return super().put(key, body, if_match=if_match, crc32c=crc32c)
        crc = body_crc32c(body) if crc32c is None else crc32c

        def create() -> ObjectMeta:
            try:
                return self._inner.put(key, body, if_none_match=True, crc32c=crc)
            except StoreUnavailable:
                if isinstance(body, StoredRange) and body.failure is not None:
                    raise body.failure from None  # the original error, not the client library's
                raise

        return self._create(key, as_source(body).length, crc, create)

    def complete_multipart(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = False
    ) -> ObjectMeta:
        if not if_none_match:
            return super().complete_multipart(key, upload_id, parts)
        crc = 0
        for part in parts:
            if part.crc32c is None:
                raise ValueError(f"{key}: part {part.number} without CRC: use complete")
            crc = combine(crc, part.crc32c, part.size)
        return self.complete(key, upload_id, parts, crc)

    def complete(self, key: str, upload_id: str, parts: Sequence[UploadedPart], crc32c: int) -> ObjectMeta:
        """Creates the object of the parts, which has this CRC."""

        def create() -> ObjectMeta:
            return self._inner.complete_multipart(key, upload_id, parts, if_none_match=True)

        return self._create(key, sum(part.size for part in parts), crc32c, create)

    def _create(self, key: str, size: int, crc: int, create: Callable[[], ObjectMeta]) -> ObjectMeta:
        failure: Exception | None = None
        for _ in self._retries.attempts():
            try:
                return create()
            except (PreconditionFailed, NotFound, StoreUnavailable) as error:
                failure = error  # NotFound: the upload was completed, or the body's source is gone
            try:
                meta = self._present(key, size, crc)
            except StoreUnavailable as error:
                failure = error
                continue
            if meta is not None:
                return meta
            if isinstance(failure, NotFound):
                raise failure
        raise OutcomeUnknown(f"{key}: unknown whether it was created: {failure}") from failure

    def _present(self, key: str, size: int, crc: int) -> ObjectMeta | None:
        """The object if it is the one that was sent; None if there is none. PreconditionFailed for another object."""
        try:
            meta = self._inner.head(key)
            known = meta.crc32c if meta.crc32c is not None or meta.size != size else self._crc_of(meta)
        except NotFound:
            return None
        if (meta.size, known) != (size, crc):
            raise PreconditionFailed(f"{key}: another object is there already")
        return meta

    def _crc_of(self, meta: ObjectMeta) -> int:
        value = 0
        for start in range(0, meta.size, READ_BYTES):
            value = crc32c(self._inner.get(meta.key, start, READ_BYTES, if_match=meta.etag), value)
        return value
