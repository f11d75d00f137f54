"""The objects that the manifest names, as columns: about 90 bytes each with the index of their keys.

A Python object with its strings would take 600. `StoredObject` is a view of the table, created on access. Places in the
table are reused after an object is removed; references (partition_state) hold places.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator

from kbroker.lazy_numpy import np
from kbroker.storage.manifest.keys import (
    FORM_OTHER,
    PackedETag,
    PackedKey,
    hash_key,
    hash_keys,
    pack_etag,
    pack_object_key,
    unpack_etag,
    unpack_object_key,
)
from kbroker.storage.manifest.partition_state import KFS, KLIX, PACK

# Columns of a checkpoint, in order, with their array type codes (little-endian there).
COLUMNS = (
    ("size", "q"),
    ("crc32c", "I"),
    ("created_ms", "q"),
    ("prefix", "i"),
    ("first", "q"),
    ("second", "q"),
    ("generation", "i"),
    ("rewrite", "Q"),
    ("etag_first", "Q"),
    ("etag_second", "Q"),
    ("etag_form", "i"),
)
PREFIX_OTHER = -1  # the key is kept as a string
PREFIX_NONE = -2  # the place is free
OTHER_BYTES = 200  # of a Python object in a dict, approximate
CHUNK_BITS = 16
CHUNK_FILES = 1 << CHUNK_BITS  # places that one part of a checkpoint holds
FREE_MAX = 65_536  # free places kept in the list; more are searched for
RECENT_MAX = 16_384  # keys outside the sorted index, at least

_KINDS = {".pack": PACK, ".kfs": KFS}


def kind_of(key: str) -> str:
    """KLIX, PACK or KFS, as the key says."""
    return _KINDS.get(key[key.rfind(".") :], KLIX)


class StoredObject:
    """One object in the bucket that the manifest names; `live` counts the references that point into it.

    It is a view of the table: use it under the image's lock, and do not keep it.
    """

    __slots__ = ("_place", "_table")

    def __init__(self, table: FileTable, place: int) -> None:
        self._table = table
        self._place = place

    @property
    def key(self) -> str:
        """Below the root."""
        return self._table.key(self._place)

    @property
    def kind(self) -> str:
        """KLIX, PACK or KFS."""
        return kind_of(self.key)

    @property
    def size(self) -> int:
        """Bytes."""
        return self._table.size[self._place]

    @size.setter
    def size(self, size: int) -> None:
        self._table.size[self._place] = size

    @property
    def crc32c(self) -> int:
        """CRC-32C of all its bytes."""
        return self._table.crc32c[self._place]

    @property
    def created_ms(self) -> int:
        """Time of the record that names it."""
        return self._table.created_ms[self._place]

    @property
    def live(self) -> int:
        """References that point into it."""
        return self._table.live[self._place]

    @property
    def etag(self) -> str:
        """The store's ETag."""
        return self._table.etag(self._place)

    @etag.setter
    def etag(self, etag: str) -> None:
        self._table.set_etag(self._place, etag)


