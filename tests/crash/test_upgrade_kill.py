"""The bucket and the data directory of the release before feature levels, raised level by level, with kill -9 at each
step: nothing is lost, nothing is there twice, and up to the first upgrade all is written in forms which that release
reads."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kbroker.admin.control import send_command
from kbroker.clock import SystemClock
from kbroker.cluster.features import FEATURE, LEVELS, LOWEST
from kbroker.cluster.read_only import find_cluster, load_manifest, load_topics
from kbroker.protocol.apis.cluster.k57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kbroker.storage.rewrite.swap_proposal import SWAPPED
from kbroker.storage.rewrite.swap_proposal_job import ProposingJob
from kbroker.storage.stores.object_store import ObjectStore
from kbroker.topic_config import parse_topic_config
from tests.crash.fault_proxy import Fault, FaultProxy, Strike
from tests.crash.level_1_bucket import (
    FILE,
    LEFT,
    QUIET,
    SECONDS,
    TOPICS,
    Row,
    committed,
    producer,
    rows,
    send,
    store_of,
)
from tests.crash.small_broker import connect, in_s3, small_broker
from tests.crash.test_feature_level_kill import level
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import S3Server
from tests.reference.level_1_forms import unknown_forms
from tests.unit.pipeline.slice_compaction import SliceCompaction
from tests.unit.storage.flush.flush_harness import ONCE

pytestmark = pytest.mark.s3
SENT_TO = ("plain", "segments")


class Upgrade:
    """A broker on the golden bucket, and clients that stay through all of its starts.

    `values` has what a consumer is to read of each topic; `inside` what the open transaction adds to it.
    """

    def __init__(self, broker: BrokerProcess, proxy: FaultProxy, expected: dict[str, list[Row]]) -> None:
        self.broker, self.proxy = broker, proxy
        self.values = {topic: [value for _, value in found] for topic, found in expected.items()}
        self.inside: dict[str, list[str]] = {topic: [] for topic in SENT_TO}
        self._serial = 0
        self.plain: Producer
        self.transactional: Producer

    def begin(self) -> None:
        """Producers, and a transaction that stays open."""
        bootstrap = self.broker.bootstrap
        self.plain = producer(bootstrap)
        settings = {"transactional.id": "through all of it", "transaction.timeout.ms": 600_000}
        self.transactional = producer(bootstrap, **settings)
        self.transactional.begin_transaction()

    def write(self) -> None:
        """A record in the transaction and one outside, acknowledged, to each of these topics."""
        self._serial += 1
        for topic in SENT_TO:
            send(self.transactional, topic, f"inside {self._serial}")
            send(self.plain, topic, f"outside {self._serial}")
            self.inside[topic] += [f"inside {self._serial}", f"outside {self._serial}"]
        send(self.plain, "compacted", f"c {self._serial}", key="c")

    def strike(self, strike: Strike, path_part: str) -> Fault:
        """The next PUT of such a key fails so, and all that follow are cut: the store stays as it is then."""
        fault = self.proxy.inject(Fault(strike, "PUT", path_part, times=1))
        self.proxy.inject(Fault(Strike.CUT, "PUT", path_part))
        return fault

    def kill_at(self, fault: Fault) -> None:
        """Kills the broker once the fault has struck and the store has done what it will, and starts it again."""
        assert self.proxy.wait_for(lambda: fault.struck)
        if fault.strike is Strike.LOSE_ANSWER:
            seen = self.proxy.seen
            assert self.proxy.wait_for(lambda: any(each.strike is fault.strike and each.status for each in seen))
        self.broker.kill()
        self.proxy.heal()
        self.proxy.seen.clear()
        self.broker.start()

    def check(self, *, is_ended: bool = False) -> None:
        """A consumer reads what was committed before, and nothing of the open transaction or behind it."""
        for topic in SENT_TO:
            found = [value for _, value in rows(self.broker.bootstrap, topic)]
            assert found == self.values[topic] + (self.inside[topic] if is_ended else [])
        newest = {value[0]: value for _, value in rows(self.broker.bootstrap, "compacted")}
        assert newest == {value[0]: value for value in self.values["compacted"]} | {"c": f"c {self._serial}"}
        assert committed(self.broker.bootstrap) == 11

    def raise_level(self, to: int) -> None:
        """Kills the broker before and after the record of the level, and before or after a record of the manifest and a
        checkpoint: the other way round at the next level."""
        request = UpdateFeaturesRequest(
            feature_updates=[FeatureUpdateKey(feature=FEATURE, max_version_level=to, upgrade_type=1)]
        )
        for strike, expected in ((Strike.CUT, to - 1), (Strike.LOSE_ANSWER, to)):
            fault = self.strike(strike, "_metadata/")
            with connect(self.broker) as client:
                client.send(request)
                self.kill_at(fault)
            assert level(self.broker) == expected
            self.write()
            self.check()
        strikes = (Strike.CUT, Strike.LOSE_ANSWER) if to % 2 else (Strike.LOSE_ANSWER, Strike.CUT)
        fault = self.strike(strikes[0], "_manifest/0")
        self.write()  # which the flusher takes soon
        self.kill_at(fault)
        fault = self.strike(strikes[1], "_manifest/checkpoint")
        while not fault.struck:
            self.write()
            self.broker.flush()
        self.kill_at(fault)
        self.check()


def leave_compaction_to_the_job(broker: BrokerProcess) -> None:
    """The broker compacts a topic with such a config only if no part of it is clean."""
    client = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, "compacted")
    resource.add_incremental_config(
        ConfigEntry("min.cleanable.dirty.ratio", "1", incremental_operation=AlterConfigOpType.SET)
    )
    for future in client.incremental_alter_configs([resource]).values():
        future.result(SECONDS)


def proposed(store: ObjectStore) -> ProposingJob:
    """A job of the release before has compacted "compacted": its proposal is stored, and no broker has answered it."""
    keys = find_cluster(store, "", None)
    topic = load_topics(store, keys).by_name["compacted"]
    config = parse_topic_config(TOPICS["compacted"])
    run = SliceCompaction(store, keys, load_manifest(store, keys), SystemClock(), topic, config)
    run.job.propose(run.swaps(1 << 30), ONCE, version=1)
    return run.job


@pytest.fixture
def upgrade(tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str) -> Iterator[Upgrade]:
    """The broker is not started yet."""
    store = store_of(s3, prefix)
    with zipfile.ZipFile(FILE) as archive:
        expected = json.loads(archive.read("expected.json"))
        for name in archive.namelist():
            if name.startswith("bucket/"):
                store.put(name.removeprefix("bucket/"), archive.read(name))
            elif name.startswith("data/"):
                archive.extract(name, tmp_path)
    place = in_s3(s3, prefix, endpoint=proxy.endpoint)
    broker = small_broker(tmp_path / "data", place)
    yield Upgrade(broker, proxy, expected)
    broker.kill()
    store.close()


def test_a_bucket_of_the_release_before_is_upgraded_step_by_step(upgrade: Upgrade, s3: S3Server, prefix: str) -> None:
    assert {topic: rows_ for topic, rows_ in upgrade.values.items() if rows_}.keys() == TOPICS.keys()
    broker = upgrade.broker.start()
    assert level(broker) == LOWEST
    leave_compaction_to_the_job(broker)
    upgrade.begin()
    upgrade.write()
    broker.flush()
    upgrade.check()
    assert broker.stop() == 0
    store = store_of(s3, prefix)
    assert unknown_forms(store) == []
    job = proposed(store)
    broker.start()
    for to in list(LEVELS)[1:]:
        upgrade.raise_level(to)
    send_command(broker.data_dir, "proposals", SECONDS)
    answer = job.answer()
    assert answer is not None
    assert [outcome.status for outcome in answer.outcomes] == [SWAPPED], answer
    upgrade.transactional.commit_transaction(SECONDS)
    producer(broker.bootstrap, **{"transactional.id": LEFT})  # which ends the open one of the release before
    upgrade.check(is_ended=True)
    broker.flush()
    upgrade.check(is_ended=True)
    assert broker.stop() == 0
