"""One task: the records of its shares as Arrow batches. Runs in a Spark worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

import pyarrow as pa

from kbroker._fast.records.record_batch import CorruptRecordsError
from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.pipeline import data_loss
from kbroker.pipeline.batch_choice import is_counted
from kbroker.pipeline.broker_tail import Aborted, BrokerTail, OffsetGone
from kbroker.pipeline.columns import BatchMaker
from kbroker.pipeline.object_batches import ObjectBatchReader
from kbroker.pipeline.options import SourceOptions, parse_options
from kbroker.pipeline.row_count import counted_batches
from kbroker.pipeline.splits import Share, Split

ROWS_MAX = 64 * 1024  # of an Arrow batch; the last record batch in it may go beyond
BYTES_MAX = 2 * MIB


def read_split(given: Mapping[str, str], split: Split) -> Iterator[pa.RecordBatch]:
    """Arrow batches of a task, in the order of its shares. Raises StoreError, CorruptionError, DataLossError."""
    options = parse_options(given)
    counted = is_counted(options.columns, split.lowest_timestamp, split.highest_timestamp)
    for share in split.shares:
        if counted and not share.tail:
            yield from counted_batches(options, split, share)
            continue
        reader = _tail(options, split, share) if share.tail else _objects(options, split, share)
        maker = BatchMaker(options.columns, share.topic, share.partition)
        yield from _rows(maker, reader, share, split)


# Whole batches, their source, the offset from which they count, and their aborted ranges.
Source = Iterator[tuple[bytes | memoryview, str, int, Aborted | None]]


def _rows(maker: BatchMaker, source: Source, share: Share, split: Split) -> Iterator[pa.RecordBatch]:
    builder = maker.builder()
    for data, where, first, aborted in source:
        position = 0
        while position < len(data):
            try:
                position = builder.add(
                    data,
                    position,
                    first_offset=max(first, share.first),
                    stop_offset=share.stop,
                    lowest_timestamp=split.lowest_timestamp,
                    highest_timestamp=split.highest_timestamp,
                    aborted=aborted,
                    rows_max=ROWS_MAX,
                    bytes_max=BYTES_MAX,
                )
            except CorruptRecordsError as error:
                raise CorruptionError(f"{where}, partition {share.name}: {error}") from None
            if (builder.rows >= ROWS_MAX or builder.nbytes >= BYTES_MAX) and (batch := maker.take(builder)) is not None:
                yield batch
    if (batch := maker.take(builder)) is not None:
        yield batch


def _objects(options: SourceOptions, split: Split, share: Share) -> Source:
    aborted: Aborted | None = share.aborted_by_producer() if options.read_committed else None
    with closing(ObjectBatchReader(options, split, share)) as reader:
        for data, where, first in reader.batches():
            yield data, where, first, aborted


def _tail(options: SourceOptions, split: Split, share: Share) -> Source:
    assert options.bootstrap is not None
    with closing(BrokerTail(options.bootstrap, retries_connect=True)) as broker:  # the driver has just found one
        broker.check_cluster(split.cluster_id)
        found = broker.batches(
            share.topic, share.partition, share.first, share.stop, read_committed=options.read_committed
        )
        try:
            for data, aborted in found:
                where = f"broker at {options.bootstrap}"
                yield data, where, share.first, aborted if options.read_committed else None
        except OffsetGone as error:
            lost = f"offsets {share.first} to {share.stop - 1} of {share.name}: {error}"
            data_loss.report(lost, options.fail_on_data_loss)
