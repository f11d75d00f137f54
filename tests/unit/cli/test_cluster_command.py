"""``cluster status``: partitions without a leader or with too few replicas in sync; ``features``, ``upgrade``."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from kbroker.cli.main import cli
from tests.unit.cli.topic_cluster import Log, TopicCluster, topic_cluster


@pytest.fixture
def cluster() -> Iterator[TopicCluster]:
    with topic_cluster() as made:
        made.topics = {
            "t": [Log(), Log(leader=-1, isr=()), Log(replicas=(1, 2), isr=(1,))],
            "__consumer_offsets": [Log()],
        }
        yield made


def run(cluster: TopicCluster, *arguments: str) -> str:
    result = CliRunner().invoke(cli, ["cluster", *arguments, "-b", cluster.broker.bootstrap])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_status_as_json_is_one_document(cluster: TopicCluster) -> None:
    assert json.loads(run(cluster, "status", "--json")) == {
        "cluster_id": "a-cluster",
        "controller_id": 1,
        "brokers": [{"broker_id": 1, "host": "127.0.0.1", "port": cluster.broker.port, "rack": "a", "leads": 3}],
        "features": {},
        "topics": 2,
        "internal_topics": 1,
        "partitions": 4,
        "offline_partitions": [{"topic": "t", "partition": 1}],
        "under_replicated_partitions": [{"topic": "t", "partition": 2}],
    }


@pytest.mark.parametrize("name", ["status", "describe"])
def test_status_names_partitions_that_are_offline(cluster: TopicCluster, name: str) -> None:
    lines = run(cluster, name).splitlines()
    assert "offline           1: t-1" in lines
    assert "under-replicated  1: t-2" in lines
    assert lines[-1].split() == ["1", f"127.0.0.1:{cluster.broker.port}", "a", "3"]


def test_status_names_the_first_of_many_partitions(cluster: TopicCluster) -> None:
    cluster.topics["t"] = [Log(leader=-1) for _ in range(25)]
    (line,) = [line for line in run(cluster, "status").splitlines() if line.startswith("offline")]
    assert line.startswith("offline           25: t-0, t-1,")
    assert line.endswith("t-19, ...")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("features",), 0, "kbroker: the broker lists no features"),
        (("upgrade",), 1, "kbroker: the broker does not have the feature kbroker.version"),
        (("upgrade", "--level", "0"), 2, "Error: Invalid value for '--level': 0 is not in the range 1<=x<=32767."),
        (("upgrade", "--level", "two"), 2, "Error: Invalid value for '--level': 'two' is not a valid integer"),
    ],
)
def test_features_of_a_broker_without_any(
    cluster: TopicCluster, arguments: tuple[str, ...], code: int, said: str
) -> None:
    """As a release before kbroker.version, or an Apache Kafka, for the upgrade."""
    result = CliRunner().invoke(cli, ["cluster", *arguments, "-b", cluster.broker.bootstrap])
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.splitlines()[-1].startswith(said)
