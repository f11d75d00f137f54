"""The keys of stored objects as columns, and an index of them.

A key that we make is the number of a prefix and a PackedKey (manifest.keys). Any other is kept as a string, and so is a
second key of the same hash that is added before the index is sorted again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from kbroker._fast.manifest.key_hash import hash_key
from kbroker.lazy_numpy import np
from kbroker.storage.manifest.keys import PackedKey, hash_keys, is_of_packs, pack_object_key, unpack_object_key
from kbroker.storage.manifest.partition_state import KFS, KLIX, PACK

PREFIX_OTHER = -1  # the key is kept as a string
PREFIX_NONE = -2  # the place is free
OTHER_BYTES = 200  # of a Python object in a dict, approximate
RECENT_MAX = 16_384  # keys outside the sorted index, at least

_KINDS = {".pack": PACK, ".kfs": KFS}


class KeyTable:
    """Keys by place, and places by key. Protected by the image's lock. FileTable owns the columns and extends them."""

    def __init__(
        self, prefix: array[int], first: array[int], second: array[int], generation: array[int], rewrite: array[int]
    ) -> None:
        self.prefix = prefix
        self.first = first
        self.second = second
        self.generation = generation
        self.rewrite = rewrite
        self.prefixes: list[str] = []
        self.pack_prefixes: set[int] = set()  # the numbers of those that packs have
        self.others: dict[int, str] = {}  # keys that are kept as strings, those of all KafScale segments among them
        self._prefix_places: dict[str, int] = {}
        self._other_places: dict[str, int] = {}
        self._count = 0
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None  # hashes in order, and their places
        self._recent: dict[int, int] = {}  # hash -> place, of keys added since

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return (place for place, prefix in enumerate(self.prefix) if prefix != PREFIX_NONE)

    @property
    def index_bytes(self) -> int:
        """Approximate memory beside the columns."""
        objects = len(self.others) + len(self._recent)
        return sum(column.nbytes for column in self._sorted or ()) + OTHER_BYTES * objects

    def key(self, place: int) -> str:
        """The key, below the root, of the object at a place."""
        prefix = self.prefix[place]
        return self.others[place] if prefix < 0 else unpack_object_key(self.prefixes[prefix], self._packed(place))

    def kind(self, place: int) -> str:
        """KLIX, PACK or KFS, as the key says."""
        prefix = self.prefix[place]
        if prefix >= 0:
            return PACK if prefix in self.pack_prefixes else KLIX
        key = self.others[place]
        return _KINDS.get(key[key.rfind(".") :], KLIX)

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

    def set(self, place: int, key: str) -> None:
        """Sets the key of a free place. The key is not in the table yet."""
        packed = pack_object_key(key)
        prefix = self.prefix_place(packed[0]) if packed is not None else PREFIX_OTHER
        hashed = hash_key((prefix, *packed[1])) if packed is not None else 0
        if packed is None or hashed in self._recent:
            prefix = PREFIX_OTHER
            self.others[place] = key
            self._other_places[key] = place
        else:
            self.first[place], self.second[place], self.generation[place], self.rewrite[place] = packed[1]
            self._recent[hashed] = place
        self.prefix[place] = prefix
        self._count += 1
        if len(self._recent) > max(RECENT_MAX, self._count >> 3):
            self.sort()

    def clear(self, place: int) -> None:
        """Frees a place."""
        if self.prefix[place] == PREFIX_OTHER:
            del self._other_places[self.others.pop(place)]
        else:
            hashed = hash_key((self.prefix[place], *self._packed(place)))
            if self._recent.get(hashed) == place:
                del self._recent[hashed]
        self.prefix[place] = PREFIX_NONE
        self._count -= 1

    def prefix_place(self, prefix: str) -> int:
        """The number of a key prefix, assigned at first use."""
        place = self._prefix_places.get(prefix)
        if place is None:
            place = self._prefix_places[prefix] = len(self.prefixes)
            self.prefixes.append(prefix)
            if is_of_packs(prefix):
                self.pack_prefixes.add(place)
        return place

    def sort(self) -> int | None:
        """Sorts the index again; returns the place of a duplicate key, if there is one."""
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

    def load_other(self, place: int, key: str) -> bool:
        """From a checkpoint: adds a key that is kept as a string. False when it is there already."""
        if key in self._other_places:
            return False
        self.others[place] = key
        self._other_places[key] = place
        return True

    def count_again(self) -> None:
        """Counts the keys after the columns were filled from outside."""
        self._count = int(np.count_nonzero(np.frombuffer(self.prefix, np.int32) != PREFIX_NONE))

    def _packed(self, place: int) -> PackedKey:
        return PackedKey(self.first[place], self.second[place], self.generation[place], self.rewrite[place])

    def _is_at(self, place: int, prefix: int, packed: PackedKey) -> bool:
        return self.prefix[place] == prefix and self._packed(place) == packed
