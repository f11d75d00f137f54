"""The metadata store in one SQLite file: the embedded backend.

File: table `entry` (key TEXT PRIMARY KEY, value BLOB, version INTEGER, lease INTEGER) and table `revision` (one row);
application_id 0x6B62726B ("kbrk"), user_version 1 is the format version. Journal mode WAL, synchronous FULL: a
transaction that returned is on disk. Leases and watches live in the process; keys under a lease do not survive it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kbroker.clock import Clock, SystemClock
from kbroker.cluster.store import Compare, Delete, Event, KeyValue, Put
from kbroker.errors import StartError
from kbroker.storage.stores.regular_file import check_regular_or_missing

APPLICATION_ID = 0x6B62726B
FORMAT_VERSION = 1
KEY_AFTER_ALL = "\U0010ffff"

SCHEMA = """
CREATE TABLE entry (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, lease INTEGER) WITHOUT ROWID;
CREATE TABLE revision (id INTEGER PRIMARY KEY CHECK (id = 1), value INTEGER NOT NULL);
INSERT INTO revision VALUES (1, 0);
"""


class SqliteStore:
    """A MetadataStore in one file: one connection under one lock. Callbacks run under it, on the thread that writes or
    that finds a lease expired.

    Raises StartError from the constructor for a file that is damaged, foreign or of a newer format.
    """

    def __init__(self, path: Path | str, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()  # protects everything below
        self._watches: list[_Watch] = []
        self._leases: dict[int, tuple[int, float]] = {}  # lease -> (ttl in ms, end on the monotonic clock)
        self._next_lease = 1
        try:
            for suffix in ("", "-wal", "-shm", "-journal"):
                check_regular_or_missing(f"{path}{suffix}")
        except OSError as error:
            raise StartError(f"cannot open the metadata file {error}") from None
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise StartError(f"cannot open the metadata file {path}: {error}") from None
        try:
            self._open(path)
        except sqlite3.OperationalError as error:
            self._db.close()
            raise StartError(f"cannot open the metadata file {path}: {error}") from None
        except sqlite3.Error as error:
            self._db.close()
            raise StartError(
                f"the metadata file {path} is damaged ({error}): move it away, the bucket's metadata log replaces it"
            ) from None
        except StartError:
            self._db.close()
            raise

    def _open(self, path: Path | str) -> None:
        application = self.pragma("application_id")
        if application == 0 and self.pragma("schema_version") == 0:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            # One transaction: a crash leaves an empty file or a whole one.
            self._db.executescript(
                f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
                f"PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
            )
            return
        if application != APPLICATION_ID:
            raise StartError(f"{path} is an SQLite file of another product")
        version = self.pragma("user_version")
        if version != FORMAT_VERSION:
            raise StartError(f"{path} has format version {version}; this kbroker reads version {FORMAT_VERSION}")
        problem = self.pragma("quick_check")
        if problem != "ok":
            raise sqlite3.DatabaseError(str(problem).splitlines()[0])
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("SELECT value FROM revision").fetchone()[0]
        self._db.execute("DELETE FROM entry WHERE lease IS NOT NULL")

    def pragma(self, name: str) -> int | str:
        """A setting of the connection, or a property of the file."""
        return self._db.execute(f"PRAGMA {name}").fetchone()[0]

    def get(self, key: str) -> KeyValue | None:
        """See MetadataStore."""
        with self._lock:
            self._expire_locked()
            row = self._execute("SELECT key, value, version FROM entry WHERE key = ?", (key,)).fetchone()
        return KeyValue(*row) if row else None

    def range(self, prefix: str) -> list[KeyValue]:
        """See MetadataStore."""
        with self._lock:
            self._expire_locked()
            rows = self._execute(
                "SELECT key, value, version FROM entry WHERE key >= ? AND key < ? ORDER BY key",
                (prefix, prefix + KEY_AFTER_ALL),
            ).fetchall()
        return [KeyValue(*row) for row in rows]

    def transact(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> int | None:
        """See MetadataStore."""
        with self._lock:
            self._expire_locked()
            return self._transact_locked(compares, operations)

    def _transact_locked(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> int | None:
        for operation in operations:
            if isinstance(operation, Put) and operation.lease is not None and operation.lease not in self._leases:
                raise OSError(f"metadata store: lease {operation.lease} has ended")
        self._execute("BEGIN IMMEDIATE")
        try:
            if not all(self._version_locked(compare.key) == compare.version for compare in compares):
                self._db.execute("ROLLBACK")
                return None
            revision = int(self._db.execute("SELECT value FROM revision").fetchone()[0]) + 1
            self._db.execute("UPDATE revision SET value = ?", (revision,))
            events = [event for event in (self._write_locked(item, revision) for item in operations) if event]
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise OSError(f"metadata store: {error}") from error
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        for event in events:
            for watch in list(self._watches):
                watch.deliver(event)
        return revision

    def _version_locked(self, key: str) -> int:
        row = self._db.execute("SELECT version FROM entry WHERE key = ?", (key,)).fetchone()
        return int(row[0]) if row else 0

    def _write_locked(self, operation: Put | Delete, revision: int) -> Event | None:
        if isinstance(operation, Put):
            self._db.execute(
                "INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)",
                (operation.key, operation.value, revision, operation.lease),
            )
            return Event(operation.key, operation.value, revision)
        removed = self._db.execute("DELETE FROM entry WHERE key = ?", (operation.key,)).rowcount
        return Event(operation.key, None, revision) if removed else None

    def grant_lease(self, ttl_ms: int) -> int:
        """See MetadataStore."""
        with self._lock:
            lease, self._next_lease = self._next_lease, self._next_lease + 1
            self._leases[lease] = (ttl_ms, self._clock.monotonic() + ttl_ms / 1000)
            return lease

    def keep_alive(self, lease: int) -> bool:
        """See MetadataStore."""
        with self._lock:
            self._expire_locked()
            if lease not in self._leases:
                return False
            ttl_ms = self._leases[lease][0]
            self._leases[lease] = (ttl_ms, self._clock.monotonic() + ttl_ms / 1000)
            return True

    def revoke(self, lease: int) -> None:
        """See MetadataStore."""
        with self._lock:
            if self._leases.pop(lease, None) is not None:
                keys = self._execute("SELECT key FROM entry WHERE lease = ? ORDER BY key", (lease,)).fetchall()
                if keys:
                    self._transact_locked((), [Delete(key) for (key,) in keys])

    def _expire_locked(self) -> None:
        """Ends expired leases. Called at each access: no thread is needed, and no reader sees an expired lease."""
        if self._leases:
            now = self._clock.monotonic()
            for lease in [lease for lease, (_, end) in self._leases.items() if end <= now]:
                self.revoke(lease)

    def watch(self, prefix: str, on_event: Callable[[Event], None]) -> _Watch:
        """See MetadataStore."""
        watch = _Watch(self, prefix, on_event)
        with self._lock:
            self._watches.append(watch)
        return watch

    def stop_watch(self, watch: _Watch) -> None:
        """Ends a watch."""
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise OSError(f"metadata store: {error}") from error

    def close(self) -> None:
        """See MetadataStore."""
        with self._lock:
            self._watches.clear()
            self._db.close()


class _Watch:
    """One watch of a SqliteStore."""

    def __init__(self, store: SqliteStore, prefix: str, on_event: Callable[[Event], None]) -> None:
        self._store = store
        self._prefix = prefix
        self._on_event = on_event

    def deliver(self, event: Event) -> None:
        """Called by the store, under its lock."""
        if event.key.startswith(self._prefix):
            self._on_event(event)

    def close(self) -> None:
        """See store.Watch."""
        self._store.stop_watch(self)
