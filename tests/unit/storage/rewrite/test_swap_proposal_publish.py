"""A proposal is answered by a running broker, or by the job itself as a short-term owner of the cluster."""

import pytest

from kbroker.clock import ManualClock
from kbroker.cluster.features import LEVELS, NEWEST
from kbroker.cluster.image import MetadataImage, TopicImage
from kbroker.pipeline.jobs.compact_publish import JOB_HOST, STALE_JOB_SECONDS, Publisher
from kbroker.pipeline.jobs.session import JobError
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.ledger.ownership import claim, newest_claim
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.manifest.record_columns import version_of
from kbroker.storage.rewrite.swap_proposal import REFUSED, SWAPPED
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.pipeline.slice_compaction import COMPACTED, Side
from tests.unit.storage.flush.flush_harness import KEYS, ONCE, topic_id

TOPIC = TopicImage("t", topic_id("t"), 1, {key.replace("_", "."): str(value) for key, value in COMPACTED.items()})


class Cluster:
    """A broker's storage whose broker holds the claim of epoch 1, and a publisher of jobs."""

    def __init__(self, directory):
        self.side = Side(directory, 0, FaultyStore(MemoryStore(ManualClock())))
        self.store = self.side.s.store
        self.claim = claim(self.store, KEYS.root, "dir-1", False, 1, retries=ONCE)
        self.side.write((b"a", b"0"), (b"b", b"1"))
        self.side.write((b"a", b"2"))
        self.said = []
        self.waits = []
        self.on_wait = lambda: None
        self.level = NEWEST

    def wait(self, seconds):
        self.waits.append(seconds)
        self.side.s.clock.advance(seconds)
        self.on_wait()

    def publish(self, proposed=None):
        self.job, self.proposal = proposed or self.side.proposed()
        topics = MetadataImage(by_id={TOPIC.topic_id: TOPIC}, level=self.level)
        publisher = Publisher(
            self.store, KEYS, self.side.s.clock, lambda: topics, self.wait, self.said.append, wait_seconds=100.0
        )
        return publisher.publish(self.job, self.proposal)

    def stop_broker(self):
        self.claim.release(2, ONCE)

    def contents(self):
        """As the next broker finds them."""
        log = NumberedLog(self.store, KEYS.manifest_dir, 0, bytes(16), retries=ONCE)
        self.side.s.manifest.copy.state.image = Manifest(log, self.side.s.clock, root=KEYS.root).load()
        return self.side.contents()


@pytest.fixture
def cluster(tmp_path):
    found = Cluster(tmp_path / "side")
    yield found
    found.side.s.close()


def test_a_running_broker_answers(cluster):
    cluster.on_wait = cluster.side.inbox.look
    result = cluster.publish()
    assert [outcome.status for outcome in result.outcomes] == [SWAPPED]
    assert len(cluster.waits) == 1
    assert newest_claim(cluster.store, KEYS.root).epoch == 1


def test_without_a_running_broker_the_job_swaps_by_itself(cluster):
    cluster.stop_broker()
    result = cluster.publish()
    assert [outcome.status for outcome in result.outcomes] == [SWAPPED]
    assert result.broker_epoch == 2
    assert cluster.contents() == {1: b"1", 2: b"2"}
    holder = newest_claim(cluster.store, KEYS.root)
    assert (holder.epoch, holder.released, holder.data_dir_id) == (2, True, "dir-1")
    assert holder.host.startswith(JOB_HOST)
    # Any broker may start now.
    assert claim(cluster.store, KEYS.root, "dir-2", False, 3, retries=ONCE).epoch == 3


@pytest.mark.parametrize("level", LEVELS)
def test_a_job_that_owns_the_cluster_writes_in_the_forms_of_its_level(cluster, level):
    cluster.level = level
    cluster.stop_broker()
    assert [outcome.status for outcome in cluster.publish().outcomes] == [SWAPPED]
    log = NumberedLog(cluster.store, KEYS.manifest_dir, 0, bytes(16), retries=ONCE)
    versions = []
    log.load(lambda number, payload: None, lambda number, kind, payload: versions.append(version_of(payload)))
    assert versions[-1] == LEVELS[level].record


