"""A WAL that a release before leadership records wrote: version 1 of its formats, manifest records without leadership.

The folder in wal_version_1.zip has starts under epochs 1, 3 and 4, a flush, sealed segments, and a torn last batch.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from kbroker.storage.stores.local_store import LocalStore
from tests.unit.log.test_log_recovery import PARTITIONS, TOPICS
from tests.unit.storage.flush.flush_harness import Storage

# (flushed end, log end, last stable offset), hash of what the WAL holds, unflushed bytes, leader epochs, producers
PARTITION_STATES = {
    ("t", 0): ((8, 35, 35), "f3b9a7d7ac73ac51", 425542, ((1, 0), (3, 22), (5, 35)), 1),
    ("t", 1): ((3, 32, 32), "3fb3fea77cd31046", 725544, ((1, 0), (3, 22), (5, 32)), 1),
    ("t", 2): ((2, 26, 26), "d23628890a178663", 605315, ((1, 0), (3, 18), (5, 26)), 0),
    ("u", 0): ((8, 33, 33), "439098a6f38f39e1", 666177, ((1, 0), (3, 20), (4, 32), (5, 33)), 1),
}


def test_wal_of_version_1_is_recovered_as_by_the_release_that_wrote_it(tmp_path):
    with zipfile.ZipFile(Path(__file__).with_name("wal_version_1.zip")) as folder:
        folder.extractall(tmp_path)
    storage = Storage(tmp_path / "wal", LocalStore(tmp_path / "bucket"), epoch=5, topics=TOPICS).start()
    try:
        report = storage.recovered.wal
        assert (report.batches, report.segments, report.indexes_rebuilt, report.torn_at_lsn) == (103, 4, 1, 6291600)
        assert (report.end_lsn, report.start_lsn, report.unknown_batches) == (6291600, 8388608, {})
        assert {where: state_of(storage, *where) for where in PARTITIONS} == PARTITION_STATES
    finally:
        storage.close()


def state_of(storage, topic, partition):
    hot = storage.table.partition(topic, partition)
    content = hashlib.sha256(storage.in_wal(topic, partition)).hexdigest()[:16]
    offsets = hot.log.flushed_end, hot.next_offset, hot.last_stable_offset()
    return offsets, content, hot.unflushed_bytes, hot.log.epochs.entries, len(hot.producers.snapshot())