class FileTable:
    """All stored objects by place, and their places by key. Protected by the image's lock.

    `changed` has the chunks (place >> CHUNK_BITS) that a checkpoint must write again.
    """

    def __init__(self) -> None:
        self.size = array("q")
        self.crc32c = array("I")
        self.created_ms = array("q")
        self.prefix = array("i")
        self.first = array("q")
        self.second = array("q")
        self.generation = array("i")
        self.rewrite = array("Q")
        self.etag_first = array("Q")
        self.etag_second = array("Q")
        self.etag_form = array("i")
        self.live = array("i")
        self.prefixes: list[str] = []
        self.other_keys: dict[int, str] = {}
        self.other_etags: dict[int, str] = {}
        self.changed: set[int] = set()
        self._prefix_places: dict[str, int] = {}
        self._other_places: dict[str, int] = {}
        self._count = 0
        self._free: list[int] = []  # a heap: the lowest place is used first, so that chunks at the end can go
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None  # hashes in order, and their places
        self._recent: dict[int, int] = {}  # hash -> place, of keys added since

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> StoredObject:
        if not 0 <= place < len(self.prefix) or self.prefix[place] == PREFIX_NONE:
            raise KeyError(place)
        return StoredObject(self, place)

    def __iter__(self) -> Iterator[int]:
        return (place for place, prefix in enumerate(self.prefix) if prefix != PREFIX_NONE)

    def values(self) -> Iterator[StoredObject]:
        """All objects."""
        return (StoredObject(self, place) for place in self)

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of columns and index."""
        row = sum(array(typecode).itemsize for _, typecode in COLUMNS) + self.live.itemsize
        others = len(self.other_keys) + len(self.other_etags) + len(self._recent)
        index = sum(column.nbytes for column in self._sorted or ())
        return row * self.places + index + OTHER_BYTES * others

    @property
    def places(self) -> int:
        """Places in the table, free ones included."""
        return len(self.prefix)

    def key(self, place: int) -> str:
        """The key, below the root, of the object at a place."""
        prefix = self.prefix[place]
        if prefix < 0:
            return self.other_keys[place]
        return unpack_object_key(self.prefixes[prefix], self._packed(place))

    def kind(self, place: int) -> str:
        """KLIX, PACK or KFS."""
        prefix = self.prefix[place]
        return kind_of(self.other_keys[place]) if prefix < 0 else PACK if self.prefixes[prefix] == "_packs" else KLIX

    def _packed(self, place: int) -> PackedKey:
        return PackedKey(self.first[place], self.second[place], self.generation[place], self.rewrite[place])

    def etag(self, place: int) -> str:
        """The ETag of the object at a place."""
        form = self.etag_form[place]
        if form == FORM_OTHER:
            return self.other_etags[place]
        return unpack_etag(PackedETag(self.etag_first[place], self.etag_second[place], form))

    def set_etag(self, place: int, etag: str) -> None:
        """Sets the ETag of the object at a place."""
        packed = pack_etag(etag)
        self.other_etags.pop(place, None)
        if packed is None:
            self.other_etags[place] = etag
            packed = PackedETag(0, 0, FORM_OTHER)
        self.etag_first[place], self.etag_second[place], self.etag_form[place] = packed

    # -- adding and removing -----------------------------------------------------------------------------------

    def add(self, key: str, size: int, etag: str, crc32c: int, created_ms: int) -> int:
        """Adds an object without references; returns its place. The key is not in the table yet."""
        place = self._free_place()
        self.size[place], self.crc32c[place], self.created_ms[place] = size, crc32c, created_ms
        self.set_etag(place, etag)
        packed = pack_object_key(key)
        prefix = self.prefix_place(packed[0]) if packed is not None else PREFIX_OTHER
        hashed = hash_key((prefix, *packed[1])) if packed is not None else 0
        if packed is None or hashed in self._recent:
            prefix = PREFIX_OTHER
            self.other_keys[place] = key
            self._other_places[key] = place
        else:
            self.first[place], self.second[place], self.generation[place], self.rewrite[place] = packed[1]
            self._recent[hashed] = place
        self.prefix[place] = prefix
        self._count += 1
        self.changed.add(place >> CHUNK_BITS)
        if len(self._recent) > max(RECENT_MAX, self._count >> 3):
            self.index_keys()
        return place

    def remove(self, place: int) -> None:
        """Removes an object."""
        if self.prefix[place] == PREFIX_OTHER:
            del self._other_places[self.other_keys.pop(place)]
        else:
            hashed = hash_key((self.prefix[place], *self._packed(place)))
            if self._recent.get(hashed) == place:
                del self._recent[hashed]
        self.other_etags.pop(place, None)
        self.prefix[place] = PREFIX_NONE
        self.live[place] = 0
        self._count -= 1
        self.changed.add(place >> CHUNK_BITS)
        if len(self._free) < FREE_MAX:
            heapq.heappush(self._free, place)

    def _free_place(self) -> int:
        if not self._free and self._count < len(self.prefix):
            free = np.flatnonzero(np.frombuffer(self.prefix, np.int32) == PREFIX_NONE)
            self._free = free[:FREE_MAX].tolist()  # sorted: a heap
        if self._free:
            return heapq.heappop(self._free)
        for name, _ in COLUMNS:
            getattr(self, name).append(0)
        self.live.append(0)
        self.prefix[-1] = PREFIX_NONE
        return len(self.prefix) - 1

    def prefix_place(self, prefix: str) -> int:
        """The number of a key prefix, assigned at first use."""
        place = self._prefix_places.get(prefix)
        if place is None:
            place = self._prefix_places[prefix] = len(self.prefixes)
            self.prefixes.append(prefix)
        return place

    def drop_references(self, places: np.ndarray) -> list[int]:
        """Decrements reference counts; returns the places of the objects without any left, in the order of `places`."""
        if len(places) == 1:
            place = int(places[0])
            self.live[place] -= 1
            return [place] if self.live[place] == 0 else []
        which, first, counts = np.unique(places, return_index=True, return_counts=True)
        live = np.frombuffer(self.live, np.int32)
        live[which] -= counts.astype(np.int32)
        gone = live[which] == 0
        empty: list[int] = which[gone][np.argsort(first[gone])].tolist()
        return empty

    # -- keys --------------------------------------------------------------------------------------------------

    def place_of(self, key: str) -> int | None:
        """The place of the object with this key, below the root; None when there is none."""
        place = self._other_places.get(key)
        if place is not None:
            return place
        packed = pack_object_key(key)
        prefix = self._prefix_places.get(packed[0]) if packed is not None else None
        if packed is None or prefix is None:
            return None
        hashed = hash_key((prefix, *packed[1]))
        place = self._recent.get(hashed)
        if place is not None and self._is_at(place, prefix, packed[1]):
            return place
        if self._sorted is None:
            return None
        hashes, places = self._sorted
        index = int(np.searchsorted(hashes, np.uint64(hashed)))
        while index < len(hashes) and int(hashes[index]) == hashed:
            place = int(places[index])
            if self._is_at(place, prefix, packed[1]):
                return place
            index += 1
        return None

    def _is_at(self, place: int, prefix: int, packed: PackedKey) -> bool:
        return self.prefix[place] == prefix and self._packed(place) == packed

    def index_keys(self) -> int | None:
        """Rebuilds the sorted index of keys; returns the place of a duplicate key, if there is one."""
        prefix = np.frombuffer(self.prefix, np.int32)
        places = np.flatnonzero(prefix >= 0)
        keys = [
            np.frombuffer(column, dtype)[places]
            for column, dtype in (
                (self.prefix, np.int32),
                (self.first, np.int64),
                (self.second, np.int64),
                (self.generation, np.int32),
                (self.rewrite, np.uint64),
            )
        ]
        hashes = hash_keys(keys)
        order = np.argsort(hashes)
        hashes, places = hashes[order], places[order].astype(np.int32)
        self._sorted = hashes, places
        self._recent = {}
        for index in np.flatnonzero(hashes[1:] == hashes[:-1]).tolist():
            a, b = int(places[index]), int(places[index + 1])
            if self._is_at(a, self.prefix[b], self._packed(b)):
                return a
        return None

    def other(self) -> Iterator[str]:
        """Keys that are kept as strings, those of all KafScale segments among them."""
        return iter(self._other_places)

    def load_other(self, place: int, key: str) -> bool:
        """From a checkpoint: adds a key that is kept as a string. False when it is there already."""
        if key in self._other_places:
            return False
        self.other_keys[place] = key
        self._other_places[key] = place
        return True

    def count_again(self) -> None:
        """Call after the columns were filled from outside."""
        prefix = np.frombuffer(self.prefix, np.int32)
        self._count = int(np.count_nonzero(prefix != PREFIX_NONE))
        self._free = []
