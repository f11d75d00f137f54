"""Applies the parts of a manifest record that only append, straight from its columns; GIL held throughout.

A part that does anything else, or that does not fit, is left to storage.manifest.record_check and record_apply, which
say what is wrong. Callers have checked the columns by themselves (storage.manifest.record_decode) and hold what keeps
others from changing the image.
"""

from cpython cimport array
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.string cimport memcpy

from kbroker._fast.manifest.part_columns cimport (
    ABORTED_OF,
    ADDED_OF,
    BASE,
    CLEAN_OFFSET,
    END,
    END_OFFSET,
    EPOCHS_OF,
    GONE_OF,
    LAST_STABLE_OFFSET,
    LEADER_EPOCH,
    LENGTH,
    LOG_START_OFFSET,
    NO_LEADER,
    NUMBER,
    OPENED_OF,
    PART_COLUMNS,
    PARTITION,
    PRODUCERS_OF,
    REMOVED_OF,
    ROW_COLUMNS,
    TOPIC,
    UNCHANGED,
)
from kbroker._fast.manifest.partition_numbers cimport PartitionNumbers, RowArrays
from kbroker._fast.partition.producer_pool cimport CACHED_BATCHES, CachedBatch, ProducerTable

cdef extern from *:
    """
    #define kb_allocated(a) ((a)->allocated)
    #define kb_exports(a) ((a)->ob_exports)
    """
    Py_ssize_t kb_allocated(array.array a)
    int kb_exports(array.array a)

cdef enum:
    STRIDE = ROW_COLUMNS - 1  # of a RowBlock's rows: bases are an array of their own
    GROWTH_SHIFT = 4          # an array grows by a sixteenth, and room for as much again


def plan_appends(dict partitions, list topics, const int64_t[:, ::1] parts, const int64_t[:, ::1] added, is_fenced):
    """The state that each part appends to, None where the part is not a plain append that fits.

    ``partitions``: topic id -> partition -> PartitionState. Nothing is changed.
    """
    cdef Py_ssize_t part, row = 0, rows
    cdef list states = []
    cdef dict fenced = {}     # broker number -> whether it is fenced
    if parts.shape[0] and parts.shape[1] != PART_COLUMNS or added.shape[0] and added.shape[1] != ROW_COLUMNS:
        raise ValueError("columns are missing")
    for part in range(parts.shape[0]):
        rows = parts[part, ADDED_OF]
        states.append(_state_of(partitions, topics, parts, part, added, row, rows, fenced, is_fenced))
        row += rows
    return states


cdef object _state_of(
    dict partitions,
    list topics,
    const int64_t[:, ::1] parts,
    Py_ssize_t part,
    const int64_t[:, ::1] added,
    Py_ssize_t row,
    Py_ssize_t rows,
    dict fenced,
    object is_fenced,
):
    cdef PyObject* of_topic = PyDict_GetItem(partitions, topics[parts[part, TOPIC]])
    cdef PyObject* found
    cdef PartitionNumbers state
    cdef int64_t end
    cdef Py_ssize_t i
    if of_topic == NULL:
        return None
    found = PyDict_GetItem(<object>of_topic, parts[part, PARTITION])
    if found == NULL:
        return None
    if (
        parts[part, REMOVED_OF] | parts[part, ABORTED_OF] | parts[part, GONE_OF] | parts[part, EPOCHS_OF]
        or parts[part, LOG_START_OFFSET] != UNCHANGED
        or parts[part, CLEAN_OFFSET] != UNCHANGED
    ):
        return None
    state = <PartitionNumbers?><object>found
    if parts[part, NUMBER] != NO_LEADER:
        number = parts[part, NUMBER]
        if number not in fenced:
            fenced[number] = is_fenced(number)
        if fenced[number] or state.leader != parts[part, NUMBER] or state.leader_epoch != parts[part, LEADER_EPOCH]:
            return None
    end = state.end_offset
    if state.log_start_offset > end:
        return None           # DeleteRecords is ahead: an object may be below the log start at once
    for i in range(row, row + rows):
        if added[i, BASE] != end:
            return None
        end = added[i, END]
    if parts[part, END_OFFSET] not in (UNCHANGED, end) or parts[part, LAST_STABLE_OFFSET] > end:
        return None
    return state


