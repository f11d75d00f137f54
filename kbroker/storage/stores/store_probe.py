"""Proves at start that a store keeps the guarantees that safety rests on, above all conditional writes."""

from __future__ import annotations

import os

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import StartError
from kbroker.storage.stores.object_store import (
    ChecksumMismatch,
    ObjectStore,
    PreconditionFailed,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)

PROBE_DIRECTORY = "_probe/"  # below the root: object_keys.PROBE_DIR
_CHECK_AUTHORITY = "name a file with the authority's certificate in AWS_CA_BUNDLE"
_WRONG_ETAG = '"00000000000000000000000000000000"'


def probe(store: ObjectStore, root: str) -> bool:
    """Seven or eight requests on new keys under ``<root>_probe/``, removed afterwards. StartError says what to do.

    Returns whether the store refuses a body whose CRC-32C is not the one in the request.
    """
    key = f"{root}{PROBE_DIRECTORY}{os.urandom(16).hex()}"
    try:
        _probe_key(store, key)
        return _checks_crc(store, f"{key}-crc")
    except StoreDenied as error:
        raise StartError(f"object store refuses access: {error}; check credentials and permissions") from error
    except StoreUnavailable as error:
        check = _CHECK_AUTHORITY if "CERTIFICATE_VERIFY_FAILED" in str(error) else "check endpoint, network and disk"
        raise StartError(f"object store cannot be reached: {error}; {check}") from error
    except StoreError as error:
        raise StartError(f"object store is not usable: {error}") from error


def _probe_key(store: ObjectStore, key: str) -> None:
    first, second = b"kbroker probe 1", b"kbroker probe 2"
    store.put(key, first, if_none_match=True, crc32c=crc32c(first))
    try:
        _must_refuse(store, key, second, "If-None-Match: *", None)
        _must_refuse(store, key, second, "If-Match", _WRONG_ETAG)
        if [meta.key for meta in store.list(key)] != [key]:
            raise StartError(f"object store does not list {key}, which was just written: it cannot hold a log")
        if store.get(key, 0, 2 * len(first)) != first:
            raise StartError(f"object store does not return the bytes just written to {key}")
    finally:
        store.delete([key])


def _checks_crc(store: ObjectStore, key: str) -> bool:
    body = b"kbroker probe 3"
    try:
        store.put(key, body, crc32c=crc32c(body) ^ 1)
    except ChecksumMismatch:
        return True
    except StoreError:  # refused for another reason, which proves nothing
        return False
    store.delete([key])
    return False


def _must_refuse(store: ObjectStore, key: str, body: bytes, condition: str, if_match: str | None) -> None:
    try:
        store.put(key, body, if_none_match=if_match is None, if_match=if_match, crc32c=crc32c(body))
    except PreconditionFailed:
        return
    raise StartError(
        f"object store does not enforce {condition} on writes, so two brokers could overwrite each other; "
        "use a store that does (Amazon S3, MinIO, versitygw, or a local folder)"
    )