def test_a_job_without_an_answer_ends_with_an_error(cluster):
    with pytest.raises(JobError, match=r"no answer .* epoch 1 .* judges the proposal within a day"):
        cluster.publish()
    assert sum(cluster.waits) == 100
    assert len(cluster.contents()) == 3
    assert cluster.side.inbox.look() == 1  # the broker comes back
    assert cluster.contents() == {1: b"1", 2: b"2"}


def test_a_broker_that_stops_while_the_job_waits(cluster):
    cluster.on_wait = lambda: cluster.stop_broker() if len(cluster.waits) == 3 else None
    assert cluster.publish().outcomes[0].status == SWAPPED
    assert cluster.contents() == {1: b"1", 2: b"2"}


def test_a_job_does_not_take_the_claim_of_a_broker_that_starts_at_the_same_moment(cluster):
    """The job takes exactly the epoch after the one it saw released, or none."""
    cluster.stop_broker()
    started = []

    def start(operation, key):
        if operation == "put" and "_claims/" in key and not started:
            started.append(None)
            started[0] = claim(cluster.store, KEYS.root, "dir-1", False, 3, retries=ONCE)
        return choose(operation, key)

    choose, cluster.store.choose = cluster.store.choose, start
    cluster.on_wait = cluster.side.inbox.look  # of the broker that has started
    assert cluster.publish().outcomes[0].status == SWAPPED
    started[0].check()  # it still owns the cluster
    assert newest_claim(cluster.store, KEYS.root).epoch == 2


def test_a_broker_that_starts_while_the_job_owns_the_cluster_fences_the_job(cluster):
    cluster.stop_broker()
    started = []

    def start(operation, key):
        if operation == "put" and "_manifest/" in key and not started:
            started.append(claim(cluster.store, KEYS.root, "dir-1", False, 3, retries=ONCE))
            log = NumberedLog(cluster.store, KEYS.manifest_dir, 3, bytes(range(16)), retries=ONCE)
            Manifest(log, cluster.side.s.clock, root=KEYS.root).load()
            log.seal_previous()
        return choose(operation, key)

    proposed = cluster.side.proposed()
    choose, cluster.store.choose = cluster.store.choose, start
    with pytest.raises(JobError, match="no answer"):
        cluster.publish(proposed)
    assert any("a broker has started" in line for line in cluster.said)
    assert len(cluster.contents()) == 3
    assert newest_claim(cluster.store, KEYS.root).epoch == 3
    assert not newest_claim(cluster.store, KEYS.root).released


def test_a_topic_that_is_not_compacted_is_refused_by_the_owner_too(cluster):
    cluster.stop_broker()
    proposed = cluster.side.proposed()
    TOPIC.configs["cleanup.policy"] = "delete"
    try:
        assert cluster.publish(proposed).outcomes[0].status == REFUSED
    finally:
        TOPIC.configs["cleanup.policy"] = "compact"


def test_a_job_that_is_killed_as_the_owner(tmp_path):
    """The next one continues; so does a broker on the last data directory."""
    for point in range(100):
        cluster = Cluster(tmp_path / str(point))
        cluster.stop_broker()
        proposed = cluster.side.proposed()
        fault = cluster.store.inject(Fault("put", When.AFTER, skip=point, error=KeyboardInterrupt))
        killed = False
        try:
            cluster.publish(proposed)
        except KeyboardInterrupt:
            killed = True
        fault.times = 0
        assert cluster.contents() in ({0: b"0", 1: b"1", 2: b"2"}, {1: b"1", 2: b"2"})
        waited = len(cluster.waits)
        assert cluster.publish(proposed).outcomes[0].status == SWAPPED
        assert sum(cluster.waits[waited:]) <= STALE_JOB_SECONDS + 2
        assert cluster.contents() == {1: b"1", 2: b"2"}
        assert claim(cluster.store, KEYS.root, "dir-1", False, 3, retries=ONCE)
        cluster.side.s.close()
        if not killed:
            assert point >= 4  # claim, seal, reservation, record, answer, release
            return
    raise AssertionError("the publication has no end")
