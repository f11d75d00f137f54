"""Recovery of a cluster whose manifest is damaged: what clients see afterwards is what they saw before."""

import contextlib
from base64 import b64decode

import pytest

from kbroker._fast.base.crc32c import crc32c
from kbroker._fast.records.records import iter_batches, iter_records
from kbroker.cluster.features import LEVELS, LOWEST, NEWEST, UnknownLevel
from kbroker.errors import CorruptionError, StartError
from kbroker.exchange.recover.restart import STEP, LogRestart
from kbroker.exchange.source_error import SourceError
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.ledger.numbered_log_format import FrameKind, decode_frame, encode_frame
from kbroker.storage.ledger.ownership import claim, newest_claim
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.exchange.recover.led_cluster import LedCluster
from tests.unit.exchange.recover.recover_bucket import KEYS, NOW, ONCE, PRODUCER, DamagedCluster, batch, topic_id
from tests.unit.storage.manifest.changes import change_of


@pytest.fixture(params=[2, 3, "led"])
def cluster(request):
    """With manifest records in JSON, in columns, and in columns with brokers and leaders."""
    made = LedCluster() if request.param == "led" else DamagedCluster(version=request.param)
    made.fill()
    made.stop()
    return made


def records_of(cluster):
    return [key for key in cluster.manifest_keys() if key.endswith(".rec")]


def data_records(cluster):
    """Keys of the records after the newest checkpoint, without seals."""
    covered = max((key[-24:-4] for key in checkpoints(cluster)), default="")
    behind = [key for key in records_of(cluster) if key[-24:-4] > covered]
    return [key for key in behind if cluster.store.get(key)[6] == FrameKind.RECORD]


def checkpoints(cluster):
    return [key for key in cluster.manifest_keys() if key.endswith(".ckp")]


def damage_record(cluster, place):
    cluster.corrupt(data_records(cluster)[place])


def remove_record(cluster, place):
    cluster.store.delete([data_records(cluster)[place]])


def damage_checkpoint(cluster):
    for key in checkpoints(cluster):
        cluster.corrupt(key)
    # As if two checkpoints had covered them: else the records alone would do.
    cluster.store.delete(records_of(cluster)[1:4])


def truncate_record(cluster):
    key = data_records(cluster)[-2]
    cluster.store.put(key, cluster.store.get(key)[:30])


def lose_everything(cluster):
    cluster.store.delete(cluster.manifest_keys())


