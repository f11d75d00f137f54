"""Reads the records of a task's shares as Arrow batches. Runs in a Spark worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

import pyarrow as pa

from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker._fast.records.record_rows import RecordTooLarge, RowReader
from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.pipeline import data_loss
from kbroker.pipeline.batch_choice import is_counted
from kbroker.pipeline.broker_tail import FETCH_BYTES, Aborted, BrokerTail, OffsetGone
from kbroker.pipeline.columns import BatchMaker
from kbroker.pipeline.object_batches import ObjectBatchReader
from kbroker.pipeline.options import OptionError, SourceOptions, parse_options
from kbroker.pipeline.plan.splits import Share, Split
from kbroker.pipeline.read_ahead import ReadAhead, memory_bytes_for
from kbroker.pipeline.row_count import counted_batches
from kbroker.protocol.fields import Bytes

ROWS_MAX = 64 * 1024  # of an Arrow batch
BYTES_MAX = 1 * MIB  # the last record in it may exceed this


def read_split(given: Mapping[str, str], split: Split) -> Iterator[pa.RecordBatch]:
    """Arrow batches of a task, in the order of its shares.

    Raises StoreError, CorruptionError, DataLossError; OptionError for a batch or a record that does not fit into
    `readMemoryBytes`.
    """
    options = parse_options(given)
    counted = is_counted(options.columns, split.lowest_timestamp, split.highest_timestamp)
    with closing(ReadAhead(options.read_memory_bytes)) as ahead:
        for share in split.shares:
            if counted and not share.tail:
                yield from counted_batches(options, split, share, ahead)
                continue
            source = _tail(options, split, share, ahead) if share.tail else _objects(options, split, share, ahead)
            yield from _rows(options, ahead, source, share, split)


# Whole batches, their source, the first offset to take from them, and their aborted ranges.
Source = Iterator[tuple[Bytes, str, int, Aborted | None]]


def _rows(
    options: SourceOptions, ahead: ReadAhead, source: Source, share: Share, split: Split
) -> Iterator[pa.RecordBatch]:
    maker = BatchMaker(options.columns, share.topic, share.partition)
    builder = maker.builder()
    reader = RowReader(
        stop_offset=share.stop,
        lowest_timestamp=split.lowest_timestamp,
        highest_timestamp=split.highest_timestamp,
    )
    for data, where, first, aborted in source:
        room = ahead.room_bytes(len(data))
        reader.open(data, first_offset=max(first, share.first), aborted=aborted, room_bytes=room)
        try:
            while reader.fill(builder, ROWS_MAX, BYTES_MAX):
                if (batch := maker.take(builder)) is not None:
                    yield batch
                    del batch  # a task's memory has room for the rows it shares, and for those it reads
        except CorruptRecordsError as error:
            raise CorruptionError(f"{where}, partition {share.name}: {error}") from None
        except RecordTooLarge as error:
            needed = memory_bytes_for(error.needed_bytes, len(data))
            raise OptionError(
                f"{where}, partition {share.name}: {error}: set option 'readMemoryBytes' to {needed} or more (it is "
                f"{options.read_memory_bytes})"
            ) from None
    if (batch := maker.take(builder)) is not None:
        yield batch


def _objects(options: SourceOptions, split: Split, share: Share, ahead: ReadAhead) -> Source:
    aborted: Aborted | None = share.aborted_by_producer() if options.read_committed else None
    for data, where, first in ObjectBatchReader(options, split, share, ahead).batches():
        yield data, where, first, aborted


def _tail(options: SourceOptions, split: Split, share: Share, ahead: ReadAhead) -> Source:
    assert options.bootstrap is not None
    with closing(BrokerTail(options.bootstrap, retries_connect=True)) as broker:  # the driver has just reached one
        broker.check_cluster(split.cluster_id)
        found = broker.batches(
            (share.topic, share.partition),
            share.first,
            share.stop,
            read_committed=options.read_committed,
            fetch_bytes=min(FETCH_BYTES, ahead.ahead_bytes),
        )
        try:
            for data, aborted in found:
                where = f"broker at {options.bootstrap}"
                yield data, where, share.first, aborted if options.read_committed else None
        except OffsetGone as error:
            lost = f"offsets {share.first} to {share.stop - 1} of {share.name}: {error}"
            data_loss.report(lost, options.fail_on_data_loss)
