"""Ages and lags from indexes in memory: exact in the newest segments, estimated within a sealed segment or object."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.log.record_age import Lag, lag
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import PartitionState, RefRow
from tests.reference.wal_harness import SEGMENT, Log, batch

STEP_MS = 1_000
TOPIC_ID = bytes(16)


def growing(folder: Path, count: int) -> Log:
    """A log with a batch of one record each STEP_MS; all but the newest segments are sealed."""
    log = Log(folder).start()
    for number in range(count):
        log.append(batch(600, timestamp=number * STEP_MS))
    log.sync()
    log.until(lambda: log.wal.sealed_lsn >= log.wal.durable_lsn // SEGMENT * SEGMENT)
    return log


def test_the_log_estimates_within_sealed_segments_and_is_exact_in_the_newest(tmp_path: Path) -> None:
    with growing(tmp_path, 1000) as log:
        partition = log.partition()
        errors = [abs(partition.timestamp_near(offset) - offset * STEP_MS) for offset in range(1000)]
        assert errors[-1] == 0
        in_segment = SEGMENT // 600
        first = in_segment  # of it nothing older is known: the largest timestamp
        assert max(errors[first:]) <= 2 * STEP_MS
        assert max(errors[:first]) <= in_segment * STEP_MS
        assert partition.timestamp_near(1000) == -1


def test_what_the_log_does_not_serve_is_not_its_to_say(tmp_path: Path) -> None:
    with growing(tmp_path, 10) as log:
        log.partition().note_cleaned(5)
        assert log.partition().timestamp_near(4) is None
        assert log.partition().timestamp_near(5) == 5 * STEP_MS


def image_of(*rows: tuple[int, int, int]) -> ManifestImage:
    """One partition with objects: first offset, end offset, largest timestamp."""
    image = ManifestImage()
    state = PartitionState(TOPIC_ID, 0)
    for first, end, timestamp in rows:
        state.append(RefRow(first, end, 0, 1, 0, 0, timestamp, end - first, 0, 0))
    image.partitions[TOPIC_ID] = {0: state}
    return image


@pytest.mark.parametrize(
    ("offset", "timestamp"),
    [(0, 1_000), (99, 1_000), (100, 1_000), (150, 1_500), (199, 1_990), (200, 500), (299, 500), (300, -1)],
)
def test_objects_are_interpolated_between_their_largest_timestamps(offset: int, timestamp: int) -> None:
    image = image_of((0, 100, 1_000), (100, 200, 2_000), (200, 300, 500))  # the last one's producer had a slow clock
    assert image.timestamp_near(TOPIC_ID, 0, offset) == timestamp


def test_objects_without_timestamps_and_unknown_partitions_have_none() -> None:
    assert image_of((0, 100, -1)).timestamp_near(TOPIC_ID, 0, 50) == -1
    assert image_of((0, 100, -1), (100, 200, 2_000)).timestamp_near(TOPIC_ID, 0, 150) == 2_000
    assert ManifestImage().timestamp_near(TOPIC_ID, 0, 0) == -1


def partition(in_log: int | None, in_objects: int = -1, start: int = 0) -> Any:
    return SimpleNamespace(
        high_watermark=lambda: 100,
        log_start_offset=start,
        timestamp_near=lambda offset: in_log,
        log=SimpleNamespace(timestamp_near=lambda offset: in_objects),
    )


@pytest.mark.parametrize(
    ("found", "offset", "expected"),
    [
        (partition(7_000), 90, Lag(10, 3.0)),
        (partition(7_000), 100, Lag(0, 0.0)),
        (partition(7_000), 120, Lag(0, 0.0)),  # committed, and then the end of the log was lost
        (partition(None, 4_000), 0, Lag(100, 6.0)),
        (partition(12_000), 0, Lag(100, 0.0)),  # the producer's clock is ahead
        (partition(None, -1), 0, Lag(100, None)),
    ],
)
def test_lag_is_counted_in_records_and_seconds(found: Any, offset: int, expected: Lag) -> None:
    assert lag(found, offset, now_ms=10_000) == expected


def test_what_retention_has_deleted_is_no_longer_waited_for() -> None:
    asked: list[int] = []
    found = partition(0, start=50)
    found.timestamp_near = lambda offset: asked.append(offset) or 0
    assert lag(found, 10, now_ms=1_000).records == 90
    assert asked == [50]
