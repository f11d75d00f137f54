"""Gathers the deltas of a manifest record into tables of int64, for storage.manifest.record_encode; GIL held."""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLong
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from kbroker._fast.manifest.part_columns cimport (
    ABORTED,
    ABORTED_COLUMNS,
    ABORTED_OF,
    ADDED,
    ADDED_OF,
    BATCH_COLUMNS,
    BATCHES,
    BATCHES_OF,
    EPOCH_COLUMNS,
    EPOCHS,
    EPOCHS_OF,
    FILE,
    GONE,
    GONE_COLUMNS,
    GONE_OF,
    OPENED,
    OPENED_COLUMNS,
    OPENED_OF,
    PART_COLUMNS,
    PARTITION,
    PARTS,
    PRODUCER_COLUMNS,
    PRODUCERS,
    PRODUCERS_OF,
    REMOVED,
    REMOVED_COLUMNS,
    REMOVED_OF,
    ROW_COLUMNS,
    TABLE_COUNT,
    TOPIC,
    UNCHANGED,
)

cdef enum:                    # fields of storage.manifest.record.PartitionDelta
    F_GRACE_MS
    F_LOG_START_OFFSET
    F_END_OFFSET
    F_LAST_STABLE_OFFSET
    F_OPEN
    F_EPOCHS
    F_ABORTED
    F_PRODUCERS
    F_REMOVED
    F_ADDED
    F_CLEAN_OFFSET
    F_ABORTED_GONE
    F_HORIZON_MS
    F_NUMBER
    F_LEADER_EPOCH
    FIELDS

cdef Py_ssize_t[TABLE_COUNT] WIDTHS
WIDTHS[:] = [
    PART_COLUMNS, ROW_COLUMNS, REMOVED_COLUMNS, PRODUCER_COLUMNS, BATCH_COLUMNS, OPENED_COLUMNS, ABORTED_COLUMNS,
    GONE_COLUMNS, EPOCH_COLUMNS,
]


cdef class Table:

    def __cinit__(self):
        self.values = array.array("q")

    cdef int64_t* grow(self, Py_ssize_t count) except NULL:
        """Room for so many more values, to be filled."""
        cdef Py_ssize_t first = self.used
        self.used += count
        array.resize_smart(self.values, self.used)
        return <int64_t*>self.values.data.as_longlongs + first

    cdef int put(self, object row, Py_ssize_t width) except -1:
        """The first integers of a row."""
        cdef int64_t* at
        cdef Py_ssize_t i
        _check_tuple(row, width)
        at = self.grow(width)
        for i in range(width):
            at[i] = _integer(<object>PyTuple_GET_ITEM(row, i))
        return 0

    cdef Py_ssize_t put_rows(self, tuple rows, Py_ssize_t width) except -1:
        for row in rows:
            self.put(row, width)
        return len(rows)

    cdef Py_ssize_t put_integers(self, tuple values) except -1:
        cdef int64_t* at
        for value in values:
            at = self.grow(1)
            at[0] = _integer(value)
        return len(values)

    cdef int copy(self, const int64_t* values, Py_ssize_t count) except -1:
        if count:
            memcpy(self.grow(count), values, count * sizeof(int64_t))
        return 0


cdef int _check_tuple(object row, Py_ssize_t width) except -1:
    """A tuple, named or not, of at least so many values."""
    if not isinstance(row, tuple) or len(row) < width:
        raise TypeError(f"not a tuple of {width} values: {row!r:.80}")
    return 0


cdef inline object _field(object delta, Py_ssize_t number):
    return <object>PyTuple_GET_ITEM(delta, number)


cdef inline int64_t _integer(object value) except? -1:
    return PyLong_AsLongLong(value)


cdef inline int64_t _optional(object value) except? -1:
    return UNCHANGED if value is None else PyLong_AsLongLong(value)


cdef int read_tables(tuple tables, Tables* found) except -1:
    """Points at tables of bytes. ValueError unless each is whole rows."""
    cdef Py_ssize_t table, size
    if len(tables) != TABLE_COUNT:
        raise ValueError(f"{len(tables)} tables instead of {TABLE_COUNT}")
    for table in range(TABLE_COUNT):
        data = <object>PyTuple_GET_ITEM(tables, table)
        if type(data) is not bytes:
            raise ValueError("a table is not bytes")
        size = PyBytes_GET_SIZE(data)
        if size % (WIDTHS[table] * <Py_ssize_t>sizeof(int64_t)):
            raise ValueError(f"table {table}: {size} bytes are not whole rows")
        found.at[table] = <const int64_t*>PyBytes_AS_STRING(data)
        found.rows[table] = size // (WIDTHS[table] * <Py_ssize_t>sizeof(int64_t))
    return 0


