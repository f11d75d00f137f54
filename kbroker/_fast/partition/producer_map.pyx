"""A partition's producers as the manifest has them: a mapping whose values are compact rows of a pool."""

from kbroker._fast.partition.producer_pool cimport WRITTEN_UNKNOWN, ProducerPool, ProducerTable, find_row, row_at

from libc.stdint cimport int64_t, uint32_t


cdef class ProducerMap(ProducerTable):
    """producer id -> ProducerEntry (storage.manifest.partition_state), which is made on the way out. Iterates by producer id.

    `written_ms` of an entry: when a record named it last. What the pool evicts is no longer here. GIL held.
    """

    def __contains__(self, int64_t producer_id):
        return find_row(self, producer_id) != 0

    def __getitem__(self, int64_t producer_id):
        cdef uint32_t number = find_row(self, producer_id)
        if number == 0:
            raise KeyError(producer_id)
        return self.entry_of(number)

    def __setitem__(self, int64_t producer_id, entry):
        if entry[0] != producer_id:
            raise ValueError(f"the entry of producer {entry[0]} under {producer_id}")
        self.put(entry)

    def __delitem__(self, int64_t producer_id):
        cdef uint32_t number = find_row(self, producer_id)
        if number == 0:
            raise KeyError(producer_id)
        self.remove(number)

    def __iter__(self):
        return iter(self.keys())

    def __eq__(self, other):
        try:
            return dict(self) == dict(other)
        except (TypeError, ValueError):
            return NotImplemented

    __hash__ = None

    def __reduce__(self):
        return _restored, (dict(self.items()), self.written())

    def __repr__(self):
        return f"ProducerMap({dict(self)!r})"

    def get(self, int64_t producer_id, default=None):
        """The producer's entry."""
        cdef uint32_t number = find_row(self, producer_id)
        return default if number == 0 else self.entry_of(number)

    def keys(self):
        """The producer ids, as a list."""
        return [row_at(self.pool, number).producer_id for number in self.numbers()]

    def values(self):
        """The entries, as a list."""
        return [entry for entry in map(self.get, self.keys()) if entry is not None]

    def items(self):
        """(producer id, entry), as a list."""
        return [(entry[0], entry) for entry in self.values()]

    def put(self, entry, int64_t written_ms=WRITTEN_UNKNOWN):
        """Adds or replaces the entry of one producer."""
        self.put_entry(entry, written_ms)

    def update(self, entries, written=None):
        """Takes over another mapping's entries. ``written``: producer id -> time, where that is known."""
        known = written or {}
        for producer_id, entry in entries.items():
            self.put_entry(entry, known.get(producer_id, WRITTEN_UNKNOWN))

    def expire(self, int64_t now_ms, int64_t expiration_ms):
        """Forgets producers without an open transaction that have been silent for ``expiration_ms``, by the newest batch's
        timestamp and by when they wrote. Of which that is not known, they wrote now. True where anything has changed since
        the last call, evictions included."""
        cdef bint changed = self.has_evicted
        self.has_evicted = False
        return self.expire_rows(now_ms, expiration_ms, &changed) > 0 or changed

    def written_ms(self, int64_t producer_id, int64_t unknown_ms=WRITTEN_UNKNOWN):
        """When the producer's entry was put last, as far as that is known."""
        cdef uint32_t number = find_row(self, producer_id)
        if number == 0 or row_at(self.pool, number).written_ms == WRITTEN_UNKNOWN:
            return unknown_ms
        return row_at(self.pool, number).written_ms

    def set_written_ms(self, int64_t producer_id, int64_t written_ms):
        """Says when the producer wrote last; it is the youngest now."""
        cdef uint32_t number = find_row(self, producer_id)
        if number == 0:
            raise KeyError(producer_id)
        self.pool.touch(number, written_ms)

    def written(self):
        """producer id -> when it wrote last, of those of which that is known."""
        times = {producer_id: self.written_ms(producer_id) for producer_id in self.keys()}
        return {producer_id: time_ms for producer_id, time_ms in times.items() if time_ms != WRITTEN_UNKNOWN}


def _restored(entries, written):
    """A pickled map, in a pool of its own without a bound: for a job's task, which only reads it."""
    restored = ProducerMap(ProducerPool())
    restored.update(entries, written)
    return restored
