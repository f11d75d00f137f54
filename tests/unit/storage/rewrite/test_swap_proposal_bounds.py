"""What a hostile or late proposal cannot do: grow without bound, add to a log, delete what is not its own."""

from types import SimpleNamespace

import pytest

from kbroker import limits
from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import build_batch
from kbroker.background.proposals import RESULT_KEPT_MS
from kbroker.clock import ManualClock
from kbroker.errors import CorruptionError
from kbroker.storage.formats.klix import KlixFooter, encode_object
from kbroker.storage.manifest.partition_state import RefRow
from kbroker.storage.manifest.record import FileEntry
from kbroker.storage.rewrite import swap_verify
from kbroker.storage.rewrite.swap_proposal import (
    JOB,
    PROPOSAL,
    PROPOSALS_DIR,
    REFUSED,
    RESULT,
    SWAPPED,
    JobNote,
    encode_job,
    encode_proposal,
    proposal_key,
)
from kbroker.storage.rewrite.swap_verify import verify_output
from kbroker.storage.stores.local_store import LocalStore
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.store_faults import FaultyStore
from tests.unit.pipeline.slice_compaction import DAY_MS, Side
from tests.unit.storage.flush.flush_harness import KEYS, topic_id

COMPACTED = {2: b"2", 3: b"3"}


@pytest.fixture
def side(tmp_path):
    found = Side(tmp_path / "side", 0, FaultyStore(MemoryStore(ManualClock())))
    found.write((b"a", b"0"), (b"b", b"1"))
    found.write((b"a", b"2"), (b"b", b"3"))
    yield found
    found.s.close()


def full(job, name):
    return KEYS.full(proposal_key(job.id, name))


def replaced_output(side, job, proposal, batches, **row):
    """The proposal with another object as its one output."""
    swap = proposal.swaps[0]
    data = encode_object(batches)
    side.s.store.delete([KEYS.full(swap.files[0].key)])
    meta = side.s.store.put(KEYS.full(swap.files[0].key), data)
    file = swap.files[0]._replace(size=len(data), etag=meta.etag, crc32c=crc32c(data))
    footer = KlixFooter.parse(data, len(data))
    told = {
        "length": len(data), "crc32c": crc32c(data), "record_count": footer.record_count,
        "max_timestamp": footer.max_timestamp, **row,
    }  # fmt: skip
    wrong = swap._replace(files=(file,), added=(swap.added[0]._replace(**told),))
    side.s.store.put(full(job, PROPOSAL), encode_proposal(proposal._replace(swaps=(wrong,))))


def batch(offset, count, epoch=None):
    data = bytearray(build_batch([(b"k%d" % n, b"v", 5, ()) for n in range(count)], base_offset=offset))
    data[12:16] = (1 if epoch is None else epoch).to_bytes(4, "big")
    return bytes(data)


def test_outputs_cannot_have_more_records_than_their_inputs(side):
    """Of offsets 0 to 4 compaction has left three records: their places cannot be filled again."""
    assert side.by_job(1)
    side.write((b"a", b"4"))
    job, proposal = side.proposed()
    replaced_output(side, job, proposal, batch(0, 5), leader_epoch=1)
    assert side.inbox.look() == 1
    (outcome,) = job.answer().outcomes
    assert (outcome.status, outcome.reason) == (REFUSED, "5 records are proposed for 3")
    assert side.contents() == {**COMPACTED, 4: b"4"}


def test_outputs_cannot_raise_the_leader_epoch(side):
    job, proposal = side.proposed()
    replaced_output(side, job, proposal, batch(0, 4, 1 << 30), leader_epoch=1 << 30)
    assert side.inbox.look() == 1
    (outcome,) = job.answer().outcomes
    assert (outcome.status, "leader epoch" in outcome.reason) == (REFUSED, True), outcome
    assert len(side.contents()) == 4


def test_a_swap_that_was_committed_is_answered_as_swapped_two_days_later(side):
    """The broker was killed between record and answer, and started again two days later."""
    job, _ = side.proposed()
    assert side.inbox.look() == 1
    side.s.store.delete([full(job, RESULT)])
    side.s.clock.advance(2 * DAY_MS / 1000)
    assert side.inbox.look() == 1
    answer = job.answer()
    assert answer.refused is None
    assert [outcome.status for outcome in answer.outcomes] == [SWAPPED]
    assert side.contents() == COMPACTED


