"""Recovery, flushes and look-ups take entries of a partition's tail only (cluster protocol §5), with real WAL files."""

from __future__ import annotations

import pytest

from kbroker.errors import StartError
from kbroker.log.leaders import NO_LEADER_EPOCH
from kbroker.storage.flush.plan import ENTRY_HEADER_BYTES
from kbroker.storage.manifest.leadership import NO_EPOCH
from kbroker.storage.manifest.tails import entries_of_tail
from tests.unit.log.generations import OWN, Generations

NAMES = ["t", "u"]


@pytest.fixture
def led(tmp_path):
    made = []

    def make(*names, seed=0):
        generations = Generations(tmp_path, names, seed)
        made.append(generations)
        return generations

    yield make
    for generations in made:
        generations.storage.close()


@pytest.mark.parametrize("seed", range(8))
def test_tails_are_recovered_from_any_mix_of_generations(led, seed):
    broker = led(*NAMES, seed=seed)
    for _ in range(3):
        for _ in range(30):
            broker.step()
        if broker.rng.random() < 0.3:
            broker.flush()
        broker.check()
        if broker.rng.random() < 0.5:
            broker.tear()
        broker.restart()
        broker.check()
        broker.check_epochs()
        for name, row in broker.rows.items():
            assert broker.tail(name) == entries_of_tail(row.entries, row.state, OWN)[0]


def test_sealed_segment_gives_a_partition_the_generations_of_its_tail(led):
    broker = led("t")
    broker.append("t", records=3)
    broker.move_away("t", 2)  # offsets 0 and 1 again
    broker.come_back("t")
    broker.append("t", size=20)
    broker.renew("t")
    wal = broker.storage.wal
    while not wal.segments[0].sealed:
        broker.append("t", size=200_000)
        broker.storage.wait_for_wal("sealed segment")
    assert broker.hot("t").wal_start_offset() == 2
    broker.check()
    broker.restart()
    broker.check()
    assert broker.storage.recovered.wal.superseded_batches == 1


def test_segments_of_generations_that_ended_are_given_up(led):
    broker = led("t", "u")
    for _ in range(8):
        broker.append("t", size=200_000)
    broker.move_away("t", 0)
    broker.restart()
    wal = broker.storage.wal
    assert (wal.unflushed_bytes > 0, broker.hot("t").unflushed_bytes) == (True, 0)
    assert broker.storage.flush()
    assert wal.unflushed_bytes == 0
    segment = wal.segments[0]
    assert wal.drop_oldest() is segment
    assert broker.storage.manifest.image.partition(broker.rows["t"].state.topic_id, 0).object_count == 0


def test_partition_whose_log_ended_elsewhere_takes_appends_of_a_new_leadership(led):
    broker = led("t")
    broker.append("t", records=3)
    broker.move_away("t", 1)
    broker.restart()
    wal = broker.storage.wal
    while not any(segment.sealed for segment in wal.segments[1:]):  # the first was recovered
        broker.append("t", size=200_000)
        broker.storage.wait_for_wal("sealed segment")
    hot = broker.hot("t")
    new = [entry for entry in broker.rows["t"].entries if entry.leader_epoch == hot.leader_epoch]
    assert hot.entries(0, wal.durable_lsn)["lsn"].tolist() == [entry.lsn for entry in new]
    assert hot.wal_start_offset() == 1


def test_flush_ends_before_a_tail_that_is_not_led_yet(led):
    broker = led("t", "u")
    for name in ("u", "t", "t", "u"):
        broker.append(name)
    broker.rows["t"].state.end_offset = 1
    broker.restart()
    hot, wal = broker.hot("t"), broker.storage.wal
    epoch, hot.leader_epoch = hot.leader_epoch, NO_LEADER_EPOCH
    (first, *_) = broker.tail("t")
    assert broker.storage.flush()
    assert wal.flushed_lsn == first.lsn - ENTRY_HEADER_BYTES
    assert broker.rows["u"].state.end_offset == 1
    assert not broker.storage.flush()
    hot.leader_epoch = epoch
    assert broker.storage.flush()
    assert wal.flushed_lsn == wal.durable_lsn
    assert [row.state.end_offset for row in broker.rows.values()] == [2, 2]


def test_gap_in_a_tail_stops_the_start(led):
    broker = led("t")
    state = broker.rows["t"].state
    tail = OWN, broker.epoch
    for _ in range(3):
        broker.append("t")
    state.end_offset = 4
    broker.come_back("t")
    broker.append("t")
    state.end_offset, state.tail = 3, tail
    with pytest.raises(StartError, match="t-0 has base offset 4, expected 3"):
        broker.restart()


def test_log_from_before_leadership_is_kept_by_a_first_move_with_a_tail_from_epoch_zero(led):
    broker = led("t")
    state = broker.rows["t"].state
    broker.append("t")
    broker.append("t", records=2)
    state.leader_epoch, state.tail, state.leader_epochs = NO_EPOCH, None, ()
    broker.restart()
    assert broker.hot("t").next_offset == 3
    state.leader_epoch, state.tail = broker.next_epoch(), (OWN, 0)
    broker.restart()
    assert broker.hot("t").next_offset == 3
    broker.check()
