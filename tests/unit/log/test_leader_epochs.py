import pytest

from kbroker.log.leader_epochs import LeaderEpochs


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(-1, (-1, -1)), (0, (0, 0)), (1, (1, 10)), (2, (1, 10)), (3, (3, 20)), (4, (3, 20)), (5, (5, 33)), (6, (-1, -1))],
)
def test_end_offset_for(asked, answer):
    assert LeaderEpochs([(1, 0), (3, 10), (5, 20)]).end_offset_for(asked, 33) == answer


def test_without_epochs_no_end_offset_is_known():
    assert LeaderEpochs().end_offset_for(0, 5) == (-1, -1)
    assert LeaderEpochs().latest == -1


def test_an_epoch_without_data_is_dropped():
    epochs = LeaderEpochs([(1, 0), (2, 7)])
    epochs.assign(3, 7)
    epochs.assign(4, 7)
    assert epochs.entries == ((1, 0), (4, 7))
    epochs.assign(4, 9)
    assert epochs.entries == ((1, 0), (4, 7))


def test_epoch_of_a_leader_that_took_over_entries_begins_behind_them():
    row = [(11, 0), (18, 5)]  # as a record moved the partition, at the end of its objects
    epochs = LeaderEpochs(row)
    for epoch, start_offset in [(11, 5), (15, 7), (18, 9)]:  # batches of the tail, then the end of the log
        epochs.assign(epoch, start_offset)
    assert epochs.entries == ((11, 0), (15, 7), (18, 9))
    assert [epochs.end_offset_for(epoch, 9) for epoch in (11, 15, 18)] == [(11, 7), (15, 9), (18, 9)]
    assert [epochs.epoch_at(offset) for offset in (4, 6, 7, 9)] == [11, 11, 15, 18]


def test_epoch_of_a_leader_without_entries_begins_where_the_row_says():
    epochs = LeaderEpochs([(11, 0), (15, 5)])
    epochs.assign(15, 5)
    assert epochs.entries == ((11, 0), (15, 5))


def test_trim_moves_the_start_of_the_first_remaining_epoch():
    epochs = LeaderEpochs([(1, 0), (3, 10), (5, 20)])
    epochs.trim_start(12)
    assert epochs.entries == ((3, 12), (5, 20))
    assert epochs.end_offset_for(1, 30) == (1, 12)
    epochs.trim_start(20)
    assert epochs.entries == ((5, 20),)
    assert epochs.epoch_at(19) == -1
    assert epochs.epoch_at(20) == 5