DAMAGES = {
    "the first record after the checkpoint": lambda cluster: damage_record(cluster, 0),
    "a record": lambda cluster: damage_record(cluster, 5),
    "the last record": lambda cluster: damage_record(cluster, -1),
    "a missing record": lambda cluster: remove_record(cluster, 6),
    "a short record": truncate_record,
    "all checkpoints": damage_checkpoint,
    "all of it": lose_everything,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_everything_is_as_it_was(cluster, damage):
    before = cluster.facts()
    DAMAGES[damage](cluster)
    with pytest.raises(CorruptionError):
        check_start(cluster)
    left = cluster.everything()
    _, findings = cluster.recover()
    after = cluster.facts(cluster.loaded())
    assert list(findings.lines())
    assert after == before
    now = cluster.everything()
    assert {key: now[key] for key in left if "_claims" not in key} == {
        key: data for key, data in left.items() if "_claims" not in key
    }


@pytest.mark.parametrize("damage", ["a record", "all checkpoints"])
def test_a_copied_bucket_is_recovered_too(cluster, damage):
    """What the readable part of the manifest names is in the store under other ETags; the new manifest has these."""
    before = cluster.facts()
    for key, data in cluster.everything().items():
        cluster.store.put(key, data)
    DAMAGES[damage](cluster)
    _, findings = cluster.recover()
    assert not findings.survey.missing
    assert cluster.facts(cluster.loaded()) == before


def check_start(cluster):
    """What a start does with the manifest: raises when it cannot be loaded."""
    damage = cluster.recovery().damage()
    if damage is not None:
        raise CorruptionError(damage)


def test_a_broker_continues_after_a_recovery(cluster):
    damage_record(cluster, 5)
    cluster.recover()
    cluster.start()
    ends = {key: facts["end"] for key, facts in cluster.facts().items()}
    cluster.flush(("plain", 0, cluster.records("plain")), ("small", 0, cluster.records("small")), kind="pack")
    for _ in range(3):
        cluster.manifest.checkpoint()
        cluster.flush(("kafscale", 0, cluster.records("kafscale")), kind="kfs")
    image = cluster.loaded()
    assert image.partition(topic_id("plain"), 0).end_offset == ends[topic_id("plain"), 0] + 12
    assert image.partition(topic_id("plain"), 0).leader_epochs[-1] == (cluster.leader_epoch, ends[topic_id("plain"), 0])
    assert cluster.facts(image) == cluster.facts()


def test_a_dry_run_changes_nothing(cluster):
    damage_record(cluster, 5)
    before = cluster.everything()
    assert list(cluster.recovery().look().lines())
    assert cluster.everything() == before


def test_a_manifest_that_can_be_loaded_is_refused(cluster):
    before = cluster.everything()
    with pytest.raises(SourceError, match="nothing to recover"):
        cluster.recover()
    assert cluster.everything() == before


def test_a_cluster_that_is_owned_is_refused(cluster):
    damage_record(cluster, 5)
    claim(cluster.store, KEYS.root, "other", False, NOW, retries=ONCE)
    before = cluster.everything()
    with pytest.raises(StartError, match="not released by epoch 3"):
        cluster.recover()
    recovery = cluster.recovery()
    findings = recovery.look()
    with pytest.raises(StartError, match="has not released it"):
        recovery.store(findings, take_over=False)
    assert cluster.everything() == before


def test_a_newer_version_is_no_damage(cluster):
    key = data_records(cluster)[0]
    frame = decode_frame(cluster.store.get(key), key)
    payload = {"v": 4, "t": NOW} if cluster.version == 2 else (4).to_bytes(2, "little")
    content = {"kind": "manifest", "payload": payload}
    cluster.store.put(key, encode_frame(FrameKind.RECORD, frame.number, frame.epoch, frame.nonce, content))
    with pytest.raises(SourceError, match="newer kbroker"):
        cluster.recover()


def test_a_newer_format_is_no_damage_and_rot_in_the_version_is(cluster):
    key = data_records(cluster)[0]
    data = cluster.store.get(key)
    newer = data[:5] + b"\x03" + data[6:52]
    cluster.store.put(key, newer + crc32c(newer).to_bytes(4, "big") + data[56:])
    with pytest.raises(SourceError, match="newer kbroker"):
        cluster.recover()
    before = cluster.facts()
    cluster.store.put(key, data[:5] + b"\x04" + data[6:])
    cluster.recover()
    assert cluster.facts(cluster.loaded()) == before


def test_the_former_owner_is_fenced():
    cluster = DamagedCluster()
    cluster.fill()
    sleeper, metadata = cluster.manifest, NumberedLog(cluster.store, KEYS.metadata_dir, 2, bytes(16), retries=ONCE)
    metadata.load(lambda *_: None, lambda *_: None)
    metadata.seal_previous()
    data = cluster.records("plain")
    damage_record(cluster, 3)
    recovery = cluster.recovery()
    key, _ = recovery.store(recovery.look(), take_over=True)
    assert newest_claim(cluster.store, KEYS.root).released
    with pytest.raises(Fenced):
        cluster.flush(("plain", 0, data))
    assert sleeper.fenced is not None
    with pytest.raises(Fenced):
        metadata.append("changes", {"version": 1, "records": []})
    assert cluster.store.head(key)
    assert cluster.recovery().damage() is None


READS_LESS_MAX = 20


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_after_a_failure_at_any_request_it_can_be_run_again(when):
    """At each write, and at some of the reads."""
    cluster = DamagedCluster()
    cluster.fill()
    cluster.stop()
    before = cluster.facts()
    lost = cluster.image.find(topic_id("plain"), 0, 12)
    cluster.store.delete([lost.key])  # so that something has to be stored besides the checkpoint
    damage_record(cluster, 7)
    damaged = cluster.store
    cluster.store = cluster.copied()
    counting = FaultyStore(cluster.store)
    cluster.recover(counting)
    left_out = ("list",) if when is When.AFTER else ()  # changes after a listing are no fault
    operations = [operation for operation, _ in counting.operations if operation not in left_out]
    expected = cluster.facts(cluster.loaded())
    assert {place: facts["end"] for place, facts in expected.items()} == {
        place: facts["end"] for place, facts in before.items()
    }
    writes = [operation for operation in operations if operation not in ("get", "list", "head")]
    assert writes == ["put"] * 7  # the claim, three seals, what fills the gap, the checkpoint, the release
    # The records of a log are read ahead by several threads: now and then a few requests fewer do.
    reads = range(0, len(operations) - len(writes) - READS_LESS_MAX, 11)
    for operation, requests in [*(("put", place) for place in range(len(writes))), *(("*", place) for place in reads)]:
        cluster.store = damaged
        cluster.store = cluster.copied()
        faulty = FaultyStore(cluster.store)
        faulty.inject(Fault(operation, when=when, skip=requests))
        with contextlib.suppress(StoreUnavailable, StartError, SourceError, CorruptionError):
            cluster.recover(faulty)
        if cluster.recovery().damage() is not None:
            recovery = cluster.recovery()
            recovery.store(recovery.look(), take_over=True)
        assert cluster.facts(cluster.loaded()) == expected
        assert faulty.struck == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_recoveries_at_a_time_one_succeeds(cluster, order):
    """The first is paused before its checkpoint, and a second one takes the cluster over."""
    before = cluster.facts()
    damage_record(cluster, 4)
    findings = cluster.recovery().look()
    restarts, payloads = [], []
    for _ in range(2):
        recovery = cluster.recovery()
        epoch = claim(cluster.store, KEYS.root, "x", True, NOW, retries=ONCE).epoch
        restarts.append(LogRestart(cluster.store, KEYS, epoch, bytes([epoch] * 16), ONCE))
        restarts[-1].begin()
        payloads.append(recovery._checkpoint(recovery._image(findings), epoch))
    assert [restart.number for restart in restarts] == [STEP, STEP]
    restarts[order[0]].finish(payloads[order[0]])
    with pytest.raises(SourceError, match="another recovery has finished"):
        restarts[order[1]].finish(payloads[order[1]])
    assert cluster.facts(cluster.loaded()) == before
    claim(cluster.store, KEYS.root, "dir", True, NOW, retries=ONCE).release(NOW)
    cluster.start()
    cluster.flush(("plain", 0, cluster.records("plain")))
    late = LogRestart(cluster.store, KEYS, 4, bytes(16), ONCE)
    with pytest.raises(SourceError, match="owns the log now"):
        late._own(STEP)


def test_a_gap_is_reported_and_its_offsets_are_not_given_again(cluster):
    cluster.start()
    keys = [cluster.flush(("plain", 0, cluster.records("plain")))[0] for _ in range(3)]
    cluster.flush(("kafscale", 0, cluster.records("kafscale")), kind="kfs")
    cluster.stop()
    before = cluster.facts()[topic_id("plain"), 0]
    damage_record(cluster, 0)
    cluster.store.delete([KEYS.full(keys[1])])
    _, findings = cluster.recover()
    image = cluster.loaded()
    after = cluster.facts(image)[topic_id("plain"), 0]
    first = before["end"] - 24
    assert [line for line in findings.lines() if "gap:" in line] == [
        f"plain-0: gap: offsets {first} to {first + 12}: no object has them: lost"
    ]
    offsets = [record.offset for _, data in iter_batches(after["batches"]) for record in iter_records(data)]
    lost = range(first, first + 12)
    expected = [record.offset for _, data in iter_batches(before["batches"]) for record in iter_records(data)]
    assert offsets == [offset for offset in expected if offset not in lost]
    assert after["end"] == before["end"]


def test_the_last_offsets_seen_are_not_given_again(cluster):
    """The last object is lost, and only a record after the damage names it."""
    cluster.start()
    cluster.flush(("plain", 0, cluster.records("plain")))
    key = cluster.flush(("plain", 0, cluster.records("plain")))[0]
    cluster.stop()
    end = cluster.end("plain")
    damage_record(cluster, 0)
    cluster.store.delete([KEYS.full(key)])
    _, findings = cluster.recover()
    assert any("never given again" in line for line in findings.lines())
    assert cluster.loaded().partition(topic_id("plain"), 0).end_offset == end


def test_the_later_leader_wins(cluster):
    """A flush of epoch 2 stored its object and was superseded before its record: epoch 3 began at the same offset."""
    leftover = cluster.flush(("plain", 0, cluster.records("plain", count=6)), commit=False)[0]
    cluster.start()
    new = cluster.flush(("plain", 0, cluster.records("plain", count=2)), generation=1)[0]
    cluster.stop()
    before = cluster.facts()[topic_id("plain"), 0]
    damage_record(cluster, 0)
    _, findings = cluster.recover()
    after = cluster.facts(cluster.loaded())[topic_id("plain"), 0]
    assert before["batches"] == after["batches"][: len(before["batches"])]
    assert [header.record_count for header, _ in iter_batches(after["batches"][len(before["batches"]) :])] == [0]
    assert after["end"] == before["end"] + 12  # the orphan's offsets are never reused
    assert after["epochs"] == before["epochs"]
    lines = list(findings.lines())
    assert any(
        "choice" in line and leftover in line and f"leader epoch {cluster.leader_epoch}" in line for line in lines
    )
    assert any("taken" in line and new in line for line in lines)


def test_an_orphan_without_a_successor_is_used(cluster):
    data = cluster.records("plain", count=2)
    key = cluster.flush(("plain", 0, data), commit=False)[0]
    before = cluster.facts()[topic_id("plain"), 0]
    damage_record(cluster, 3)
    _, findings = cluster.recover()
    after = cluster.facts(cluster.loaded())[topic_id("plain"), 0]
    assert after["batches"] == before["batches"] + data
    assert any("taken" in line and key in line for line in findings.lines())


def test_objects_of_unknown_topics_and_damaged_ones_are_reported_and_kept(cluster):
    cluster.start()
    stranger = cluster.flush(("stranger", 0, batch(0)), commit=False)[0]
    broken = cluster.flush(("plain", 1, cluster.records("plain", 1)), commit=False)[0]
    cluster.stop()
    cluster.corrupt(KEYS.full(broken))
    before = cluster.facts()
    damage_record(cluster, 0)
    _, findings = cluster.recover()
    image = cluster.loaded()
    lines = list(findings.lines())
    assert cluster.facts(image) == before
    assert any("not used" in line and stranger in line for line in lines)
    assert any("unusable" in line and broken in line for line in lines)
    assert not image.is_known(stranger)


def test_the_inputs_of_a_rewrite_are_used_if_its_last_object_is_missing(cluster):
    """Outputs of a compaction that was cut short cover only a part: their inputs hold all of it."""
    cluster.start()
    base = cluster.end("compacted")
    inputs = [cluster.flush(("compacted", 0, cluster.records("compacted")))[0] for _ in range(2)]
    each = [bytes(data) for _, data in iter_batches(cluster.bytes_of("compacted"))]
    half = [data for data in each if int.from_bytes(data[:8], "big") >= base][:5:2]
    output = cluster.flush(("compacted", 0, b"".join(half)), generation=1, commit=False)[0]
    cluster.stop()
    before = cluster.facts()
    damage_record(cluster, 0)
    _, findings = cluster.recover()
    assert cluster.facts(cluster.loaded()) == before
    lines = list(findings.lines())
    assert all(any("taken" in line and key in line for line in lines) for key in inputs)
    assert any("choice" in line and output in line for line in lines)


def test_the_log_start_stays(cluster):
    cluster.start()
    cluster.manifest.commit(change_of({"p": {topic_id("plain").hex(): {"0": {"s": 5}}}}))
    cluster.manifest.checkpoint()
    cluster.flush(("plain", 1, cluster.records("plain", 1)))
    cluster.manifest.commit(change_of({"p": {topic_id("plain").hex(): {"1": {"s": 7}}}}))
    cluster.stop()
    before = cluster.facts()
    assert before[topic_id("plain"), 0]["log start"] == 5
    damage_record(cluster, -2)
    cluster.recover()
    assert cluster.facts(cluster.loaded()) == before


def test_producers_and_aborted_transactions_are_there(cluster):
    facts = cluster.facts()[topic_id("plain"), 0]
    assert len(facts["aborted"]) == 2
    assert PRODUCER in facts["producers"]
    assert cluster.facts()[topic_id("plain"), 1]["open"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_recovered_manifest_is_in_the_forms_of_the_cluster(cluster, level):
    if level > LOWEST:
        cluster.finalize(level)
    damage_record(cluster, 4)
    checkpoint, _ = cluster.recover()
    payload = decode_frame(cluster.store.get(checkpoint), checkpoint).content["payload"]
    versions = {b64decode(entry[3])[4] for kind in "fbp" for entry in payload[kind]}
    assert versions == {LEVELS[level].part}


def test_a_cluster_of_a_newer_release_is_not_recovered(cluster):
    cluster.finalize(NEWEST + 1)
    damage_record(cluster, 4)
    before = {meta.key for meta in cluster.store.list("")}
    with pytest.raises(UnknownLevel, match=rf"kbroker\.version {NEWEST + 1}, this kbroker knows up to {NEWEST}"):
        cluster.recover()
    assert {meta.key for meta in cluster.store.list("")} == before


def test_recovered_twice(cluster):
    damage_record(cluster, 4)
    first, _ = cluster.recover()
    cluster.start()
    cluster.flush(("plain", 0, cluster.records("plain")))
    cluster.flush(("plain", 0, cluster.records("plain")))
    cluster.stop()
    before = cluster.facts()
    cluster.corrupt(first)
    second, _ = cluster.recover()
    assert second > first
    assert cluster.facts(cluster.loaded()) == before
    assert Manifest(NumberedLog(cluster.store, KEYS.manifest_dir, 0, bytes(16)), cluster.clock, root=KEYS.root).load()
