"""kill -9 around an upgrade of kbroker.version: the cluster has one level or the other, and what was answered stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker._fast.records.records import build_batch, iter_records
from kbroker.cluster.features import FEATURE, NEWEST
from kbroker.protocol.apis.cluster.k18_api_versions import ApiVersionsRequest
from kbroker.protocol.apis.cluster.k57_update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.crash.fault_proxy import Fault, FaultProxy, Strike
from tests.crash.raw_client import batches_of
from tests.crash.small_broker import connect, in_s3, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.s3_server import S3Server

pytestmark = pytest.mark.s3
UPGRADE = UpdateFeaturesRequest(
    feature_updates=[FeatureUpdateKey(feature=FEATURE, max_version_level=NEWEST, upgrade_type=1)]
)
METADATA = "_metadata/"


@pytest.fixture
def broker(tmp_path: Path, s3: S3Server, proxy: FaultProxy, prefix: str) -> Iterator[BrokerProcess]:
    """A broker of a cluster of level 1 with two records, on a store behind the proxy."""
    place = in_s3(s3, prefix, endpoint=proxy.endpoint)
    process = small_broker(tmp_path / "data", place, "--feature-level", "1").start()
    with connect(process) as client:
        client.create_topic("t", 1)
    append(process, 0)
    append(process, 1)
    yield process
    process.kill()


def append(broker: BrokerProcess, offset: int) -> None:
    with connect(broker) as client:
        answer = client.produce("t", 0, build_batch([(b"key", b"%d" % offset, 0, None)]))
        assert (answer.error_code, answer.base_offset) == (0, offset)


def level(broker: BrokerProcess) -> int:
    """The level that the broker tells clients."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    with connect(broker) as client:
        (found,) = [each for each in client.call(request).finalized_features if each.name == FEATURE]
    return int(found.max_version_level)


def check(broker: BrokerProcess, expected: int) -> None:
    """The broker starts at this level, has all records, and takes more."""
    broker.start()
    assert level(broker) == expected
    append(broker, 2)
    values: list[bytes | None] = []
    with connect(broker) as client:
        while len(values) < 3:
            found = [batch for _, batch in batches_of(client.fetch("t", 0, len(values), max_wait_ms=10_000))]
            assert found, values
            values += [record.value for batch in found for record in iter_records(batch)]
    assert values == [b"0", b"1", b"2"]
    assert broker.stop() == 0
    broker.start()
    assert level(broker) == expected


def test_a_kill_before_the_store_has_the_record_leaves_the_old_level(broker: BrokerProcess, proxy: FaultProxy) -> None:
    fault = proxy.inject(Fault(Strike.CUT, "PUT", METADATA))
    with connect(broker) as client:
        client.send(UPGRADE)
        assert proxy.wait_for(lambda: fault.struck)
        assert level(broker) == 1
        broker.kill()
    proxy.heal()
    check(broker, 1)


def test_a_kill_after_the_store_has_the_record_leaves_the_new_level(broker: BrokerProcess, proxy: FaultProxy) -> None:
    proxy.inject(Fault(Strike.LOSE_ANSWER, "PUT", METADATA, times=1))
    proxy.inject(Fault(Strike.CUT, path_part=METADATA))
    with connect(broker) as client:
        client.send(UPGRADE)
        assert proxy.wait_for(lambda: any(each.strike is Strike.LOSE_ANSWER and each.status for each in proxy.seen))
        assert level(broker) == 1, "as long as the broker does not know"
        broker.kill()
    proxy.heal()
    check(broker, NEWEST)


def test_a_record_that_reaches_the_store_after_the_next_start_is_not_taken(
    broker: BrokerProcess, proxy: FaultProxy, s3: S3Server
) -> None:
    fault = proxy.inject(Fault(Strike.DELAY, "PUT", METADATA, times=1, seconds=600))
    with connect(broker) as client:
        client.send(UPGRADE)
        assert proxy.wait_for(lambda: fault.struck)
        broker.kill()
    broker.options[broker.options.index("--s3-endpoint") + 1] = s3.endpoint
    broker.start()
    proxy.heal()
    assert proxy.wait_for(lambda: any(each.strike is Strike.DELAY for each in proxy.seen))
    assert [each.status for each in proxy.seen if each.strike is Strike.DELAY] == [412]
    assert level(broker) == 1
    assert broker.stop() == 0
    check(broker, 1)


def test_a_kill_after_the_answer_leaves_the_new_level(broker: BrokerProcess) -> None:
    with connect(broker) as client:
        assert client.call(UPGRADE).error_code == 0
        broker.kill()
    check(broker, NEWEST)
