"""Swap proposals: what is swapped, what is refused, and that no failure at any point leaves half of anything."""

import contextlib
import json
import random

import pytest

from kbroker import limits
from kbroker._fast.base.crc32c import crc32c
from kbroker.clock import ManualClock
from kbroker.errors import CorruptionError
from kbroker.storage.formats.klix import encode_object
from kbroker.storage.manifest.partition_state import TIMES_UNKNOWN
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.rewrite.object_swap import ReservedKeys
from kbroker.storage.rewrite.swap_proposal import (
    JOB,
    OBSOLETE,
    PROPOSAL,
    PROPOSALS_DIR,
    REFUSED,
    RESULT,
    SWAPPED,
    decode_job,
    decode_proposal,
    decode_result,
    encode_proposal,
    parse_proposal_key,
    proposal_key,
)
from kbroker.storage.rewrite.swap_proposal_job import JobTooOld, output_key
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import StoreError
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.pipeline.slice_compaction import DAY_MS, Side
from tests.unit.storage.flush.flush_harness import KEYS, ONCE, topic_id
from tests.unit.storage.manifest.changes import change_of

ID = "0123456789abcdef" * 2
COMPACTED = {2: b"2", 3: b"3"}


@pytest.fixture
def side(tmp_path):
    found = Side(tmp_path / "side", 0, FaultyStore(MemoryStore(ManualClock())))
    yield found
    found.s.close()


def fill(side, partition=0):
    """Two objects; two of the four records are superseded."""
    side.write((b"a", b"0"), (b"b", b"1"), partition=partition)
    side.write((b"a", b"2"), (b"b", b"3"), partition=partition)


def store_proposal(side, data, proposal_id=ID):
    side.s.store.put(KEYS.full(proposal_key(proposal_id, PROPOSAL)), data)


def result_of(side, proposal_id=ID):
    key = KEYS.full(proposal_key(proposal_id, RESULT))
    return decode_result(side.s.store.get(key), key, proposal_id)


def settled(side):
    """After everything that ends by itself has ended: nothing but what is live."""
    side.s.clock.advance(4 * DAY_MS / 1000)
    side.inbox.look()
    side.retention.delete_once()
    side.s.clock.advance(4 * DAY_MS / 1000)
    side.check()


# -- keys and formats --------------------------------------------------------------------------------------------


def test_keys_of_proposals():
    assert parse_proposal_key(proposal_key(ID, JOB)) == (ID, JOB)
    for key in (f"{ID}/other.json", f"{ID[1:]}/job.json", f"{ID}/job.json/x", ""):
        assert parse_proposal_key(f"_proposals/{key}") is None
    assert parse_proposal_key(f"_manifest/{ID}/job.json") is None
    with pytest.raises(ValueError, match="not a proposal"):
        proposal_key("../x", JOB)


def test_what_is_written_is_read(side):
    fill(side)
    job, proposal = side.proposed()
    data = side.s.store.get(KEYS.full(proposal_key(job.id, PROPOSAL)))
    assert decode_proposal(data, "p", job.id) == proposal
    note = decode_job(side.s.store.get(KEYS.full(proposal_key(job.id, JOB))), "j", job.id)
    assert (note.topic, note.partitions, note.kind) == ("t", (0,), "compact")
    assert side.inbox.look() == 1
    assert job.answer() == result_of(side, job.id)


def test_a_proposal_of_version_1_is_read_and_knows_no_times(side):
    fill(side)
    job, proposal = side.proposed()
    assert all(row.span_ms >= 0 and row.late_ms >= 0 for row in proposal.swaps[0].added)
    old = json.loads(encode_proposal(proposal))
    assert old["v"] == 2
    old["v"] = 1
    for swap in old["swaps"]:
        swap["r"] = [row[:9] for row in swap["r"]]
    assert json.loads(encode_proposal(proposal, 1)) == old
    store_proposal(side, encode_proposal(proposal, 1), job.id)
    assert side.inbox.look() == 1
    assert [outcome.status for outcome in job.answer().outcomes] == [SWAPPED]
    ref = side.s.manifest.image.find(topic_id("t"), 0, 0)
    assert (ref.min_timestamp, ref.late_ms) == (TIMES_UNKNOWN, -1)
    assert side.contents() == COMPACTED
    job.close()
    side.check()