def apply_appends(
    list states,
    const int64_t[:, ::1] parts,
    const int64_t[:, ::1] added,
    const int64_t[:, ::1] producers,
    const int64_t[:, ::1] batches,
    const int64_t[:, ::1] opened,
    int64_t time_ms,
    set changed,
    append,
    Py_ssize_t block_rows,
):
    """Applies the parts that plan_appends gave a state. The last column of ``added`` is the object's place in the table.

    ``append``: called with a state and the values of a RefRow where a block may get more than ``block_rows`` references.
    """
    cdef Py_ssize_t part, row = 0, producer = 0, batch = 0, first_open = 0, rows, i
    cdef Py_ssize_t producers_of, batches_of, open_of
    cdef PartitionNumbers state
    for part in range(parts.shape[0]):
        rows, producers_of, open_of = parts[part, ADDED_OF], parts[part, PRODUCERS_OF], max(parts[part, OPENED_OF], 0)
        batches_of = 0
        for i in range(producer, producer + producers_of):
            batches_of += producers[i, 5]
        state = states[part]
        if state is not None:
            if rows:
                _append(state, added, row, rows, append, block_rows)
            if parts[part, OPENED_OF] != UNCHANGED:
                state.open_transactions = tuple(
                    [(opened[i, 0], opened[i, 1]) for i in range(first_open, first_open + open_of)]
                )
            if parts[part, LAST_STABLE_OFFSET] != UNCHANGED:
                state.last_stable_offset = parts[part, LAST_STABLE_OFFSET]
            if producers_of:
                _put_producers(state.producers, producers, producer, producers_of, batches, batch, time_ms)
            changed.add((state.topic_id, state.partition))
        row += rows
        producer += producers_of
        batch += batches_of
        first_open += open_of


cdef int _append(
    PartitionNumbers state,
    const int64_t[:, ::1] added,
    Py_ssize_t row,
    Py_ssize_t rows,
    object append,
    Py_ssize_t block_rows,
) except -1:
    """As PartitionState.append, of consecutive references."""
    cdef list blocks = state.blocks
    cdef RowArrays block
    cdef int64_t length = 0
    cdef Py_ssize_t i, last = row + rows - 1
    if not blocks or not _has_room(blocks[len(blocks) - 1], rows, block_rows):
        for i in range(row, row + rows):
            append(state, [added[i, column] for column in range(ROW_COLUMNS)])
    else:
        block = blocks[len(blocks) - 1]
        for i in range(row, row + rows):
            _extend(block.rows, &added[i, 1], STRIDE)
            _extend(block.bases, &added[i, BASE], 1)
            length += added[i, LENGTH]
        block.part = None
        state.data_bytes += length
        state.object_count += rows
        state.appended_count += rows
        state.appended_bytes += length
    state.end_offset = added[last, END]
    return 0


cdef bint _has_room(RowArrays block, Py_ssize_t rows, Py_ssize_t block_rows) except -1:
    """Whether a block may take so many references: it is not full, and no view keeps its arrays where they are."""
    return len(block.bases) + rows <= block_rows and not kb_exports(block.bases) and not kb_exports(block.rows)


cdef int _extend(array.array column, const int64_t* values, Py_ssize_t count) except -1:
    cdef Py_ssize_t size = len(column)
    if size + count > kb_allocated(column):
        array.resize(column, size + count + ((size + count) >> GROWTH_SHIFT) + count)
    array.resize_smart(column, size + count)
    memcpy(column.data.as_longlongs + size, values, count * sizeof(int64_t))
    return 0


cdef int _put_producers(
    ProducerTable table,
    const int64_t[:, ::1] producers,
    Py_ssize_t first,
    Py_ssize_t count,
    const int64_t[:, ::1] batches,
    Py_ssize_t batch,
    int64_t time_ms,
) except -1:
    cdef CachedBatch known[CACHED_BATCHES]
    cdef Py_ssize_t i, j
    for i in range(first, first + count):
        for j in range(producers[i, 5]):
            known[j] = CachedBatch(
                <int32_t>batches[batch + j, 0], <int32_t>batches[batch + j, 2], batches[batch + j, 1],
                batches[batch + j, 3],
            )
        table.put_row(
            producers[i, 0], <int16_t>producers[i, 1], <int32_t>producers[i, 2], producers[i, 3], producers[i, 4],
            known, <int32_t>producers[i, 5], time_ms,
        )
        batch += producers[i, 5]
    return 0
