import random

import numpy as np
import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.gather import BatchScan, BatchScanError
from kbroker._fast.records.records import build_batch, build_control_batch, iter_batches

ENTRY = np.dtype(
    [("base_offset", "i8"), ("lsn", "i8"), ("max_timestamp", "i8"), ("size", "u4"), ("last_offset_delta", "i4")]
)


def entries_of(data):
    rows = [(h.base_offset, 0, h.max_timestamp, h.size, h.last_offset_delta) for h, _ in iter_batches(data)]
    return np.array(rows, ENTRY)


def some_batches(seed=1):
    rng = random.Random(seed)
    offset, parts = 0, []
    for n in range(30):
        records = [(b"k", rng.randbytes(rng.choice([0, 50, 3000])), 1000 + n, None)] * rng.randint(1, 5)
        batch = build_batch(
            records, base_offset=offset, leader_epoch=n // 10, producer_id=n % 3 - 1, producer_epoch=2, base_sequence=n
        )
        parts.append(batch)
        offset += len(records)
    for kind in (0, 1):
        parts.append(
            build_control_batch(
                kind,
                producer_id=4,
                producer_epoch=1,
                coordinator_epoch=70_000,
                timestamp_ms=9,
                base_offset=offset,
                leader_epoch=3,
            )
        )
        offset += 1
    return b"".join(parts)


@pytest.mark.parametrize("pieces", [1, 7, 61, 100, 5000, 10**6])
def test_fields_are_those_of_the_batches_however_the_bytes_are_cut(pieces):
    data = some_batches()
    scan = BatchScan(entries_of(data), pieces)
    columns = []
    for start in range(0, len(data), pieces):
        ended = scan.feed(data[start : start + pieces])
        columns += [
            (
                int(scan.leader_epochs[i]), int(scan.attributes[i]), int(scan.producer_ids[i]),
                int(scan.producer_epochs[i]), int(scan.base_sequences[i]),
            )
            for i in range(ended)
        ]  # fmt: skip
    headers = [header for header, _ in iter_batches(data)]
    assert columns == [
        (h.leader_epoch, h.attributes, h.producer_id, h.producer_epoch, h.base_sequence) for h in headers
    ]
    assert scan.record_counts.tolist() == [h.record_count for h in headers]
    assert scan.done == len(headers)
    assert scan.crc == crc32c(data)


def test_markers():
    data = some_batches()
    scan = BatchScan(entries_of(data), len(data))
    assert scan.feed(data) == 32
    assert scan.marker_types[:32].tolist() == [-1] * 30 + [0, 1]
    assert scan.coordinator_epochs[30:32].tolist() == [70_000, 70_000]


def test_a_flipped_bit_anywhere_but_in_the_leader_epoch_is_found():
    data = b"".join(view.tobytes() for _, view in iter_batches(some_batches(2)))
    entries = entries_of(data)[:3]
    length = int(entries["size"].sum())
    ends = np.cumsum(entries["size"])
    rng = random.Random(3)
    for position in [*range(61), *rng.sample(range(length), 200)]:
        damaged = bytearray(data[:length])
        damaged[position] ^= 1 << rng.randrange(8)
        scan = BatchScan(entries, length)
        batch = int(np.searchsorted(ends, position, side="right"))
        into = position - (int(ends[batch - 1]) if batch else 0)
        if 12 <= into < 16:
            continue  # outside the batch's CRC, and the index does not have it
        with pytest.raises(BatchScanError) as caught:
            scan.feed(damaged)
        assert caught.value.index == batch


def test_more_bytes_than_entries_and_entries_without_sense():
    data = some_batches()
    entries = entries_of(data)
    with pytest.raises(BatchScanError, match="more bytes"):
        BatchScan(entries[:2], len(data)).feed(data)
    bad = entries.copy()
    bad["size"][0] = 60
    with pytest.raises(BatchScanError, match="shorter than a batch header"):
        BatchScan(bad, len(data)).feed(data)
    with pytest.raises(ValueError, match="32-byte"):
        BatchScan(np.zeros(3, "i8"), 10)
    with pytest.raises(ValueError, match="feed_bytes_max"):
        BatchScan(entries, 10).feed(data)
    assert BatchScan(entries, 10).feed(b"") == 0


def test_random_control_records_never_read_beyond_the_batch():
    rng = random.Random(5)
    from kbroker._fast.records.records import seal

    for _ in range(300):
        batch = bytearray(build_control_batch(1, producer_id=4, producer_epoch=1, coordinator_epoch=7, timestamp_ms=9))
        for _ in range(rng.randint(1, 6)):
            batch[rng.randrange(61, len(batch))] = rng.randrange(256)
        seal(batch)
        scan = BatchScan(entries_of(bytes(batch)), len(batch))
        problem = ""
        try:
            scan.feed(batch)
        except BatchScanError as error:
            problem = error.problem
        assert problem in ("", "control record does not parse")
