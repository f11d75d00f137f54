"""Creating an object exactly once, although the answer to the request may be lost.

A time-out, a 5xx, a 409 or a 412 on a conditional put says nothing certain: the object there may be the one that was
just sent. So the key is read back and compared, and only what is read decides. Sending the same bytes again under
the same condition is harmless: whichever copy arrives first is the object, and the other is refused.
"""

from __future__ import annotations

from kbroker._fast.base.crc32c import crc32c
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.stores.object_store import (
    InvalidRange,
    NotFound,
    ObjectStore,
    PreconditionFailed,
    StoreUnavailable,
)


class OutcomeUnknown(StoreUnavailable):
    """Deadline or cancellation came before the store said whether the object was created."""


def create_once(store: ObjectStore, key: str, data: bytes, retries: RetryPolicy, read_bytes_max: int) -> bytes | None:
    """Creates ``key`` with ``data`` if it does not exist. Returns None when it holds our bytes (from this call or an
    earlier one), else what it holds, cut at ``read_bytes_max``. Raises OutcomeUnknown; other StoreErrors pass through.
    """
    checksum = crc32c(data)
    failure: Exception | None = None
    for _ in retries.attempts():
        try:
            store.put(key, data, if_none_match=True, crc32c=checksum)
            return None
        except (PreconditionFailed, StoreUnavailable) as error:
            failure = error
        try:
            present = read_back(store, key, read_bytes_max)
            if present == data:
                return None
            if present is not None and read_back(store, key, read_bytes_max) == present:
                return present  # read twice: a damaged read must not pass for another writer's object
        except StoreUnavailable as error:
            failure = error
    raise OutcomeUnknown(f"{key}: unknown whether it was created: {failure}") from failure


def read_back(store: ObjectStore, key: str, read_bytes_max: int) -> bytes | None:
    """What the key holds, cut at ``read_bytes_max``; None if there is no object."""
    try:
        return store.get(key, 0, read_bytes_max)
    except NotFound:
        return None
    except InvalidRange:
        return b""  # an empty object