cdef inline bint _fits(int64_t* used, int64_t count, Py_ssize_t rows) noexcept:
    """Counts rows of a table; whether there are so many."""
    if count < 0 or count > rows - used[0]:
        return False
    used[0] += count
    return True


def check_tables(tuple topics, tuple tables, Py_ssize_t file_count):
    """How many parts there are. ValueError unless the tables' rows are those that the parts count, of these topics and
    of so many objects."""
    cdef Tables of
    cdef int64_t[TABLE_COUNT] used
    cdef const int64_t* part
    cdef Py_ssize_t i, table
    read_tables(tables, &of)
    memset(used, 0, sizeof(used))
    for topic_id in topics:
        if type(topic_id) is not bytes or len(topic_id) != 16:
            raise ValueError("a topic id is not 16 bytes")
    if len(set(topics)) < len(topics):
        raise ValueError("a topic is there twice")
    for i in range(of.rows[PARTS]):
        part = of.at[PARTS] + i * PART_COLUMNS
        if not (
            0 <= part[TOPIC] < len(topics)
            and _fits(&used[ADDED], part[ADDED_OF], of.rows[ADDED])
            and _fits(&used[REMOVED], part[REMOVED_OF], of.rows[REMOVED])
            and _fits(&used[PRODUCERS], part[PRODUCERS_OF], of.rows[PRODUCERS])
            and part[OPENED_OF] >= UNCHANGED
            and _fits(&used[OPENED], max(part[OPENED_OF], 0), of.rows[OPENED])
            and _fits(&used[ABORTED], part[ABORTED_OF], of.rows[ABORTED])
            and _fits(&used[GONE], part[GONE_OF], of.rows[GONE])
            and _fits(&used[EPOCHS], part[EPOCHS_OF], of.rows[EPOCHS])
        ):
            raise ValueError(f"part {i}: its topic or its rows are missing")
    for i in range(of.rows[PRODUCERS]):
        if not _fits(&used[BATCHES], of.at[PRODUCERS][i * PRODUCER_COLUMNS + BATCHES_OF], of.rows[BATCHES]):
            raise ValueError(f"producer {i}: its batches are missing")
    used[PARTS] = of.rows[PARTS]
    for table in range(TABLE_COUNT):
        if used[table] != of.rows[table]:
            raise ValueError(f"table {table}: {of.rows[table]} rows, of which the parts have {used[table]}")
    for i in range(of.rows[ADDED]):
        if not 0 <= of.at[ADDED][i * ROW_COLUMNS + FILE] < file_count:
            raise ValueError(f"reference {i}: its object is missing")
    return of.rows[PARTS]


