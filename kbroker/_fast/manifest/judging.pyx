"""Which parts of a commit are plain appends that fit, and which partitions a record has already; GIL held throughout.

The rules are cluster.protocol.judge's. A part that fits passes each of them; any other is judged there, rule by rule.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.set cimport PySet_Add, PySet_Contains
from libc.stdint cimport int64_t

from kbroker._fast.manifest.part_columns cimport (
    ABORTED_OF,
    ADDED,
    ADDED_OF,
    BASE,
    CLEAN_OFFSET,
    END,
    END_OFFSET,
    EPOCHS_OF,
    GONE_OF,
    LAST_STABLE_OFFSET,
    LEADER_EPOCH,
    LOG_START_OFFSET,
    NUMBER,
    PART_COLUMNS,
    PARTITION,
    PARTS,
    REMOVED_OF,
    ROW_COLUMNS,
    TOPIC,
    UNCHANGED,
)
from kbroker._fast.manifest.part_tables cimport Tables, read_tables
from kbroker._fast.manifest.partition_numbers cimport PartitionNumbers

cdef enum:                    # columns of a request's heads
    HEAD_BASE = 1
    HEAD_END = 2
    HEAD_COLUMNS = 3


def fitting(dict partitions, tuple topics, tuple tables, bytes heads, int64_t number, bytes known):
    """A byte for each part: 1 if it is a plain append by the row's leader, `number`, from the row's end on.

    ``partitions``: topic id -> partition -> PartitionState. ``heads``: rows of a part's id, base and end offset.
    ``known``: a byte for each topic, 1 if the metadata has it. ``check_tables`` has accepted the tables.
    """
    cdef Tables of
    cdef const int64_t* part
    cdef const int64_t* added
    cdef const int64_t* head = <const int64_t*>PyBytes_AS_STRING(heads)
    cdef PyObject* of_topic
    cdef PyObject* found
    cdef Py_ssize_t i
    cdef char* fits
    read_tables(tables, &of)
    if PyBytes_GET_SIZE(heads) != of.rows[PARTS] * HEAD_COLUMNS * <Py_ssize_t>sizeof(int64_t):
        raise ValueError("not a head for each part")
    if PyBytes_GET_SIZE(known) != len(topics):
        raise ValueError("not a byte for each topic")
    judged = bytes(of.rows[PARTS])
    fits = PyBytes_AS_STRING(judged)
    added = of.at[ADDED]
    for i in range(of.rows[PARTS]):
        part = of.at[PARTS] + i * PART_COLUMNS
        if PyBytes_AS_STRING(known)[part[TOPIC]] and part[NUMBER] == number and _is_plain(part, added, head):
            of_topic = PyDict_GetItem(partitions, topics[part[TOPIC]])
            if of_topic != NULL:
                found = PyDict_GetItem(<object>of_topic, part[PARTITION])
                fits[i] = found != NULL and _fits(<PartitionNumbers?><object>found, part, head)
        added += part[ADDED_OF] * ROW_COLUMNS
        head += HEAD_COLUMNS
    return judged


cdef bint _is_plain(const int64_t* part, const int64_t* added, const int64_t* head) noexcept:
    """Whether a part only appends, and its references are those of its offsets."""
    cdef int64_t end = head[HEAD_BASE]
    cdef Py_ssize_t i
    if (
        part[REMOVED_OF] | part[ABORTED_OF] | part[GONE_OF] | part[EPOCHS_OF]
        or part[LOG_START_OFFSET] != UNCHANGED
        or part[CLEAN_OFFSET] != UNCHANGED
    ):
        return False
    for i in range(part[ADDED_OF]):
        if added[i * ROW_COLUMNS + BASE] != end or added[i * ROW_COLUMNS + END] <= end:
            return False
        end = added[i * ROW_COLUMNS + END]
    return head[HEAD_BASE] < end == head[HEAD_END] and (part[END_OFFSET] == UNCHANGED or part[END_OFFSET] == end)


cdef bint _fits(PartitionNumbers state, const int64_t* part, const int64_t* head) noexcept:
    return (
        state.leader >= 0 and state.leader == part[NUMBER]
        and state.leader_epoch == part[LEADER_EPOCH]
        and state.end_offset == head[HEAD_BASE]
        and state.log_start_offset <= state.end_offset
    )


cdef set _partitions_of(dict touched, tuple topics, int64_t topic):
    """The set of a topic's partitions."""
    cdef bytes topic_id = topics[topic]
    cdef PyObject* found = PyDict_GetItem(touched, topic_id)
    if found != NULL:
        return <set>found
    partitions = touched[topic_id] = set()
    return partitions


def touch(dict touched, tuple topics, tuple tables, bytes chosen):
    """Adds the chosen parts' partitions to ``touched``, topic id -> set of partitions; returns the places of the parts
    whose partition was there already."""
    cdef Tables of
    cdef const int64_t* part
    cdef Py_ssize_t i
    cdef list twice = []
    cdef set partitions
    read_tables(tables, &of)
    if PyBytes_GET_SIZE(chosen) != of.rows[PARTS]:
        raise ValueError("not a byte for each part")
    for i in range(of.rows[PARTS]):
        if not PyBytes_AS_STRING(chosen)[i]:
            continue
        part = of.at[PARTS] + i * PART_COLUMNS
        partitions = _partitions_of(touched, topics, part[TOPIC])
        partition = part[PARTITION]
        if PySet_Contains(partitions, partition):
            twice.append(i)
        else:
            PySet_Add(partitions, partition)
    return twice


def touches(dict touched, tuple topics, tuple tables):
    """Whether a part's partition is in ``touched``."""
    cdef Tables of
    cdef const int64_t* part
    cdef PyObject* found
    cdef Py_ssize_t i
    read_tables(tables, &of)
    for i in range(of.rows[PARTS]):
        part = of.at[PARTS] + i * PART_COLUMNS
        found = PyDict_GetItem(touched, topics[part[TOPIC]])
        if found != NULL and PySet_Contains(<object>found, part[PARTITION]):
            return True
    return False