# -- answers ------------------------------------------------------------------------------------------------------


def test_nothing_is_seen_before_the_answer_and_all_of_it_after(side):
    fill(side)
    job, _ = side.proposed()
    assert len(side.contents()) == 4
    assert job.answer() is None
    assert side.inbox.look() == 1
    assert side.contents() == COMPACTED
    assert side.inbox.look() == 0
    assert side.inbox.metrics.swapped == 1
    job.close()
    side.check()


def test_a_proposal_whose_inputs_changed_is_obsolete_and_its_objects_go(side):
    fill(side)
    job, proposal = side.proposed()
    assert side.by_broker()
    assert side.inbox.look() == 1
    assert [outcome.status for outcome in job.answer().outcomes] == [OBSOLETE]
    (file,) = proposal.swaps[0].files
    assert file.key in side.s.manifest.image.deletions
    job.close()
    settled(side)
    assert side.contents() == COMPACTED


def test_of_two_partitions_one_may_be_obsolete(tmp_path):
    side = Side(tmp_path / "side", 1, partitions=2)
    fill(side)
    fill(side, 1)
    job, _ = side.proposed()
    side.s.manifest.commit(change_of({"p": {topic_id("t").hex(): {"0": {"s": 1}}}}))  # does not change the objects
    side.s.manifest.commit(change_of({"p": {topic_id("t").hex(): {"1": {"s": 2}}}}))
    assert side.inbox.look() == 1
    assert [(outcome.partition, outcome.status) for outcome in job.answer().outcomes] == [(0, SWAPPED), (1, OBSOLETE)]
    assert side.contents() == side.contents(1) == COMPACTED
    job.close()
    settled(side)
    side.s.close()


def test_a_swap_removes_aborted_transactions_that_the_log_serves_no_longer(side):
    fill(side)
    job, proposal = side.proposed()
    clean_offset = proposal.swaps[0].clean_offset
    later = (8, 0, clean_offset, clean_offset + 1)
    side.s.manifest.commit(change_of({"p": {topic_id("t").hex(): {"0": {"a": [[9, 0, 1, 2], [*later]]}}}}))
    swap = proposal.swaps[0]._replace(gone=(1, clean_offset, 77))
    store_proposal(side, encode_proposal(proposal._replace(swaps=(swap,))), job.id)
    partition = side.s.table.partition("t", 0)
    partition.producers.aborted.restore([(9, 0, 1, 2), later])
    assert partition.wal_start_offset() == 0
    assert side.inbox.look() == 1
    assert partition.wal_start_offset() == clean_offset
    assert side.state().aborted == (later,)
    assert partition.producers.aborted.entries == [later]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"v":1}', b"[" * 100_000, b'{"v":3,"id":"%s"}' % ID.encode(),
        b'{"v":1,"id":"0"}', json.dumps({"v": 1, "id": ID, "kind": "explode"}).encode(),
        json.dumps({"v": 1, "id": ID, "kind": "compact", "topic": "t", "topic_id": "x", "swaps": []}).encode(),
        json.dumps({"v": 1, "id": ID, "kind": "compact", "topic": "t" * 10_000, "swaps": [1]}).encode(),
    ],
)  # fmt: skip
def test_garbage_is_refused_in_one_line(side, data):
    fill(side)
    store_proposal(side, data)
    records = len(list(side.s.store.list(KEYS.manifest_dir)))
    assert side.inbox.look() == 1
    result = result_of(side)
    assert result.refused
    assert "\n" not in result.refused
    assert len(result.refused) <= 500
    assert len(side.contents()) == 4
    assert len(list(side.s.store.list(KEYS.manifest_dir))) == records


def test_a_proposal_that_is_too_large_is_refused_unread(side, monkeypatch):
    monkeypatch.setattr(limits, "PROPOSAL_BYTES_MAX", 100)
    store_proposal(side, b"x" * 101)
    side.s.store.operations.clear()
    assert side.inbox.look() == 1
    assert "101 bytes: at most 100" in result_of(side).refused
    assert ("get", KEYS.full(proposal_key(ID, PROPOSAL))) not in side.s.store.operations


