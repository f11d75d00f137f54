"""Direct reads and jobs on a cluster of level 1 of kbroker.version, and after its upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import SMALL, Store, folder_store
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT as CONFLUENT
from test_feature_level import manifest_versions
from test_spark_direct import direct
from test_spark_jobs import COMPACT, fill, newest, run_here
from test_spark_pushdown import reads
from topic_commands import TopicCommands
from workload import Message

from kbroker.storage.rewrite import swap_proposal_job
from kbroker.storage.rewrite.swap_proposal import encode_proposal

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

FIRST_MS = 1_700_000_000_000
OBJECTS = 4


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return folder_store(tmp_path_factory)


@pytest.fixture
def broker(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of a new cluster of level 1."""
    data_dir = tmp_path_factory.mktemp("broker") / "data"
    process = BrokerProcess(data_dir, *SMALL, *store.options, "--feature-level", "1", environ=store.environ)
    yield process.start()
    process.kill()


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Versions of the proposals that were made."""
    found: list[int] = []

    def encoded(proposal: Any, version: int) -> bytes:
        found.append(version)
        return encode_proposal(proposal, version)

    monkeypatch.setattr(swap_proposal_job, "encode_proposal", encoded)
    return found


def compacted(spark: Any, store: Store, broker: BrokerProcess, seed: int) -> None:
    """A topic compacted by a job, whose readers see what they saw before."""
    topic = new_topic(broker, CONFLUENT, "compacted", 2, **COMPACT)
    fill(broker, topic, seed)
    before = newest(broker, topic)
    done = run_here(spark, store, "compact", "--topic", topic, "--data-dir", str(broker.data_dir))
    assert done.code == 0, done.errors
    assert done.summary["partitions"] == 2
    assert newest(broker, topic) == before


def flushes(broker: BrokerProcess, topic: str, first: int) -> None:
    """Objects of ten records, of a second each."""
    for second in range(first, first + OBJECTS):
        at = FIRST_MS + second * 1000
        sent = {0: [Message(b"k", b"v%d" % (10 * second + n), (), at + n * 100) for n in range(10)]}
        scenarios.send(broker, CONFLUENT, topic, sent, "none", IDEMPOTENT)
        broker.flush()


def test_jobs_and_reads_at_all_levels(spark: Any, broker: BrokerProcess, store: Store, versions: list[int]) -> None:
    topic = new_topic(broker, CONFLUENT, "timed", 1)
    flushes(broker, topic, 0)
    compacted(spark, store, broker, 1)
    assert versions == [1]
    assert manifest_versions(broker) == {1}
    early = direct(spark, store, topic).where(f"timestamp < timestamp_millis({FIRST_MS + 1500})")
    assert early.count() == 15
    assert reads(early)[0] == OBJECTS, "without times each object may have such a record"

    for n, level in enumerate((2, 3), 1):
        TopicCommands(broker.bootstrap).run("cluster", "upgrade", "--level", str(level))
        flushes(broker, topic, n * OBJECTS)
        compacted(spark, store, broker, level)
        assert versions == [1, 2, 2][: n + 1]
        assert level in manifest_versions(broker)
    table = direct(spark, store, topic)
    assert [bytes(row.value) for row in table.orderBy("offset").collect()] == [b"v%d" % n for n in range(120)]
    early = table.where(f"timestamp < timestamp_millis({FIRST_MS + 1500})")
    assert early.count() == 15
    assert reads(early)[0] == OBJECTS, "the new objects are known to begin later"
