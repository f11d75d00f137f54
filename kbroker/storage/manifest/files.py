"""The objects that the manifest names, as columns: about 90 bytes each with the index of their keys.

A Python object with its strings would take 600. `StoredObject` is a view of the table, created on access. Places in the
table are reused after an object is removed; references (partition_state) hold places.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator

from kbroker.lazy_numpy import np
from kbroker.storage.manifest.key_table import OTHER_BYTES, PREFIX_NONE, KeyTable
from kbroker.storage.manifest.keys import FORM_OTHER, PackedETag, pack_etag, unpack_etag

KEY_COLUMNS = (("prefix", "i"), ("first", "q"), ("second", "q"), ("generation", "i"), ("rewrite", "Q"))
# Columns of a checkpoint, in order, with their array type codes (little-endian there).
COLUMNS = (
    ("size", "q"),
    ("crc32c", "I"),
    ("created_ms", "q"),
    *KEY_COLUMNS,
    ("etag_first", "Q"),
    ("etag_second", "Q"),
    ("etag_form", "i"),
)
CHUNK_BITS = 16
CHUNK_FILES = 1 << CHUNK_BITS  # places that one part of a checkpoint holds
FREE_MAX = 65_536  # free places kept in the list; more are searched for


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
        return self._table.keys.key(self._place)

    @property
    def kind(self) -> str:
        """KLIX, PACK or KFS."""
        return self._table.keys.kind(self._place)

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
    """All stored objects by place. Protected by the image's lock.

    `changed` has the chunks (place >> CHUNK_BITS) that a checkpoint must write again. `columns` has the arrays
    of COLUMNS by name; the attributes are the same arrays.
    """

    def __init__(self) -> None:
        self.columns: dict[str, array[int]] = {name: array(code) for name, code in COLUMNS}
        self.size = self.columns["size"]
        self.crc32c = self.columns["crc32c"]
        self.created_ms = self.columns["created_ms"]
        self.keys = KeyTable(*(self.columns[name] for name, _ in KEY_COLUMNS))
        self.etag_first = self.columns["etag_first"]
        self.etag_second = self.columns["etag_second"]
        self.etag_form = self.columns["etag_form"]
        self.live = array("i")
        self.other_etags: dict[int, str] = {}
        self.changed: set[int] = set()
        self._free: list[int] = []  # a heap: the lowest place is used first, so that chunks at the end can go

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, place: int) -> StoredObject:
        if not 0 <= place < self.places or self.keys.prefix[place] == PREFIX_NONE:
            raise KeyError(place)
        return StoredObject(self, place)

    def values(self) -> Iterator[StoredObject]:
        """All objects."""
        return (StoredObject(self, place) for place in self.keys)

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of columns and index."""
        row = sum(column.itemsize for column in self.columns.values()) + self.live.itemsize
        return row * self.places + self.keys.index_bytes + OTHER_BYTES * len(self.other_etags)

    @property
    def places(self) -> int:
        """Places in the table, free ones included."""
        return len(self.size)

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
        self.keys.set(place, key)
        self.changed.add(place >> CHUNK_BITS)
        return place

    def remove(self, place: int) -> None:
        """Removes an object."""
        self.keys.clear(place)
        self.other_etags.pop(place, None)
        self.live[place] = 0
        self.changed.add(place >> CHUNK_BITS)
        if len(self._free) < FREE_MAX:
            heapq.heappush(self._free, place)

    def _free_place(self) -> int:
        if not self._free and len(self) < self.places:
            free = np.flatnonzero(np.frombuffer(self.keys.prefix, np.int32) == PREFIX_NONE)
            self._free = free[:FREE_MAX].tolist()  # sorted: a heap
        if self._free:
            return heapq.heappop(self._free)
        for column in self.columns.values():
            column.append(0)
        self.live.append(0)
        self.keys.prefix[-1] = PREFIX_NONE
        return self.places - 1

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

    def count_again(self) -> None:
        """Call after the columns were filled from outside."""
        self.keys.count_again()
        self._free = []
