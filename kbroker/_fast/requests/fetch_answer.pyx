"""Fetch answers: which partitions they list, their records, and the transactions aborted in these (KIP-98, KIP-227)."""

import operator
from bisect import bisect_left, bisect_right

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._fast.base.kafka cimport KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER
from kbroker._fast.net.request cimport Response
from kbroker._fast.partition.batch_index cimport ReadHint
from kbroker._fast.partition.partition cimport Partition
from kbroker._fast.partition.aborted_transactions cimport aborted_between
from kbroker._fast.records.record_batch cimport CONTROL, TRANSACTIONAL, BatchInfo, parse_header
from kbroker._fast.requests.fetch_codec cimport (
    put_fetch_partition,
    put_fetch_partition_end,
    put_fetch_tags,
    put_fetch_topic,
)
from kbroker._fast.requests.fetch_session cimport FetchSlot
from kbroker._fast.wal.read_plan cimport ReadPlan
from kbroker._fast.wal.wal cimport Wal


cdef enum:
    COPY_BELOW_BYTES = 2048     # smaller batches are gathered by copy: one piece of a system call costs about as much
    STORAGE_ERROR_VERSION = 6


_first_offset = operator.itemgetter(1)
cdef list NONE_ABORTED = []     # stays empty


cdef int32_t mark_included(list slots, bint incremental, int16_t* error) except -1:
    cdef FetchSlot slot
    cdef bytes topic = None
    cdef int32_t topics = 0
    for slot in slots:
        if slot.error != 0:
            slot.forget_offsets()
            if error[0] == 0:
                error[0] = slot.error
        slot.included = (
            not incremental
            or slot.bytes > 0
            or slot.error != 0
            or slot.diverging_end >= 0
            or slot.high_watermark != slot.told_high_watermark
            or slot.log_start != slot.told_log_start
        )
        if slot.included and (topics == 0 or slot.topic != topic):
            topics += 1
            topic = slot.topic
    return topics


cdef int put_slots(Response response, int16_t version, list slots, ReadPlan plan, Wal wal, bint read_committed) except -1:
    cdef FetchSlot slot
    cdef list aborted
    cdef Py_ssize_t i
    cdef Py_ssize_t count = len(slots)
    cdef bytes topic = None
    cdef bint opened = False
    for i in range(count):
        slot = <FetchSlot>slots[i]
        if not slot.included:
            continue
        if not opened or slot.topic != topic:
            if opened:
                put_fetch_tags(response, version)
            opened = True
            topic = slot.topic
            put_fetch_topic(response, version, topic, _included_from(slots, i))
        aborted = None
        if read_committed:
            aborted = _aborted_in(slot) if slot.bytes > 0 and slot.aborted else NONE_ABORTED
        put_fetch_partition(response, version, slot.index, _told_error(slot, version), slot.high_watermark,
                            slot.last_stable_offset, slot.log_start, aborted, slot.bytes)
        if slot.end_ref > slot.first_ref:
            response.add_plan(wal, plan, slot.first_ref, slot.end_ref, COPY_BELOW_BYTES)
            slot.partition.count_fetched(slot.bytes, slot.end_offset - slot.fetch_offset)
        elif slot.bytes > 0:
            for part in slot.cold:
                response.add_object(part)
            slot.partition.count_fetched(slot.bytes, _record_count(slot.cold))
        put_fetch_partition_end(response, version, slot.diverging_epoch, slot.diverging_end, slot.leader_id,
                                slot.leader_epoch if version >= LEADER_HINT_VERSION else -1)
        slot.told_high_watermark = slot.high_watermark
        slot.told_log_start = slot.log_start
    if opened:
        put_fetch_tags(response, version)
    return 0


cdef int64_t _record_count(list parts) except -1:
    """Of whole batches, as their headers say."""
    cdef const uint8_t[::1] part
    cdef BatchInfo info
    cdef Py_ssize_t position
    cdef int64_t count = 0
    for part in parts:
        position = 0
        while position < part.shape[0] and parse_header(&part[position], part.shape[0] - position, &info) == 0:
            count += info.record_count
            position += info.size
    return count


cdef int32_t _included_from(list slots, Py_ssize_t first) except -1:
    """How many included partitions there are of the topic of slots[first], up to the next topic's."""
    cdef FetchSlot slot
    cdef bytes topic = (<FetchSlot>slots[first]).topic
    cdef int32_t partitions = 0
    cdef Py_ssize_t i
    for i in range(first, len(slots)):
        slot = <FetchSlot>slots[i]
        if slot.included:
            if slot.topic != topic:
                break
            partitions += 1
    return partitions


cdef int16_t _told_error(FetchSlot slot, int16_t version) noexcept:
    """Clients before version 6 do not know KAFKA_STORAGE_ERROR and would not retry it."""
    if slot.error == KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_VERSION:
        return NOT_LEADER_OR_FOLLOWER
    return slot.error


cdef list _aborted_in(FetchSlot slot):
    """(producer id, first offset) of the aborted transactions that overlap the data sent, by first offset."""
    cdef list aborted
    if slot.end_ref > slot.first_ref:
        aborted = aborted_between(slot.aborted, slot.fetch_offset, slot.end_offset)
    else:
        aborted = _aborted_with_data(slot.aborted, slot.cold)
    aborted.sort(key=_first_offset)
    return aborted


cdef list _aborted_with_data(list aborted, object parts):
    """(producer id, first offset) of the aborted transactions of which these batches hold records.

    Compaction may have taken a transaction and its marker out of an object while the log still has them. Told of it, a
    client would wait for the marker, and skip what the producer has committed since.
    """
    cdef const uint8_t[::1] part
    cdef BatchInfo info
    cdef Py_ssize_t position
    cdef dict offsets = {}  # producer id -> base offsets of its transactional batches, ascending
    cdef list found = []
    if not aborted:
        return found
    for part in parts:
        position = 0
        while position < part.shape[0] and parse_header(&part[position], part.shape[0] - position, &info) == 0:
            if info.attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL and info.record_count > 0:
                offsets.setdefault(info.producer_id, []).append(info.base_offset)
            position += info.size
    for producer_id, first, last, _ in aborted:
        own = offsets.get(producer_id)
        if own is not None and bisect_left(own, first) < bisect_right(own, last):
            found.append((producer_id, first))
    return found


cdef int add_read_ahead(Response response, list slots, ReadPlan plan, Wal wal) except -1:
    cdef FetchSlot slot
    cdef Partition partition
    cdef ReadPlan ahead = None
    cdef ReadHint hint
    cdef int64_t limit, offset
    for slot in slots:
        if slot.end_ref == slot.first_ref or wal.holds(plan.refs[slot.end_ref - 1].lsn):
            continue
        partition = slot.partition
        offset = slot.next_offset
        if not slot.fetch_offset < offset < slot.upper:
            continue
        if ahead is None:
            ahead = ReadPlan()
        limit = min(<int64_t>slot.max_bytes, wal.cache.ahead_bytes() - ahead.total_bytes)
        if limit <= 0:
            break
        hint = partition.hint
        try:
            partition.plan_read(offset, slot.upper, limit, False, ahead)
        except Exception:
            pass        # the fetch that reads it meets the error and reports it
        partition.hint = hint
    if ahead is not None and ahead.count > 0:
        response.add_ahead(wal, ahead)
        response.keep_plan(ahead)
    return 0
