"""One partition's hot state: append, producer state, watermarks and their waiters.

Everything here happens with the GIL held and never gives it up. Durable means synced in the WAL, and for an
object-durable partition: in objects that the manifest names, which the flusher reports with `note_flushed`.
"""

from kbroker._fast.wal.commit import FastAppendWait, FastKafkaError
from kbroker._fast.records.records import CONTROL_ABORT, CONTROL_COMMIT, build_control_batch
from kbroker.errors import CorruptionError

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kbroker._fast.base.kafka cimport (
    CORRUPT_MESSAGE,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    RECORD_LIST_TOO_LARGE,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kbroker._fast.base.crc32c cimport crc32c_c
from kbroker._fast.base.invariant cimport KB_DEBUG_BUILD, invariant
from kbroker._fast.partition.index_lists cimport (
    Slice, dense_at, dense_drop_below, dense_find, dense_free, dense_grow, slices_add, slices_drop_below, slices_free,
)
from kbroker._fast.partition.producer_pool cimport ProducerPool
from kbroker._fast.partition.producer_state cimport PRODUCER_WAIT, ProducerStates, Verdict
from kbroker._fast.partition.timestamp_disorder cimport TimestampDisorder
from kbroker._fast.partition.topic_rules cimport TopicRules
from kbroker._fast.partition.transactions cimport first_unstable
from kbroker._fast.partition.verification_guards cimport Verification
from kbroker._fast.records.record_batch cimport AT_ATTRIBUTES, BATCH_HEADER_BYTES, CONTROL, BatchInfo, read_header
from kbroker._fast.records.time_bounds cimport DISORDER_UNKNOWN
from kbroker._fast.wal.commit cimport CallbackCompletion, CommitQueue, WaitList
from kbroker._fast.wal.format cimport ENTRY_HEADER_BYTES, INDEX_HEADER_BYTES, GroupRecord, IndexRecord, entry_end
from kbroker._fast.wal.scan cimport SegmentScan
from kbroker._fast.wal.segment cimport WalSegment
from kbroker._fast.wal.ring cimport APPEND_TOO_LARGE, APPEND_WAIT
from kbroker._fast.wal.wal cimport Wal


cdef class Partition(BatchIndex):
    def __cinit__(self, Wal wal not None, str topic not None, bytes topic_id not None, int32_t index, uint32_t ordinal,
                  int32_t leader_epoch, int64_t log_start_offset=0, int64_t next_offset=0, ProducerPool producers=None,
                  bint awaits_tail=False):
        cdef const uint8_t* id_bytes = topic_id
        if len(topic_id) != 16:
            raise ValueError("a topic id has 16 bytes")
        known = wal.partitions.get((topic_id, index))
        if known is not None and (<Partition>known).leader_epoch >= 0:
            raise ValueError(f"{topic}-{index} is led here")
        self.wal = wal
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.ordinal = ordinal
        self.leader_epoch = leader_epoch
        self.tail_epoch = -1
        self.log_start_offset = log_start_offset
        self.rules = TopicRules()
        self.waiters = WaitList()
        self.producers = ProducerStates(producers)
        self.disorder = TimestampDisorder()
        self.replayed_epochs = []
        memcpy(self.key.topic_id, id_bytes, 16)
        self.key.partition = index
        self.key.ordinal = ordinal
        self.commits = wal.commits
        self.next_offset = self.durable_offset = self.flushed_offset = next_offset
        if awaits_tail:
            self.deferred = []
            self.before = known
        wal.partitions[(topic_id, index)] = self

    def __repr__(self):
        return f"Partition({self.topic}-{self.index}, next_offset={self.next_offset})"

    # -- the end of its leadership -----------------------------------------------------------------------------

    def mark_deleted(self):
        """The topic is gone: every append and fetch fails from now on. `resign` and `drop` follow."""
        self.deleted = True
        self.leader_epoch = -1

    def resign(self):
        """This broker does not lead it any more, for good: every append and fetch fails from now on. What waits finds out
        by `waiters.wake` and by `fail_closed` of the commit queues, which follow. Flushes still find its batches."""
        self.leader_epoch = -1
        self.ended = True
        self.producers.clear()
        self.waiters.close(UNKNOWN_TOPIC_OR_PARTITION if self.deleted else NOT_LEADER_OR_FOLLOWER)

    def drop(self):
        """After `resign`: what the WAL holds of it is of no use here. The WAL forgets it, and its index is freed."""
        if self.leader_epoch >= 0:
            raise ValueError(f"{self!r} is led here")
        known = self.wal.partitions.get((self.topic_id, self.index))
        if known is self:
            del self.wal.partitions[(self.topic_id, self.index)]
        elif known is not None and (<Partition>known).before is self:
            (<Partition>known).before = None
        slices_free(&self.slices)
        dense_free(&self.dense)
        self.durable_dense = self.dense.first

    def succeed(self, Partition before not None):
        """Another leadership of this broker begins, after the one of `before`: its counters go on, and what is committed
        on behalf of `before`, from now on or just now, is known here."""
        self.appended_bytes = before.appended_bytes
        self.appended_records = before.appended_records
        self.fetched_bytes = before.fetched_bytes
        self.fetched_records = before.fetched_records
        self.before = None
        before.successor = self
        self.note_cleaned(before.cleaned_offset)

    # -- append ------------------------------------------------------------------------------------------------

    cdef int append(self, const uint8_t* batch, const BatchInfo* info, int64_t disorder_ms, int64_t now_ms,
                    Verification guard, bint verify, object connection, AppendResult* result) except -3000:
        cdef Verdict verdict
        cdef int64_t lsn, end_lsn = 0
        cdef IndexRecord* entry
        cdef int code
        if self.leader_epoch < 0:
            return UNKNOWN_TOPIC_OR_PARTITION if self.deleted else NOT_LEADER_OR_FOLLOWER
        code = self.producers.judge(batch, info, guard, verify, &verdict)
        if code != 0:
            return code
        result.duplicate = verdict.duplicate
        if verdict.duplicate:
            result.base_offset = verdict.base_offset
            result.end_lsn = self.end_lsn_of(verdict.base_offset)
            result.max_timestamp = verdict.timestamp
            return 0
        # Whatever may fail comes before the reservation; after it nothing is refused.
        if info.producer_id >= 0:
            code = self.producers.prepare(info, &verdict, now_ms, connection)
            if code != 0:
                return code
        if self.dense.count == self.dense.capacity:
            dense_grow(&self.dense)
        lsn = self.wal.append(&self.key, self.next_offset, self.leader_epoch, batch, info.size,
                              self.rules.internal or (info.attributes & CONTROL) != 0, &end_lsn)
        if lsn < 0:
            if lsn == APPEND_WAIT:
                return APPEND_WAIT
            return RECORD_LIST_TOO_LARGE if lsn == APPEND_TOO_LARGE else self.wal.failure()
        result.base_offset = self.next_offset
        result.end_lsn = end_lsn
        result.max_timestamp = info.max_timestamp
        if KB_DEBUG_BUILD and self.dense.count:
            entry = dense_at(&self.dense, self.dense.first + self.dense.count - 1)
            invariant(entry.lsn < lsn and entry.base_offset + entry.last_offset_delta + 1 == self.next_offset)
        entry = dense_at(&self.dense, self.dense.first + self.dense.count)
        entry.base_offset = self.next_offset
        entry.lsn = lsn + ENTRY_HEADER_BYTES
        entry.max_timestamp = info.max_timestamp
        entry.size = info.size
        entry.last_offset_delta = info.last_offset_delta
        self.dense.count += 1
        self.next_offset += <int64_t>info.last_offset_delta + 1
        self.last_end_lsn = end_lsn
        if disorder_ms != 0:
            self.disorder.note(self.next_offset, disorder_ms, self.flushed_offset)
        self.appended_bytes += info.size
        self.appended_records += info.record_count
        self.commits.appended_bytes += info.size
        if info.producer_id >= 0:
            if info.attributes & CONTROL:
                first_unstable(&self.producers.transactions, self.high_watermark())  # forgets those that are over: no reader may come
            self.producers.update(info, &verdict, result.base_offset, now_ms, connection)
        return 0

    cdef int64_t end_lsn_of(self, int64_t offset) except -1:
        # What waits for the batch that begins there waits for this position; 0: it is durable.
        cdef IndexRecord* entry
        if self.dense.count and offset >= dense_at(&self.dense, self.dense.first).base_offset:
            entry = dense_at(&self.dense, dense_find(&self.dense, offset))
            return entry_end(entry.lsn - ENTRY_HEADER_BYTES, entry.size)
        if offset < self.flushed_offset or (offset < self.high_watermark() and not self.wal.refusal):
            return 0
        return self.last_end_lsn

    def append_bytes(self, batch, int64_t now_ms, on_durable=None, Verification guard=None, *,
                     int64_t disorder_ms=DISORDER_UNKNOWN):
        """Appends one batch: (base offset, end position).

        ``on_durable(error_code)`` is called when it is durable or the WAL has failed. Structure and CRC are checked,
        topic rules are not. On internal topics a batch with a producer id may come without sequence: a coordinator's own
        (transactional offset commits), for which epoch and transaction state are kept as for any other. ``guard`` is what
        `begin_verification` gave: the append is refused when it is not in force any more; None: no verification asked.
        ``disorder_ms``: how far its smallest timestamp is below its base timestamp, if that is known.
        Raises FastKafkaError, or FastAppendWait when there is no space now; nothing is changed then.
        """
        cdef const uint8_t[::1] view = batch
        cdef BatchInfo info
        cdef AppendResult result
        cdef int code
        if view.shape[0] < BATCH_HEADER_BYTES:
            raise FastKafkaError(CORRUPT_MESSAGE, f"a batch of {view.shape[0]} bytes")
        read_header(&view[0], view.shape[0], &info)
        if info.size != view.shape[0] or crc32c_c(0, &view[AT_ATTRIBUTES], view.shape[0] - AT_ATTRIBUTES) != info.crc:
            raise FastKafkaError(CORRUPT_MESSAGE, "the batch's length or CRC does not match")
        if info.magic != 2 or info.last_offset_delta < 0 or info.record_count != <int64_t>info.last_offset_delta + 1:
            raise FastKafkaError(INVALID_RECORD, "the batch's magic or record count is wrong")
        if (info.producer_id >= 0 and info.base_sequence < 0 and not info.attributes & CONTROL
                and not self.rules.internal):
            raise FastKafkaError(INVALID_RECORD, "a batch with a producer id needs a base sequence")
        if info.producer_id >= 0 and info.producer_epoch < 0:
            raise FastKafkaError(INVALID_RECORD, "a batch with a producer id needs an epoch")
        code = self.append(&view[0], &info, disorder_ms, now_ms, guard, guard is not None, None, &result)
        if code == APPEND_WAIT:
            raise FastAppendWait
        if code == PRODUCER_WAIT:   # may last for minutes: later appends must not wait for it
            self.producers.pool.refusals += 1
            raise FastKafkaError(NOT_ENOUGH_REPLICAS, f"{self.topic}-{self.index}: no room for one more producer id")
        if code != 0:
            raise FastKafkaError(code, f"append to {self.topic}-{self.index} refused with error {code}")
        self.commits.push(result.end_lsn, self.waiters,
                          None if on_durable is None else CallbackCompletion(on_durable))
        return result.base_offset, result.end_lsn

    def append_marker(self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, bint commit,
                      int64_t now_ms, on_durable=None):
        """Ends the producer's transaction here with a marker (KIP-98): (base offset, end position).

        A marker for a producer without an open transaction is appended too, and only takes over the epochs. Raises
        FastKafkaError INVALID_PRODUCER_EPOCH (47) or TRANSACTION_COORDINATOR_FENCED (52) when an epoch is below the
        one known, others and FastAppendWait as `append_bytes`.
        """
        return self.append_bytes(
            build_control_batch(
                CONTROL_COMMIT if commit else CONTROL_ABORT, producer_id=producer_id, producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch, timestamp_ms=now_ms),
            now_ms, on_durable, disorder_ms=0)

    def begin_verification(self, int64_t producer_id, int16_t epoch, int64_t now_ms, *, int32_t sequence=-1,
                           bint supports_epoch_bump=False):
        """The guard for an `append_bytes` that is to be verified first (KIP-890), or None when the producer's
        transaction is open here already. Give it back with `end_verification`. Raises FastKafkaError."""
        cdef BatchInfo info
        cdef Verification guard
        info.producer_id = producer_id
        info.producer_epoch = epoch
        info.base_sequence = sequence
        info.last_offset_delta = 0
        if not self.producers.needs_verification(&info):
            return None
        guard = self.producers.guards.begin(producer_id, epoch, sequence, supports_epoch_bump, now_ms)
        if guard is None:
            raise FastKafkaError(NOT_ENOUGH_REPLICAS, "too many producers wait for their verification")
        if guard.epoch > epoch:
            raise FastKafkaError(INVALID_PRODUCER_EPOCH, "a newer epoch of the producer is being verified")
        return guard

    def end_verification(self, Verification guard not None, *, bint refused):
        """The coordinator has answered; ``refused``: for good, so that the guard is not needed any more."""
        self.producers.guards.end(guard, refused)

    cpdef int count_fetched(self, int64_t size, int64_t records) except -1:
        """An answer to a consumer holds so many bytes and records."""
        self.fetched_bytes += size
        self.fetched_records += records
        return 0

    # -- watermarks --------------------------------------------------------------------------------------------

    cpdef int64_t high_watermark(self):
        """End of what is durable (exclusive offset); it never moves back."""
        cdef int64_t durable
        cdef IndexRecord* entry
        if self.durable_offset == self.next_offset:
            return self.next_offset
        if self.object_durable:
            self.durable_offset = max(self.durable_offset, self.flushed_offset)
            return self.durable_offset
        durable = self.wal.durable()
        if durable >= self.last_end_lsn:
            self.durable_offset = self.next_offset
            self.durable_dense = self.dense.first + self.dense.count
            return self.next_offset
        while self.durable_dense < self.dense.first + self.dense.count:
            entry = dense_at(&self.dense, self.durable_dense)
            if entry.lsn + entry.size > durable:
                break
            self.durable_offset = entry.base_offset + entry.last_offset_delta + 1
            self.durable_dense += 1
        return self.durable_offset

    cpdef int64_t last_stable_offset(self):
        """min(high watermark, first offset of the oldest transaction that is open or whose marker is not durable).

        The log start offset once it is not led here: its transactions are known no more.
        """
        cdef int64_t watermark = self.high_watermark()
        cdef int64_t unstable = first_unstable(&self.producers.transactions, watermark)
        if self.ended:
            return self.log_start_offset
        if 0 <= unstable < self.log_start_offset:
            unstable = self.log_start_offset    # DeleteRecords went past where the transaction began
        return watermark if unstable < 0 or unstable > watermark else unstable

    def set_next_offset(self, int64_t offset):
        """Sets the log end offset of a partition that holds nothing in the WAL (recovery from objects)."""
        if self.dense.count or self.slices.count:
            raise ValueError(f"{self!r} holds batches in the WAL")
        self.next_offset = self.durable_offset = self.flushed_offset = offset

    def note_flushed(self, int64_t offset):
        """Everything below ``offset`` is in objects that the manifest names. Before the WAL's flushed position moves."""
        self.flushed_offset = max(self.flushed_offset, offset)
        if self.successor is not None:
            self.successor.note_flushed(offset)

    def note_cleaned(self, int64_t offset):
        """Compaction has changed batches below ``offset``, the end of a batch in objects: reads of these go there."""
        self.cleaned_offset = max(self.cleaned_offset, offset)
        if self.successor is not None:
            self.successor.note_cleaned(offset)

    def set_object_durable(self, bint wanted):
        """Whether appends count once they are in objects. What is visible now stays so; what waits is waited for as it
        was, and what the WAL alone holds is asked of the flusher."""
        cdef Slice* last
        if wanted == self.object_durable:
            return
        self.high_watermark()
        self.object_durable = wanted
        if wanted:
            self.commits = self.wal.object_commits
            self.await_objects()
            return
        self.commits = self.wal.commits
        if self.slices.count and not self.dense.count:
            last = &self.slices.items[self.slices.first + self.slices.count - 1]  # sealed, so synced
            self.durable_offset = max(self.durable_offset, last.last_offset + 1)
        self.commits.push(self.last_end_lsn, self.waiters, None)

    def await_objects(self, on_durable=None):
        """Asks for what is not in objects yet of an object-durable partition: ``on_durable(error_code)`` is called when
        all that was appended so far is. False: it is, and nothing was asked."""
        if not self.object_durable or self.high_watermark() == self.next_offset:
            return False
        self.commits.push(self.last_end_lsn, self.waiters,
                          None if on_durable is None else CallbackCompletion(on_durable))
        return True

    def attach_slice(self, WalSegment segment not None, SegmentScan scan not None, int32_t i):
        """A segment has been sealed: its entries on disk take the place of the dense ones. Called for each group of the
        partition, in order; those before `tail_epoch` are left out."""
        if self.before is not None:
            self.before.attach_slice(segment, scan, i)
        if self.deferred is not None:
            self.deferred.append((segment, scan, i))
        elif not self.deleted:
            self.attach(segment, scan, i)

    cdef int attach(self, WalSegment segment, SegmentScan scan, int32_t i) except -1:
        cdef const GroupRecord* group = &scan.groups[i]
        cdef Slice* last
        cdef Slice s
        if scan.epochs[i] < self.tail_epoch:
            return 0
        self.high_watermark()
        s.first_lsn = segment.first_lsn
        s.end_lsn = segment.end_lsn
        s.first_entry = group.first_entry
        s.entries_start = INDEX_HEADER_BYTES + scan.group_count * <int64_t>sizeof(GroupRecord)
        s.first_offset = group.first_offset
        s.last_offset = group.last_offset
        s.max_timestamp = group.max_timestamp
        s.size_bytes = group.size_bytes
        s.count = group.count
        slices_drop_below(&self.slices, self.wal.retained)
        if self.slices.count:
            last = &self.slices.items[self.slices.first + self.slices.count - 1]
            if s.first_lsn < last.first_lsn or (
                    s.first_lsn == last.first_lsn and s.first_entry < last.first_entry + last.count):
                return 0    # it has come before: with the tail, or in an attempt that failed at a later partition
            invariant(last.last_offset < s.first_offset)
        slices_add(&self.slices, &s)
        dense_drop_below(&self.dense, scan.entries[group.first_entry + group.count - 1].lsn + 1)
        if self.dense.count:
            invariant(dense_at(&self.dense, self.dense.first).base_offset == s.last_offset + 1)
        if self.durable_dense < self.dense.first:
            self.durable_dense = self.dense.first
        return 0

    # -- state for the flusher and recovery --------------------------------------------------------------------

    @property
    def unflushed_bytes(self):
        """Bytes of batches that are in no object yet."""
        cdef int64_t flushed = self.wal.flushed
        if self.counted_flushed != flushed:
            self.counted_unflushed = self.bytes_from(flushed)
            self.counted_appended = self.appended_bytes
            self.counted_flushed = flushed
        return self.counted_unflushed + self.appended_bytes - self.counted_appended

    def abandon_tail(self):
        """This leadership does not begin: the WAL has the partition of before again."""
        self.leader_epoch = -1
        self.producers.clear()
        before, self.before = self.before, None
        self.drop()
        if before is not None:
            self.wal.partitions[(self.topic_id, self.index)] = before

    def end_tail(self, int64_t flushed_offset):
        """The tail, which goes on from ``flushed_offset``, has been replayed."""
        deferred, self.deferred = self.deferred, None
        for segment, scan, i in deferred:
            if (<SegmentScan>scan).groups[<int32_t>i].last_offset >= flushed_offset:
                self.attach(segment, scan, i)
        self.keep_contiguous()
        self.durable_dense = max(self.durable_dense, self.dense.first)

    def replay(self, WalSegment segment not None, SegmentScan scan not None, int32_t i, int64_t flushed_lsn,
               int64_t flushed_offset=0):
        """Takes over what a segment holds of the partition under one leader epoch, at a start or as part of a tail.
        Batches that are in objects already, below ``flushed_lsn`` or wholly below ``flushed_offset``, are indexed only.
        Segments come oldest first.

        Raises CorruptionError when offsets do not follow on. Returns the number of batches replayed.
        """
        cdef const GroupRecord* group = &scan.groups[i]
        cdef const IndexRecord* record
        cdef const uint8_t* batch
        cdef BatchInfo info
        cdef int64_t n, end_lsn, replayed = 0
        for n in range(group.first_entry, group.first_entry + group.count):
            record = &scan.entries[n]
            if record.lsn < flushed_lsn or record.base_offset + record.last_offset_delta < flushed_offset:
                continue
            if self.next_offset < record.base_offset <= self.log_start_offset and not self.slices.count:
                self.next_offset = record.base_offset   # DeleteRecords had passed what was flushed, then the disk was lost
            if self.tail_epoch >= 0 and record.base_offset + record.last_offset_delta < self.flushed_offset:
                continue
            if record.base_offset != self.next_offset:
                raise CorruptionError(
                    f"{segment.path}: the batch at position {4096 + record.lsn - segment.first_lsn} of "
                    f"{self.topic}-{self.index} has base offset {record.base_offset}, expected {self.next_offset}"
                )
            batch = scan.data + (record.lsn - scan.first_lsn)
            end_lsn = entry_end(record.lsn - ENTRY_HEADER_BYTES, record.size)
            read_header(batch, record.size, &info)
            if not self.replayed_epochs or self.replayed_epochs[len(self.replayed_epochs) - 1][0] != info.leader_epoch:
                self.replayed_epochs.append((info.leader_epoch, record.base_offset))
            if info.producer_id >= 0:
                self.producers.replay(batch, &info, record.base_offset)
            self.last_end_lsn = end_lsn
            self.next_offset = record.base_offset + record.last_offset_delta + 1
            replayed += 1
        if replayed:
            self.disorder.note(self.next_offset, DISORDER_UNKNOWN, self.flushed_offset)
        if not self.object_durable:
            self.durable_offset = self.next_offset
        elif self.durable_offset < self.log_start_offset:
            self.durable_offset = min(self.log_start_offset, self.next_offset)
        if segment.index_fd >= 0 and (self.deferred is None or (
                self.dense.count == 0 and scan.stop_lsn >= segment.end_lsn)):
            self.attach(segment, scan, i)
        elif replayed:
            self.add_dense(scan, i)     # `end_tail` attaches it, if it or one before it has been sealed since its scan
        self.counted_flushed = -1
        return replayed

    cdef int add_dense(self, SegmentScan scan, int32_t i) except -1:
        # The entries of a segment that is not sealed, all of them durable.
        cdef const GroupRecord* group = &scan.groups[i]
        cdef int64_t n
        for n in range(group.first_entry, group.first_entry + group.count):
            if self.dense.count == self.dense.capacity:
                dense_grow(&self.dense)
            dense_at(&self.dense, self.dense.first + self.dense.count)[0] = scan.entries[n]
            self.dense.count += 1
        if not self.object_durable:
            self.durable_dense = self.dense.first + self.dense.count
        return 0


def traffic(list partitions not None) -> tuple:
    """(appended bytes, appended records, fetched bytes, fetched records) of all these, since the start."""
    cdef Partition partition
    cdef int64_t appended_bytes = 0, appended_records = 0, fetched_bytes = 0, fetched_records = 0
    for partition in partitions:
        appended_bytes += partition.appended_bytes
        appended_records += partition.appended_records
        fetched_bytes += partition.fetched_bytes
        fetched_records += partition.fetched_records
    return appended_bytes, appended_records, fetched_bytes, fetched_records