cdef class PartTables:

    def __cinit__(self):
        self.topics, self._places = [], {}
        self._parts, self._added, self._removed = Table(), Table(), Table()
        self._producers, self._batches, self._opened = Table(), Table(), Table()
        self._aborted, self._gone, self._epochs = Table(), Table(), Table()

    def __len__(self):
        return self._parts.used // PART_COLUMNS

    @property
    def tables(self):
        """The tables, arrays of int64 row by row."""
        return (
            self._parts.values, self._added.values, self._removed.values, self._producers.values, self._batches.values,
            self._opened.values, self._aborted.values, self._gone.values, self._epochs.values,
        )

    cdef int64_t _place(self, bytes topic_id) except -1:
        cdef object place = self._places.setdefault(topic_id, len(self.topics))
        if place == len(self.topics):
            self.topics.append(topic_id)
        return place

    def add(self, bytes topic_id, object partition, object delta, object number, object leader_epoch):
        """A partition's delta, from a sender: that of the delta does not count."""
        cdef int64_t row[PART_COLUMNS]
        cdef int64_t* at
        _check_tuple(delta, FIELDS)
        row[0] = self._place(topic_id)
        row[1] = partition
        row[2] = number
        row[3] = leader_epoch
        row[4] = _field(delta, F_GRACE_MS)
        row[5] = _optional(_field(delta, F_LOG_START_OFFSET))
        row[6] = _optional(_field(delta, F_END_OFFSET))
        row[7] = _optional(_field(delta, F_LAST_STABLE_OFFSET))
        row[8] = _optional(_field(delta, F_CLEAN_OFFSET))
        row[9] = _optional(_field(delta, F_HORIZON_MS))
        row[10] = self._added.put_rows(_field(delta, F_ADDED), ROW_COLUMNS)
        row[11] = self._removed.put_integers(_field(delta, F_REMOVED))
        row[12] = len(_field(delta, F_PRODUCERS))
        for entry in _field(delta, F_PRODUCERS):
            self._producers.put(entry, BATCHES_OF)
            at = self._producers.grow(1)
            at[0] = self._batches.put_rows(entry[BATCHES_OF], BATCH_COLUMNS)
        row[13] = UNCHANGED
        if _field(delta, F_OPEN) is not None:
            row[13] = self._opened.put_rows(_field(delta, F_OPEN), OPENED_COLUMNS)
        row[14] = self._aborted.put_rows(_field(delta, F_ABORTED), ABORTED_COLUMNS)
        row[15] = self._gone.put_integers(_field(delta, F_ABORTED_GONE))
        row[16] = self._epochs.put_rows(_field(delta, F_EPOCHS), EPOCH_COLUMNS)
        self._parts.copy(row, PART_COLUMNS)

    def take(self, tuple topics, tuple tables, bytes chosen, tuple files, array.array places, list named):
        """Adds parts of tables that ``check_tables`` has accepted: those whose byte in ``chosen`` is not 0.

        ``files``: the objects that the tables count. One that is used, and has -1 in ``places``, is added to ``named``,
        the objects that the record names; ``places`` gets its place there.
        """
        cdef Tables of
        cdef const int64_t* part
        cdef Py_ssize_t i, table
        cdef Py_ssize_t counts[TABLE_COUNT]
        cdef array.array topic_places = array.array("q", [-1]) * len(topics)
        read_tables(tables, &of)
        if PyBytes_GET_SIZE(chosen) != of.rows[PARTS] or len(places) != len(files) or places.typecode != "q":
            raise ValueError("not a byte for each part, and a place for each object")
        for i in range(of.rows[PARTS]):
            part = of.at[PARTS]
            count_rows(&of, part, counts)
            if PyBytes_AS_STRING(chosen)[i]:
                if topic_places.data.as_longlongs[part[TOPIC]] < 0:
                    topic_places.data.as_longlongs[part[TOPIC]] = self._place(topics[part[TOPIC]])
                self._take_part(part, topic_places.data.as_longlongs[part[TOPIC]])
                self._take_references(of.at[ADDED], counts[ADDED], files, places, named)
                self._removed.copy(of.at[REMOVED], counts[REMOVED] * REMOVED_COLUMNS)
                self._producers.copy(of.at[PRODUCERS], counts[PRODUCERS] * PRODUCER_COLUMNS)
                self._batches.copy(of.at[BATCHES], counts[BATCHES] * BATCH_COLUMNS)
                self._opened.copy(of.at[OPENED], counts[OPENED] * OPENED_COLUMNS)
                self._aborted.copy(of.at[ABORTED], counts[ABORTED] * ABORTED_COLUMNS)
                self._gone.copy(of.at[GONE], counts[GONE] * GONE_COLUMNS)
                self._epochs.copy(of.at[EPOCHS], counts[EPOCHS] * EPOCH_COLUMNS)
            for table in range(TABLE_COUNT):
                of.at[table] += counts[table] * WIDTHS[table]

    cdef int _take_part(self, const int64_t* part, int64_t topic) except -1:
        cdef int64_t* at = self._parts.grow(PART_COLUMNS)
        memcpy(at, part, PART_COLUMNS * sizeof(int64_t))
        at[TOPIC] = topic
        return 0

    cdef int _take_references(
        self, const int64_t* rows, Py_ssize_t count, tuple files, array.array places, list named
    ) except -1:
        cdef int64_t* at
        cdef int64_t* place
        cdef Py_ssize_t i
        for i in range(count):
            if not 0 <= rows[i * ROW_COLUMNS + FILE] < len(files):
                raise ValueError("the object of a reference is missing")
            place = <int64_t*>places.data.as_longlongs + rows[i * ROW_COLUMNS + FILE]
            if place[0] < 0:
                place[0] = len(named)
                named.append(files[rows[i * ROW_COLUMNS + FILE]])
            at = self._added.grow(ROW_COLUMNS)
            memcpy(at, rows + i * ROW_COLUMNS, ROW_COLUMNS * sizeof(int64_t))
            at[FILE] = place[0]
        return 0


cdef int count_rows(const Tables* of, const int64_t* part, Py_ssize_t* counts) noexcept:
    """How many rows of each table are the part's, whose tables begin at `of.at`."""
    cdef Py_ssize_t i
    counts[PARTS] = 1
    counts[ADDED], counts[REMOVED], counts[PRODUCERS] = part[ADDED_OF], part[REMOVED_OF], part[PRODUCERS_OF]
    counts[OPENED], counts[ABORTED] = max(part[OPENED_OF], 0), part[ABORTED_OF]
    counts[GONE], counts[EPOCHS] = part[GONE_OF], part[EPOCHS_OF]
    counts[BATCHES] = 0
    for i in range(counts[PRODUCERS]):
        counts[BATCHES] += of.at[PRODUCERS][i * PRODUCER_COLUMNS + BATCHES_OF]
    return 0
