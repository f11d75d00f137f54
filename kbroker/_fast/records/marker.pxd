# The transaction marker of a control batch (Kafka protocol guide): its record's key is version int16, type int16; its
# value version int16, coordinator epoch int32. Higher versions are read by the prefix that version 0 defines.
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from kbroker._fast.base.cursor cimport Cursor, take_bytes, take_i8, take_varint, take_varlong
from kbroker._fast.base.endian cimport load_i16, load_i32

cdef enum:
    MARKER_NONE = -1
    MARKER_ABORT = 0
    MARKER_COMMIT = 1
    MARKER_KEY_BYTES = 4
    MARKER_VALUE_BYTES = 6


# Reads the first record of a control batch, as far as it is needed. 0, or -1 when it does not parse; *kind is
# MARKER_NONE for control records that are no transaction markers, of which nothing more is read.
cdef inline int take_marker(Cursor* c, int32_t* kind, int32_t* coordinator_epoch) noexcept nogil:
    cdef int8_t attributes
    cdef int32_t length, offset_delta
    cdef int64_t timestamp_delta
    cdef const uint8_t* field
    kind[0] = MARKER_NONE
    coordinator_epoch[0] = -1
    if (
        take_varint(c, &length) < 0
        or take_i8(c, &attributes) < 0
        or take_varlong(c, &timestamp_delta) < 0
        or take_varint(c, &offset_delta) < 0
        or take_varint(c, &length) < 0
    ):
        return -1
    field = take_bytes(c, length)
    if field == NULL or length < MARKER_KEY_BYTES or load_i16(field) < 0:
        return -1
    kind[0] = load_i16(field + 2)
    if kind[0] != MARKER_ABORT and kind[0] != MARKER_COMMIT:
        kind[0] = MARKER_NONE
        return 0
    if take_varint(c, &length) < 0:
        return -1
    field = take_bytes(c, length)
    if field == NULL or length < MARKER_VALUE_BYTES or load_i16(field) < 0:
        return -1
    coordinator_epoch[0] = load_i32(field + 2)
    return 0
