"""Columns of the tables that say what a manifest record changes in partitions (storage.manifest.record_columns), where
each is rows of int64: the tables from "parts" on, in order. -1 in `parts`: unchanged, or not given."""

cdef enum:                    # tables
    PARTS
    ADDED
    REMOVED
    PRODUCERS
    BATCHES
    OPENED
    ABORTED
    GONE
    EPOCHS
    TABLE_COUNT

cdef enum:                    # columns of `parts`; the last seven: how many rows of the other tables are the part's
    TOPIC
    PARTITION
    NUMBER
    LEADER_EPOCH
    GRACE_MS
    LOG_START_OFFSET
    END_OFFSET
    LAST_STABLE_OFFSET
    CLEAN_OFFSET
    HORIZON_MS
    ADDED_OF
    REMOVED_OF
    PRODUCERS_OF
    OPENED_OF
    ABORTED_OF
    GONE_OF
    EPOCHS_OF
    PART_COLUMNS

cdef enum:                    # columns of `added`, in the order of partition_state.RefRow
    BASE = 0
    END = 1
    LENGTH = 3
    FILE = 9
    ROW_COLUMNS = 10

cdef enum:                    # columns of the others
    REMOVED_COLUMNS = 1
    PRODUCER_COLUMNS = 6
    BATCH_COLUMNS = 4
    OPENED_COLUMNS = 2
    ABORTED_COLUMNS = 4
    GONE_COLUMNS = 1
    EPOCH_COLUMNS = 2
    BATCHES_OF = 5            # the last column of `producers`: how many batches are the producer's

cdef enum:
    UNCHANGED = -1
    NO_LEADER = -1