def changed(proposal, **changes):
    swap = proposal.swaps[0]
    return proposal._replace(swaps=(swap._replace(**changes),))


def other_key(proposal, key):
    swap = proposal.swaps[0]
    return changed(proposal, files=(swap.files[0]._replace(key=key),))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p._replace(topic="u"), "there is no partition u-0"),
        (lambda p: p._replace(topic_id=bytes(16)), "there is no partition"),
        (lambda p: changed(p, partition=7), "there is no partition t-7"),
        (lambda p: other_key(p, "_manifest/x"), "not a key for an output"),
        (lambda p: other_key(p, output_key("f" * 32, "t", (p.topic_id, 0), 0, 1)), "not a key for an output"),
        (lambda p: other_key(p, output_key(p.id, "t", (p.topic_id, 0), 0, 9)), "not a key for an output"),
        (lambda p: other_key(p, output_key(p.id, "t", (p.topic_id, 0), 0, 1)), "an output is not there"),
        (lambda p: changed(p, files=(p.swaps[0].files[0]._replace(etag="x"),)), "ETag"),
        (lambda p: changed(p, clean_offset=5), "clean offset 5 is above 4"),
        (lambda p: changed(p, added=(p.swaps[0].added[0]._replace(record_count=3),)), "max timestamp and records"),
        (lambda p: changed(p, added=(p.swaps[0].added[0]._replace(leader_epoch=9),)), "leader epoch"),
        (
            lambda p: changed(
                p, files=(p.swaps[0].files[0]._replace(crc32c=1),), added=(p.swaps[0].added[0]._replace(crc32c=1),)
            ),
            "CRC-32C",
        ),
        (lambda p: changed(p, files=(), added=()), "objects cannot stay as they are"),
    ],
)
def test_a_refused_swap_says_why(side, change, reason):
    fill(side)
    job, proposal = side.proposed()
    store_proposal(side, encode_proposal(change(proposal)), job.id)
    assert side.inbox.look() == 1
    (outcome,) = job.answer().outcomes
    assert (outcome.status, reason in outcome.reason) == (REFUSED, True), outcome
    assert len(side.contents()) == 4
    assert not side.s.manifest.image.reserved


@pytest.mark.parametrize("damage", ["offsets", "batch", "gone"])
def test_a_damaged_output_is_refused(side, damage):
    fill(side)
    job, proposal = side.proposed()
    (file,) = proposal.swaps[0].files
    data = side.s.store.get(KEYS.full(file.key))
    if damage == "batch":
        data = data[:62] + bytes([data[62] ^ 1]) + data[63:]
    elif damage == "offsets":
        data = encode_object(side.s.in_wal("t", 0)[:])
    side.s.store.delete([KEYS.full(file.key)])
    if damage != "gone":
        meta = side.s.store.put(KEYS.full(file.key), data)
        crc = crc32c(data)
        row = proposal.swaps[0].added[0]._replace(crc32c=crc, length=len(data), end_offset=4)
        wrong = changed(proposal, files=(file._replace(etag=meta.etag, size=meta.size, crc32c=crc),), added=(row,))
        store_proposal(side, encode_proposal(wrong), job.id)
    assert side.inbox.look() == 1
    (outcome,) = job.answer().outcomes
    assert outcome.status == REFUSED
    assert {"batch": "CRC", "offsets": "records", "gone": "not there"}[damage] in outcome.reason
    assert len(side.contents()) == 4


def test_a_proposal_for_a_topic_without_compaction_is_refused(side):
    fill(side)
    job, _ = side.proposed()
    config = side.s.add_topic("plain", 1).config
    side.s.table.set_config(topic_id("t"), config)
    assert side.inbox.look() == 1
    assert "has no compact" in job.answer().outcomes[0].reason


def test_an_old_proposal_is_refused_and_an_old_job_proposes_nothing(side):
    fill(side)
    run = side.run()
    swaps = run.swaps(1 << 30)
    job, _ = side.proposed()
    side.s.clock.advance(DAY_MS / 1000 + 1)
    with pytest.raises(JobTooOld):
        run.job.propose(swaps, ONCE)
    run.job.abandon()
    assert side.inbox.look() == 1
    assert "older than a day" in job.answer().refused
    job.close()


