"""What may be acknowledged from the log, and when the mode reached changes (cluster protocol §5)."""

from __future__ import annotations

import pytest

from kbroker.cluster.protocol.led_partition import LedPartition
from kbroker.cluster.protocol.messages import ModeReport
from kbroker.cluster.protocol.modes import acknowledges_from_log, report_due
from kbroker.storage.manifest.leadership import Mode, ModeChange
from tests.unit.cluster.protocol.protocol_fakes import Image, P, led_image

WAL, OBJECT = Mode.WAL, Mode.OBJECT


@pytest.fixture
def led() -> LedPartition:
    return LedPartition(P, 11, 0)


def changed(image: Image, mode: Mode) -> Image:
    return image.add(modes=(ModeChange(*P, mode),))


def test_mode_rises_only_when_everything_acknowledged_is_in_the_ledger(led: LedPartition) -> None:
    row = led_image().row()
    assert report_due(led, row, OBJECT, is_flushed=False) is None
    assert report_due(led, row, OBJECT, is_flushed=True) == ModeReport(OBJECT, 0)


def test_nothing_is_acknowledged_from_the_log_after_a_rise_was_sent(led: LedPartition) -> None:
    row = led_image().row()
    assert acknowledges_from_log(led, row, WAL)
    report_due(led, row, OBJECT, is_flushed=True)
    assert not acknowledges_from_log(led, row, WAL)


def test_rise_is_sent_on_although_the_topic_is_switched_back(led: LedPartition) -> None:
    row = led_image().row()
    report_due(led, row, OBJECT, is_flushed=True)
    assert report_due(led, row, WAL, is_flushed=False) == ModeReport(OBJECT, 0)


def test_mode_falls_by_a_record_before_anything_is_acknowledged_from_the_log(led: LedPartition) -> None:
    image = led_image(mode=OBJECT)
    assert not acknowledges_from_log(led, image.row(), WAL)
    assert report_due(led, image.row(), WAL, is_flushed=True) == ModeReport(WAL, 0)
    assert acknowledges_from_log(led, changed(image, WAL).row(), WAL)


def test_rise_and_fall_start_from_the_version_of_the_row(led: LedPartition) -> None:
    image = led_image()
    report_due(led, image.row(), OBJECT, is_flushed=True)
    assert report_due(led, changed(image, OBJECT).row(), WAL, is_flushed=True) == ModeReport(WAL, 1)
    changed(image, WAL)
    assert acknowledges_from_log(led, image.row(), WAL)
    assert report_due(led, image.row(), WAL, is_flushed=True) is None


def test_row_of_another_leader_epoch_allows_nothing() -> None:
    later = LedPartition(P, 12, 0)
    row = led_image().row()
    assert not acknowledges_from_log(later, row, WAL)
    assert report_due(later, row, OBJECT, is_flushed=True) is None
