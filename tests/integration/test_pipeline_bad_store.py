"""The pipeline's reads, without Spark, from an S3 store that throttles, or stops answering in the middle."""

from __future__ import annotations

from collections import Counter

import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import Store
from s3_proxy import HANGS, SLOW_DOWN, refusing_proxy
from s3_server import S3Server
from scenarios import IDEMPOTENT, new_topic
from test_client_confluent import CLIENT as CONFLUENT
from test_spark_direct import place
from workload import generated, spread

from kbroker.pipeline import bucket_view
from kbroker.pipeline.plan.batch_plan import plan_batch
from kbroker.pipeline.split_reader import read_split
from kbroker.storage.stores.object_store import StoreUnavailable

pytestmark = [pytest.mark.s3, pytest.mark.timeout(120), pytest.mark.parametrize("store", ["s3"], indirect=True)]
ROWS = 100


@pytest.fixture
def options(broker: BrokerProcess, store: Store, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of a topic in several objects."""
    for name, value in store.environ.items():
        monkeypatch.setenv(name, value)
    topic = new_topic(broker, CONFLUENT, "bad-store", 2)
    for seed in range(2):
        scenarios.send(broker, CONFLUENT, topic, spread(generated(ROWS // 2, seed=seed), 2), "zstd", IDEMPOTENT)
        broker.flush()
    return {**place(store), "subscribe": topic}


def count(options: dict[str, str]) -> int:
    return sum(batch.num_rows for split in plan_batch(options, 2, {}) for batch in read_split(options, split))


def test_a_store_that_throttles_slows_a_query_down_and_loses_nothing(options: dict[str, str], s3: S3Server) -> None:
    refused: Counter[str] = Counter()

    def is_refused(path: str) -> bool:
        refused[path] += 1
        return refused[path] % 3 != 0

    with refusing_proxy(s3.endpoint, is_refused, SLOW_DOWN) as endpoint:
        assert count({**options, "s3.endpoint": endpoint}) == ROWS
    assert any(".pack" in path for path in refused)


@pytest.mark.parametrize("answer", [SLOW_DOWN, HANGS])
@pytest.mark.parametrize("part", ["list-type", ".pack"])
def test_a_store_that_does_not_recover_is_an_error_that_names_it(
    options: dict[str, str], s3: S3Server, monkeypatch: pytest.MonkeyPatch, answer: object, part: str
) -> None:
    monkeypatch.setattr(bucket_view, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(bucket_view, "READ_SECONDS", 0.2)
    monkeypatch.setattr(bucket_view, "CONTACT_READ_SECONDS", 0.2)
    with (
        refusing_proxy(s3.endpoint, lambda path: part in path, answer) as endpoint,
        pytest.raises(StoreUnavailable, match=r"s3://kbroker-test/"),
    ):
        count({**options, "s3.endpoint": endpoint})