def test_a_key_that_something_else_reserved_is_not_touched(side):
    """Even one with the right tag: only keys in this proposal's own form can be released."""
    fill(side)
    job, proposal = side.proposed()
    reserved = ReservedKeys(side.s.manifest, side.s.store, KEYS.full, side.s.clock)
    (key,) = reserved.reserve([lambda rewrite: output_key("f" * 32, "t", (topic_id("t"), 0), 0, 1)])
    store_proposal(side, encode_proposal(other_key(proposal, key)), job.id)
    assert side.inbox.look() == 1
    assert job.answer().outcomes[0].status == REFUSED
    assert key in side.s.manifest.image.reserved
    assert key not in side.s.manifest.image.deletions


def test_a_live_key_is_not_taken_again(side):
    fill(side)
    job, proposal = side.proposed()
    assert side.inbox.look() == 1
    side.write((b"a", b"4"))
    assert side.by_broker()  # the output is replaced, and waits for its deletion
    store_proposal(side, encode_proposal(proposal), job.id)
    side.s.store.delete([KEYS.full(proposal_key(job.id, RESULT))])
    assert side.inbox.look() == 1
    (outcome,) = job.answer().outcomes
    assert (outcome.status, "names this key" in outcome.reason) == (REFUSED, True)
    assert side.contents() == {3: b"3", 4: b"4"}


# -- judged again -------------------------------------------------------------------------------------------------


def test_a_proposal_judged_again_has_the_same_answer(side):
    fill(side)
    job, _ = side.proposed()
    assert side.inbox.look() == 1
    side.s.store.delete([KEYS.full(proposal_key(job.id, RESULT))])  # the answer was lost before it was stored
    records = len(list(side.s.store.list(KEYS.manifest_dir)))
    assert side.inbox.look() == 1
    assert [outcome.status for outcome in job.answer().outcomes] == [SWAPPED]
    assert len(list(side.s.store.list(KEYS.manifest_dir))) == records


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_a_broker_that_dies_at_any_point_of_the_judgement(tmp_path, when):
    """Its next start judges again: swapped once, and nothing is left over."""
    for point in range(100):
        side = Side(tmp_path / f"{when.value}-{point}", 0, FaultyStore(MemoryStore(ManualClock())))
        fill(side)
        job, _ = side.proposed()
        fault = side.s.store.inject(Fault("*", when, skip=point, error=KeyboardInterrupt))
        try:
            side.inbox.look()
        except KeyboardInterrupt:
            side.restart()
        struck, fault.times = fault.times == 0, 0
        if struck:
            assert side.contents() in (COMPACTED, {0: b"0", 1: b"1", **COMPACTED})
        assert job.answer() is not None or side.inbox.look() == 1
        assert [outcome.status for outcome in job.answer().outcomes] == [SWAPPED]
        assert side.contents() == COMPACTED
        assert list(BucketAudit(side.s.store, KEYS, side.s.manifest.image).faults()) == []
        job.close()
        settled(side)
        side.s.close()
        if not struck:
            assert point >= 6  # listing, proposal, reservation, output, record, answer
            return
    raise AssertionError("the judgement has no end")


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_a_request_that_fails_at_any_point_of_the_judgement(tmp_path, when):
    for point in range(100):
        side = Side(tmp_path / f"{when.value}-{point}", 0, FaultyStore(MemoryStore(ManualClock())))
        fill(side)
        job, _ = side.proposed()
        fault = side.s.store.inject(Fault("*", when, skip=point))
        with contextlib.suppress(StoreError):
            side.inbox.look()
        struck, fault.times = fault.times == 0, 0
        assert job.answer() is not None or side.inbox.look() == 1
        assert [outcome.status for outcome in job.answer().outcomes] == [SWAPPED]
        job.close()
        settled(side)
        side.s.close()
        if not struck:
            return
    raise AssertionError("the judgement has no end")


