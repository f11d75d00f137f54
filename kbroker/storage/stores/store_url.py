"""Opens the object store that a URL names: ``file:PATH``, ``s3://bucket[/prefix]`` or ``memory:`` (tests)."""

from __future__ import annotations

from pathlib import Path

from kbroker.storage.stores.object_store import ObjectStore, check_key
from kbroker.storage.stores.s3_login import S3Login

S3_SCHEME = "s3://"
FILE_SCHEME = "file:"
MEMORY_URL = "memory:"


def open_store(
    url: str,
    endpoint: str | None = None,
    region: str | None = None,
    *,
    create: bool = False,
    connections_max: int = 32,
    connect_timeout_s: float = 5.0,
    read_timeout_s: float = 30.0,
    login: S3Login | None = None,
) -> ObjectStore:
    """The store that ``url`` names; keys are relative to the prefix in it.

    ``create`` makes a missing folder; without it a missing folder is a StoreError. For S3 nothing is sent yet:
    ``store_probe.probe`` finds a missing bucket or wrong credentials. Without ``login``, boto3 looks for credentials.
    ValueError for any other URL.
    """
    if url.startswith(S3_SCHEME):
        bucket, prefix = split_s3_url(url)
        from kbroker.storage.stores.s3_store import S3Store  # boto3 takes a third of a second to import

        store: ObjectStore = S3Store(
            bucket,
            endpoint=endpoint,
            region=region,
            connections_max=connections_max,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            login=login,
        )
        if not prefix:
            return store
        from kbroker.storage.stores.store_wrappers import PrefixStore

        return PrefixStore(store, prefix)
    if url.startswith(FILE_SCHEME):
        from kbroker.storage.stores.local_store import LocalStore

        return LocalStore(split_file_url(url), create=create)
    if url == MEMORY_URL:
        from kbroker.storage.stores.memory_store import MemoryStore

        return MemoryStore()
    raise ValueError(f"object store {url!r}: expected file:PATH or s3://bucket[/prefix]")


def split_s3_url(url: str) -> tuple[str, str]:
    """Bucket and prefix ("" or ending in "/"); ValueError if the bucket is missing or the prefix is no key."""
    bucket, _, prefix = url.removeprefix(S3_SCHEME).partition("/")
    prefix = prefix.strip("/")
    if len(bucket) < 3:
        raise ValueError(f"object store {url!r}: a bucket name has at least 3 characters")
    if prefix:
        check_key(prefix)
    return bucket, prefix + "/" if prefix else ""


def split_file_url(url: str) -> Path:
    """The folder of a ``file:`` URL; ``file:///abs`` and ``file:rel`` both work. ValueError if it is empty."""
    path = url.removeprefix(FILE_SCHEME)
    if path.startswith("///"):
        path = path[2:]
    if not path or path.startswith("//"):
        raise ValueError(f"object store {url!r}: expected file:PATH")
    return Path(path)


def folder_of(place: str) -> Path:
    """The folder that a path or a ``file:`` URL names. ValueError for a URL of something else."""
    if place.startswith(FILE_SCHEME):
        return split_file_url(place)
    if "://" in place or not place:
        raise ValueError(f"{place!r} is no folder: expected PATH or file:PATH")
    return Path(place)
