"""What windows say of leader epochs, on top of the row and of the windows before."""

from __future__ import annotations

import numpy as np
import pytest

from kbroker._fast.records.gather import BatchScan
from kbroker._fast.records.records import build_batch, iter_batches
from kbroker._fast.wal.index_dtype import INDEX_DTYPE
from kbroker.storage.flush.fold import PartitionFold
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.storage.manifest.tails import Epochs

END = 100


def led_row(*epochs: tuple[int, int]) -> PartitionState:
    """It ends at END; its leader has the last epoch."""
    row = PartitionState(b"t" * 16, 0)
    row.end_offset, row.leader_epochs, row.leader_epoch = END, epochs, epochs[-1][0]
    return row


def window(row: PartitionState, base: int, epochs: list[int], *earlier: PartitionFold) -> PartitionFold:
    """One batch of one record for each epoch."""
    made = [
        build_batch([(b"k", b"v", 1_000, None)], base_offset=base + n, leader_epoch=epoch)
        for n, epoch in enumerate(epochs)
    ]
    data = b"".join(made)
    entries = np.zeros(len(epochs), INDEX_DTYPE)
    for n, (header, _) in enumerate(iter_batches(data)):
        entries[n]["base_offset"], entries[n]["size"] = header.base_offset, header.size
    scan = BatchScan(entries, len(data))
    fold = PartitionFold(row, earlier)
    fold.add(scan, scan.feed(data))
    return fold


@pytest.mark.parametrize(
    ("row", "epochs", "begun"),
    [
        (led_row((1, 0), (2, END)), [2, 2], ()),
        (led_row((2, 50)), [2], ()),
        (led_row((1, 0), (2, END)), [1, 1, 2], ((2, END + 2),)),
        (led_row((1, 0), (2, END)), [1, 1], ((2, END + 2),)),
        (led_row((1, 0), (4, END)), [1, 2, 2, 4], ((2, END + 1), (4, END + 3))),
        (led_row((1, 0), (4, END)), [2, 3], ((2, END), (3, END + 1), (4, END + 2))),
        (led_row((4, END)), [3], ((3, END), (4, END + 1))),
    ],
)
def test_epoch_of_the_leader_begins_behind_what_its_log_had(
    row: PartitionState, epochs: list[int], begun: Epochs
) -> None:
    folded = window(row, END, epochs)
    assert folded.delta(END + len(epochs)).leader_epochs == begun
    assert folded.delta(END + len(epochs)).leader_epochs == begun


def test_windows_that_are_under_way_say_it_one_after_another() -> None:
    row = led_row((1, 0), (4, END))
    first = window(row, END, [1, 2])
    second = window(row, END + 2, [2, 2], first)
    third = window(row, END + 4, [3, 4], first, second)
    fourth = window(row, END + 6, [4], first, second, third)
    ends = (END + 2, END + 4, END + 6, END + 7)
    said = [fold.delta(end).leader_epochs for fold, end in zip((first, second, third, fourth), ends, strict=True)]
    assert said == [((2, END + 1), (4, END + 2)), ((4, END + 4),), ((3, END + 4), (4, END + 5)), ()]


def test_epochs_of_a_row_without_a_leader_are_added() -> None:
    row = PartitionState(b"t" * 16, 0)
    row.end_offset, row.leader_epochs = END, ((1, 0), (2, 50))
    assert window(row, END, [2, 3]).delta(END + 2).leader_epochs == ((3, END + 1),)