@pytest.mark.parametrize("operation", ["put", "get", "delete", "list"])
def test_a_job_that_is_killed_at_any_point(tmp_path, operation):
    """What it stored is swept up by the broker, by its note or as what it proposed."""
    for point in range(100):
        side = Side(tmp_path / f"{operation}-{point}", 0, FaultyStore(MemoryStore(ManualClock())))
        fill(side)
        fault = side.s.store.inject(Fault(operation, When.AFTER, skip=point, error=KeyboardInterrupt))
        try:
            side.proposed(1)
        except KeyboardInterrupt:
            pass
        struck, fault.times = fault.times == 0, 0
        side.inbox.look()
        assert side.contents() in (COMPACTED, {0: b"0", 1: b"1", **COMPACTED})
        settled(side)
        side.s.close()
        if not struck:
            return
    raise AssertionError("the job has no end")


# -- running jobs -------------------------------------------------------------------------------------------------


def test_the_broker_leaves_the_partitions_of_a_job_alone_while_it_lives(side):
    fill(side)
    run = side.run()
    run.job.announce([0])
    assert side.by_broker()  # it has not looked yet
    side.write((b"a", b"4"))
    side.inbox.look()
    assert not side.by_broker()
    for _ in range(20):
        side.s.clock.advance(limits.PROPOSAL_HOLD_SECONDS / 2)
        run.job.beat()
        side.inbox.look()
        assert not side.by_broker()
    side.s.clock.advance(limits.PROPOSAL_HOLD_SECONDS)
    side.inbox.look()
    assert not side.by_broker()
    side.s.clock.advance(1)
    side.inbox.look()  # no heartbeat for too long
    assert side.by_broker()
    run.job.beat()
    side.write((b"a", b"5"))
    side.inbox.look()
    assert not side.by_broker()
    run.job.abandon()
    side.inbox.look()
    assert side.by_broker()


def test_a_proposal_waits_while_the_broker_rewrites_the_partition(side):
    fill(side)
    job, _ = side.proposed()
    assert side.locks.acquire((topic_id("t"), 0))
    assert side.inbox.look() == 0
    side.locks.release((topic_id("t"), 0))
    assert side.inbox.look() == 1
    assert job.answer().outcomes[0].status == SWAPPED
    assert side.locks.acquire((topic_id("t"), 0))


def test_the_first_to_propose_wins_whatever_other_jobs_work_on_the_partition(side):
    """Other jobs may be dead, and must not block this one."""
    fill(side)
    dead, slow = side.run(), side.run()
    dead.job.announce([0])
    slow.job.announce([0])
    late = slow.swaps(1 << 30)
    side.inbox.look()
    quick, _ = side.proposed()
    assert side.inbox.look() == 1
    assert [outcome.status for outcome in quick.answer().outcomes] == [SWAPPED]
    assert not side.by_broker()  # the others may be running
    slow.job.propose(late, ONCE)
    assert side.inbox.look() == 1
    assert [outcome.status for outcome in slow.job.answer().outcomes] == [OBSOLETE]


def test_a_note_that_does_not_parse_holds_nothing(side):
    fill(side)
    side.s.store.put(KEYS.full(proposal_key(ID, JOB)), b"garbage")
    side.inbox.look()
    assert side.by_broker()
    side.s.clock.advance(2 * DAY_MS / 1000 + 1)
    side.inbox.look()
    assert list(side.s.store.list(KEYS.full(PROPOSALS_DIR))) == []


def test_objects_of_a_dead_job_are_deleted_after_two_days_and_a_grace_time(side):
    fill(side)
    run = side.run()
    (swap,) = run.swaps(1 << 30)
    staged = KEYS.full(swap.files[0].key)
    side.inbox.look()
    side.s.clock.advance(1.9 * DAY_MS / 1000)
    side.inbox.look()
    assert staged in side.stored_keys()
    side.s.clock.advance(0.2 * DAY_MS / 1000)
    side.inbox.look()
    assert side.inbox.metrics.orphans == 1
    assert swap.files[0].key in side.s.manifest.image.deletions
    side.s.clock.advance(DAY_MS / 1000 + 1)
    side.retention.delete_once()
    assert staged not in side.stored_keys()
    side.check()


def test_an_answer_that_is_not_fetched_is_deleted(side):
    fill(side)
    side.proposed()
    side.inbox.look()
    side.s.clock.advance(3_601)
    side.inbox.look()
    assert list(side.s.store.list(KEYS.full(PROPOSALS_DIR))) == []


