"""Parts of manifest checkpoints: small ones are inline in the checkpoint, the others are objects beside the log.

A part never changes, and names are never reused: a late deletion hits nothing in use. For the same reason each epoch
writes its own parts, which only its own checkpoints name.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from kbroker._fast.base.crc32c import crc32c
from kbroker.errors import CorruptionError
from kbroker.limits import MANIFEST_PART_BYTES_MAX
from kbroker.storage.manifest.record import UINT32_MAX, RecordParser
from kbroker.storage.stores.object_store import ObjectStore, StoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")

INLINE_BYTES_MAX = 24_576  # as stored; a larger part is an object of its own
THREADS = 4
AHEAD = 8  # parts prefetched
NAME_DIGITS = 32
_NAME = re.compile(r"(?:[0-9]{10}-)?[0-9a-f]{32}")
SUFFIX = ".part"


class PartRef(NamedTuple):
    """A part as a checkpoint names it. `inline` has the bytes of a part that is no object."""

    name: str
    size: int
    crc32c: int
    inline: bytes | None = None

    def to_json(self) -> list[Any]:
        """The entry in a checkpoint."""
        inline = [] if self.inline is None else [b64encode(self.inline).decode("ascii")]
        return [self.name, self.size, self.crc32c, *inline]


def parse_part_ref(parser: RecordParser, value: Any, what: str) -> PartRef:
    """Checks one entry of a checkpoint's list of parts."""
    items = parser.array(value, what)
    if len(items) not in (3, 4):
        raise parser.fail(f"{what}: {len(items)} values do not name a part")
    name = parser.text(items[0], what, 43)
    if not _NAME.fullmatch(name):
        raise parser.fail(f"{what}: {name!r} is not the name of a part")
    size = parser.integer(items[1], what, 0, MANIFEST_PART_BYTES_MAX)
    checksum = parser.integer(items[2], what, 0, UINT32_MAX)
    if len(items) == 3:
        return PartRef(name, size, checksum)
    try:
        inline = b64decode(parser.text(items[3], what, 2 * MANIFEST_PART_BYTES_MAX), validate=True)
    except ValueError as error:
        raise parser.fail(f"{what}: not base64") from error
    return PartRef(name, size, checksum, inline)


class PartFolder:
    """The parts in the bucket. `epoch` None: read-only; every written part stays inline."""

    def __init__(self, store: ObjectStore | None = None, directory: str = "", epoch: int | None = None) -> None:
        self._store = store
        self._directory = directory
        self._epoch = epoch
        self._written: set[str] = set()  # by this process, failed attempts included
        self._puts = itertools.count()

    def put(self, data: bytes) -> PartRef:
        """Stores a part. Raises StoreError."""
        digest = hashlib.sha256(data)
        if len(data) <= INLINE_BYTES_MAX or self._epoch is None or self._store is None:
            return PartRef(digest.hexdigest()[:NAME_DIGITS], len(data), crc32c(data), data)
        digest.update(b"%d" % next(self._puts))  # the same content may come again
        ref = PartRef(f"{self._epoch:010d}-{digest.hexdigest()[:NAME_DIGITS]}", len(data), crc32c(data))
        self._written.add(ref.name)
        self._store.put(self.key(ref.name), data, crc32c=ref.crc32c)
        return ref

    def key(self, name: str) -> str:
        """The store key of a part."""
        return f"{self._directory}{name}{SUFFIX}"

    def get(self, ref: PartRef, name: str) -> bytes:
        """The bytes of a part. CorruptionError when it is damaged; NotFound and other StoreErrors."""
        data = ref.inline
        if data is None:
            if self._store is None:
                raise CorruptionError(f"{name}: part {ref.name} is not in the checkpoint")
            data = self._store.get(self.key(ref.name), 0, ref.size + 1)
        if len(data) != ref.size or crc32c(data) != ref.crc32c:
            raise CorruptionError(f"{name}: part {ref.name} is not what was written")
        return data

    def get_all(self, refs: Sequence[PartRef], name: str) -> Iterator[tuple[PartRef, bytes]]:
        """The bytes of several, in order, a few fetched ahead. Raises as `get`."""
        yield from ahead(lambda ref: (ref, self.get(ref, name)), refs, THREADS, AHEAD)

    def delete_unused(self, used: set[str]) -> None:
        """Deletes parts of this process that no kept checkpoint names. A failure is only logged."""
        if self._store is None:
            return
        unused = sorted(self._written - used)
        if unused:
            self._delete([self.key(name) for name in unused])
            self._written -= set(unused)

    def delete_earlier(self) -> None:
        """Deletes the parts of earlier epochs, which no kept checkpoint names any more."""
        if self._store is None or self._epoch is None:
            return
        try:
            listed = [meta.key for meta in self._store.list(self._directory)]
        except StoreError as error:
            logger.warning("%s: parts of earlier epochs stay: %s", self._directory, error)
            return
        mine = self._directory + f"{self._epoch:010d}"
        self._delete([key for key in listed if key < mine and key.endswith(SUFFIX)])

    def _delete(self, keys: list[str]) -> None:
        if not keys or self._store is None:
            return
        try:
            self._store.delete(keys)
        except StoreError as error:
            logger.warning("%s: parts of old checkpoints stay until the next start: %s", self._directory, error)


def ahead(call: Callable[[Any], T], items: Iterable[Any], threads: int, distance: int) -> Iterator[T]:
    """Results in order, computed a few ahead by a few threads. An exception of a call is raised here."""
    rest = list(items)
    if len(rest) <= 1:
        yield from map(call, rest)
        return
    pool = ThreadPoolExecutor(min(threads, len(rest)), thread_name_prefix="kbroker-parts")
    try:
        waiting: list[Future[T]] = []
        for item in rest:
            waiting.append(pool.submit(call, item))
            if len(waiting) > distance:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
