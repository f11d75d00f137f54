"""The metadata store: keys, values and versions with compare-and-swap; implemented by embedded and shared backends.

tests/conformance/test_metadata_store.py is the contract in full; every backend passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class KeyValue(NamedTuple):
    """A key as stored. `version` is the revision of the transaction that last wrote it: it grows, and is never 0."""

    key: str
    value: bytes
    version: int


class Compare(NamedTuple):
    """A condition of a transaction: the key has this version; 0 means that it does not exist."""

    key: str
    version: int


class Put(NamedTuple):
    """Writes a key. With a lease, the key goes when the lease ends."""

    key: str
    value: bytes
    lease: int | None = None


class Delete(NamedTuple):
    """Removes a key; nothing happens if there is none."""

    key: str


class Event(NamedTuple):
    """A change seen by a watch. `value` is None where the key is gone."""

    key: str
    value: bytes | None
    version: int


class Watch(Protocol):
    """A running watch."""

    def close(self) -> None:
        """No callback begins after this returns."""
        ...


class MetadataStore(Protocol):
    """Thread-safe. Every method raises OSError when the backend fails: nothing is silently kept elsewhere."""

    def get(self, key: str) -> KeyValue | None:
        """The key, or None."""
        ...

    def range(self, prefix: str) -> list[KeyValue]:
        """The keys that begin with `prefix`, sorted."""
        ...

    def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> int | None:
        """All operations, durably, if all conditions hold: the new revision. None, and nothing done, otherwise."""
        ...

    def grant_lease(self, ttl_ms: int) -> int:
        """A lease that ends `ttl_ms` after this or its last renewal."""
        ...

    def keep_alive(self, lease: int) -> bool:
        """Renews a lease; False if it has ended."""
        ...

    def revoke(self, lease: int) -> None:
        """Ends a lease and removes its keys."""
        ...

    def watch(self, prefix: str, on_event: Callable[[Event], None]) -> Watch:
        """Calls `on_event` for each later change of a key that begins with `prefix`, in order of the revisions."""
        ...

    def close(self) -> None:
        """Releases the backend."""
        ...