def test_a_job_that_fails_leaves_nothing(side):
    fill(side)
    before = side.stored_keys()
    run = side.run()
    run.swaps(1)
    assert side.stored_keys() > before
    run.job.abandon()
    assert side.stored_keys() == before
    assert list(side.s.store.list(KEYS.full(PROPOSALS_DIR))) == []


def test_attempts_of_tasks_that_were_not_proposed_go_with_the_proposal(side):
    fill(side)
    run = side.run()
    (swap,) = run.swaps(1 << 30)
    twice = output_key(run.job.id, "t", (topic_id("t"), 0), 0, 1)
    other_jobs = output_key("f" * 32, "t", (topic_id("t"), 0), 0, 1)
    for key in (twice, other_jobs):
        side.s.store.put(KEYS.full(key), b"x")
    run.job.propose([swap], ONCE)
    assert run.job.drop_staged([KEYS.full(swap.files[0].key)]) == 1
    assert KEYS.full(other_jobs) in side.stored_keys()
    assert KEYS.full(swap.files[0].key) in side.stored_keys()


def test_an_idle_look_is_one_request(side):
    fill(side)
    side.s.store.operations.clear()
    side.inbox.look()
    assert [name for name, _ in side.s.store.operations] == ["list"]
    assert 60 / limits.PROPOSAL_POLL_SECONDS <= 3


def test_foreign_keys_in_the_folder_are_ignored_and_bounded(side, monkeypatch):
    monkeypatch.setattr(limits, "PROPOSAL_LISTED_MAX", 5)
    for number in range(10):
        side.s.store.put(KEYS.full(f"_proposals/foreign-{number}"), b"x")
    side.s.store.operations.clear()
    assert side.inbox.look() == 0
    assert len(side.s.store.operations) <= 6
    assert len(list(side.s.store.list(KEYS.full("_proposals/")))) == 10


# -- anything at all ----------------------------------------------------------------------------------------------


def _mutated(rng, value):
    """A JSON value with one thing in it that is something else."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        if rng.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: _mutated(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _mutated(rng, value[at]), *value[at + 1 :]] if rng.random() < 0.9 else value + value[at:]
    return rng.choice([None, -1, 0, 1, 2, 3, 4, 1 << 62, 1 << 70, "", "x", "../../x", [], {}, [[]], 1.5, True])


@pytest.mark.parametrize("seed", range(4))
def test_any_change_of_a_proposal_is_refused_or_harmless(tmp_path, seed):
    rng = random.Random(seed)
    side = Side(tmp_path / "side", seed)
    fill(side)
    job, proposal = side.proposed(1)
    valid = json.loads(encode_proposal(proposal))
    for number in range(60):
        proposal_id = f"{number:032x}"
        data = _mutated(rng, valid)
        if isinstance(data, dict):
            data["id"] = proposal_id
        store_proposal(side, json.dumps(data).encode(), proposal_id)
    side.s.store.delete([KEYS.full(proposal_key(job.id, PROPOSAL))])
    assert side.inbox.look() == 60
    for number in range(60):
        result = result_of(side, f"{number:032x}")
        assert result.refused or all(outcome.status != SWAPPED for outcome in result.outcomes)
    assert len(side.contents()) == 4
    # Under its own id, many changes pass the first checks.
    for _ in range(60):
        data = _mutated(rng, valid)
        store_proposal(side, json.dumps(data).encode(), job.id)
        assert side.inbox.look() == 1
        assert side.contents() in (COMPACTED, {0: b"0", 1: b"1", **COMPACTED})
        assert list(BucketAudit(side.s.store, KEYS, side.s.manifest.image).faults()) == []
        side.s.store.delete([KEYS.full(proposal_key(job.id, RESULT))])
    side.s.close()


def test_random_bytes_never_parse_badly():
    rng = random.Random(7)
    for _ in range(2000):
        data = rng.randbytes(rng.randrange(40))
        for decode in (decode_job, decode_proposal, decode_result):
            with pytest.raises(CorruptionError, match="key"):
                decode(data, "key", ID)