def test_the_owner_deletes_the_objects_of_a_proposal_that_it_refused_as_a_whole(side):
    """Nothing is reserved then: the job leaves note and answer, by which the owner finds the objects."""
    job, proposal = side.proposed()
    side.s.store.put(full(job, PROPOSAL), b"{}")
    assert side.inbox.look() == 1
    assert job.answer().refused
    (file,) = proposal.swaps[0].files
    assert not side.s.manifest.image.is_known(file.key)
    side.s.clock.advance(RESULT_KEPT_MS / 1000 + 1)
    side.inbox.look()
    assert file.key in side.s.manifest.image.deletions
    assert not list(side.s.store.list(KEYS.full(PROPOSALS_DIR)))
    side.s.clock.advance(4 * DAY_MS / 1000)
    side.retention.delete_once()
    side.s.clock.advance(4 * DAY_MS / 1000)
    side.check()
    assert len(side.contents()) == 4


def test_other_keys_among_proposals_are_ignored(side, monkeypatch):
    monkeypatch.setattr(limits, "PROPOSAL_KEYS_MAX", 3)
    others = [KEYS.full(f"{PROPOSALS_DIR}/{number:03d}-notes.txt") for number in range(10)]
    for key in others:
        side.s.store.put(key, b"x")
    job, _ = side.proposed()
    assert side.inbox.look() == 1
    assert [outcome.status for outcome in job.answer().outcomes] == [SWAPPED]
    job.close()
    side.s.clock.advance(4 * DAY_MS / 1000)
    side.inbox.look()
    assert [meta.key for meta in side.s.store.list(KEYS.full(PROPOSALS_DIR))] == others


def test_a_note_holds_only_partitions_that_there_are(side):
    note = JobNote("0" * 32, "compact", "t", topic_id("t"), tuple(range(5000)), "h", 1, 0, 0)
    side.s.store.put(KEYS.full(proposal_key(note.id, JOB)), encode_job(note))
    side.inbox.look()
    assert side.inbox.holds.places == {(topic_id("t"), 0)}


def test_a_note_with_an_illegal_topic_name_does_not_block_other_jobs(tmp_path):
    side = Side(tmp_path / "side", 0, FaultyStore(LocalStore(tmp_path / "bucket", create=True, clock=ManualClock())))
    side.write((b"a", b"0"), (b"b", b"1"))
    side.write((b"a", b"2"), (b"b", b"3"))
    note = JobNote("0" * 32, "compact", "t\ud800", topic_id("t"), (0,), "h", 1, 0, 0)
    side.s.store.put(KEYS.full(proposal_key(note.id, JOB)), encode_job(note))
    side.s.clock.advance(limits.SWEEP_AGE_MS / 1000 + 60)
    assert side.proposed() is not None
    assert side.inbox.look() == 1
    assert proposal_key(note.id, JOB) not in {KEYS.relative(meta.key) for meta in side.s.store.list(KEYS.root)}
    side.s.close()


def test_one_record_reserves_the_outputs_of_all_partitions(tmp_path):
    side = Side(tmp_path / "side", 1, partitions=3)
    for partition in range(3):
        side.write((b"a", b"0"), (b"b", b"1"), partition=partition)
        side.write((b"a", b"2"), (b"b", b"3"), partition=partition)
    job, _ = side.proposed()
    before = len([meta for meta in side.s.store.list(KEYS.manifest_dir) if meta.key.endswith(".rec")])
    assert side.inbox.look() == 1
    after = len([meta for meta in side.s.store.list(KEYS.manifest_dir) if meta.key.endswith(".rec")])
    assert after - before == 2
    assert [outcome.status for outcome in job.answer().outcomes] == [SWAPPED] * 3
    side.s.close()


def output(store, data):
    meta = store.put("k", data)
    footer = KlixFooter.parse(data, len(data))
    file = FileEntry("k", len(data), meta.etag, crc32c(data))
    row = SimpleNamespace(
        base_offset=footer.base_offset, end_offset=footer.end_offset, max_timestamp=footer.max_timestamp,
        record_count=footer.record_count, leader_epoch=1,
    )  # fmt: skip
    assert {*vars(row)} <= {*RefRow._fields}
    return file, row


def test_an_index_or_a_batch_that_is_too_large_is_not_read(monkeypatch):
    store = MemoryStore()
    file, row = output(store, encode_object(b"".join(batch(n, 1) for n in range(3000))))
    taken = []
    verify_output(store, "k", file, row, taken.append)
    assert sum(taken) < file.size
    monkeypatch.setattr(swap_verify, "PROPOSAL_INDEX_BYTES_MAX", 90_000)
    with pytest.raises(CorruptionError, match="an index of 96008 bytes: at most 90000"):
        verify_output(store, "k", file, row, taken.append)
    monkeypatch.setattr(swap_verify, "PROPOSAL_INDEX_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(swap_verify, "PROPOSAL_READ_BYTES", 10)
    monkeypatch.setattr(swap_verify, "FRAME_BYTES_MAX", 20)
    with pytest.raises(CorruptionError, match="a batch of"):
        verify_output(store, "k", file, row, taken.append)
