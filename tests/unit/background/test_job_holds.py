"""Partitions that are locked for running jobs."""

import pytest

from kbroker import limits
from kbroker.background.job_holds import JobHolds
from kbroker.clock import ManualClock
from kbroker.storage.rewrite.object_swap import PartitionLocks
from kbroker.storage.rewrite.swap_proposal import JobNote, encode_job
from kbroker.storage.stores.memory_store import MemoryStore

ID, OTHER = "0" * 32, "1" * 32
TOPIC = bytes(16)


class Jobs:
    """Two partitions, and the notes of jobs in a bucket."""

    def __init__(self):
        self.clock = ManualClock(1_700_000_000_000)
        self.store = MemoryStore(self.clock)
        self.locks = PartitionLocks()
        self.holds = JobHolds(self.store, self.locks, self.clock.monotonic, lambda place: place[1] < 2)

    def heartbeat(self, proposal_id, *partitions, beats=0):
        note = JobNote(proposal_id, "compact", "t", TOPIC, partitions, "host", 1, 0, beats)
        self.store.put(proposal_id, encode_job(note))
        self.renew(proposal_id)

    def renew(self, proposal_id):
        self.holds.renew(proposal_id, self.store.head(proposal_id))

    def held(self):
        return sorted(partition for _, partition in self.holds.places)


@pytest.fixture
def jobs():
    return Jobs()


def test_a_job_holds_those_of_its_partitions_that_exist_and_are_free(jobs):
    jobs.locks.acquire((TOPIC, 0))
    jobs.heartbeat(ID, 0, 1, 2)
    assert jobs.held() == [1]
    jobs.locks.release((TOPIC, 0))
    jobs.renew(ID)
    assert jobs.held() == [0, 1]
    assert not jobs.locks.acquire((TOPIC, 0))
    assert jobs.holds.jobs == 1


def test_partitions_are_released_when_the_note_stays_the_same_for_too_long(jobs):
    jobs.heartbeat(ID, 0)
    jobs.clock.advance(limits.PROPOSAL_HOLD_SECONDS)
    jobs.heartbeat(ID, 0, beats=1)
    jobs.clock.advance(limits.PROPOSAL_HOLD_SECONDS)
    jobs.renew(ID)
    assert jobs.held() == [0]
    jobs.clock.advance(1)
    jobs.renew(ID)
    assert jobs.held() == []
    assert jobs.locks.acquire((TOPIC, 0))


def test_jobs_without_a_note_any_more_release_theirs(jobs):
    jobs.heartbeat(ID, 0)
    jobs.heartbeat(OTHER, 1)
    jobs.holds.release_others({OTHER})
    assert jobs.held() == [1]
    assert jobs.locks.acquire((TOPIC, 0))
    jobs.holds.release(OTHER)
    assert jobs.held() == []
