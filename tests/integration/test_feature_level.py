"""kbroker.version of a cluster of level 1, seen and raised by Kafka's tools and by clients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import java_tools
import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import SMALL, folder_store, require
from java_program import JavaProgram
from java_tools import CLIENT_VERSIONS
from kafka import KafkaAdminClient
from kafka.admin import UpdateFeatureType
from kafka.errors import KafkaError
from scenarios import IDEMPOTENT, add, assert_all_read, new_topic
from served_apis import api_versions
from test_client_confluent import CLIENT
from tool_shell import SHELL
from topic_commands import TopicCommands
from workload import generated, spread

from kbroker.cluster.features import DEFAULT, FEATURE, LEVELS, NEWEST
from kbroker.cluster.read_only import find_cluster
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.record_columns import version_of
from kbroker.storage.stores.store_url import open_store

MESSAGES = 60


@pytest.fixture
def broker(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of a new cluster of level 1."""
    process = BrokerProcess(tmp_path / "data", *folder_store(tmp_path_factory).options, *SMALL, "--feature-level", "1")
    yield process.start()
    process.kill()


def level(broker: BrokerProcess) -> int:
    (found,) = [each for each in api_versions(broker).finalized_features if each.name == FEATURE]
    return int(found.max_version_level)


def manifest_versions(broker: BrokerProcess) -> set[int]:
    """Versions of the records of the manifest that the bucket has."""
    store = open_store(broker.options[broker.options.index("--object-store") + 1], None, None, create=False)
    found: set[int] = set()
    log = NumberedLog(store, find_cluster(store, "", None).manifest_dir, 0, bytes(16))
    log.load(lambda number, payload: None, lambda number, kind, payload: found.add(version_of(payload)))
    return found


@pytest.mark.parametrize("wanted_level", [DEFAULT, NEWEST])
def test_what_level_1_has_written_is_read_after_an_upgrade(broker: BrokerProcess, wanted_level: int) -> None:
    options = () if wanted_level == DEFAULT else ("--level", str(wanted_level))
    commands = TopicCommands(broker.bootstrap)
    topic = new_topic(broker, CLIENT, "before", 2)
    sent = spread(generated(MESSAGES, seed=1), 2)
    scenarios.send(broker, CLIENT, topic, sent, "zstd", IDEMPOTENT)
    broker.flush()
    assert manifest_versions(broker) == {LEVELS[1].record}
    rows = {row["feature"]: row for row in commands.rows("cluster", "features")}
    assert rows[FEATURE] == {"feature": FEATURE, "level": 1, "lowest": 1, "highest": NEWEST}
    wanted = {"feature": FEATURE, "previous_level": 1, "level": wanted_level}
    assert commands.rows("cluster", "upgrade", *options, "--dry-run") == [{**wanted, "dry_run": True}]
    assert level(broker) == 1
    assert commands.rows("cluster", "upgrade", *options) == [{**wanted, "dry_run": False}]
    assert level(broker) == wanted_level
    assert commands.run("cluster", "upgrade").output == [f"{FEATURE} is at {wanted_level} already"]
    (failure,) = commands.run("cluster", "upgrade", "--level", "1", code=1).errors
    assert "without setting the upgrade type to a downgrade" in failure
    (failure,) = commands.run("cluster", "upgrade", "--level", str(NEWEST + 1), code=1).errors
    assert f"only supports versions 1-{NEWEST}" in failure
    later = spread(generated(MESSAGES, seed=2), 2)
    scenarios.send(broker, CLIENT, topic, later, "zstd", IDEMPOTENT)
    broker.flush()
    assert LEVELS[wanted_level].record in manifest_versions(broker)
    assert broker.stop() == 0
    scenarios.lose_disk(broker)
    broker.start()
    assert level(broker) == wanted_level
    add(sent, later)
    assert_all_read(broker, CLIENT, topic, sent)


@pytest.mark.feature("kafka-python", "admin")
def test_kafka_python_raises_the_level(broker: BrokerProcess) -> None:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    found = client.describe_features()[FEATURE]
    assert (found["supported"], found["finalized"]) == ((1, NEWEST), (1, 1))
    assert client.update_features({FEATURE: NEWEST}, validate_only=True) == {FEATURE: "OK"}
    assert client.describe_features()[FEATURE]["finalized"] == (1, 1)
    assert client.update_features({FEATURE: (UpdateFeatureType.UPGRADE, NEWEST)}) == {FEATURE: "OK"}
    after = client.describe_features()[FEATURE]
    assert after["finalized"] == (NEWEST, NEWEST)
    assert after["finalized_epoch"] > found["finalized_epoch"]
    with pytest.raises(KafkaError, match="which version 1 cannot read"):
        client.update_features({FEATURE: (UpdateFeatureType.SAFE_DOWNGRADE, 1)})
    client.close()


@pytest.mark.java
def test_the_feature_command_raises_the_level(broker: BrokerProcess) -> None:
    require(not java_tools.missing(), java_tools.missing())
    bootstrap = ("--bootstrap-server", broker.bootstrap)

    def described() -> list[str]:
        """Supported levels, finalized level."""
        lines = [line.split() for line in SHELL.run("FeatureCommand", *bootstrap, "describe").lines()]
        (fields,) = [fields for fields in lines if fields[:2] == ["Feature:", FEATURE]]
        return fields[3:8:2]

    assert described() == ["1", str(NEWEST), "1"]
    upgrade = (*bootstrap, "upgrade", "--feature", f"{FEATURE}={NEWEST}")
    SHELL.run("FeatureCommand", *upgrade, "--dry-run")
    assert level(broker) == 1
    assert f"{FEATURE} was upgraded to {NEWEST}." in SHELL.run("FeatureCommand", *upgrade).output
    assert described() == ["1", str(NEWEST), str(NEWEST)]
    downgrade = (*bootstrap, "downgrade", "--feature", f"{FEATURE}=1")
    assert "which version 1 cannot read" in SHELL.fails("FeatureCommand", *downgrade)
    assert "Unsafe downgrade is not supported" in SHELL.fails("FeatureCommand", *downgrade, "--unsafe")
    assert "only supports versions" in SHELL.fails("FeatureCommand", *bootstrap, "disable", "--feature", FEATURE)
    assert level(broker) == NEWEST


@pytest.mark.java
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_java_raises_the_level(broker: BrokerProcess, tmp_path: Path, version: str) -> None:
    require(not java_tools.missing(), java_tools.missing())
    class_path = java_tools.compiled_clients(version)
    with JavaProgram(class_path, "FeatureCalls", broker.bootstrap, FEATURE, log_path=tmp_path / "java.log") as program:
        counts = iter(range(1, 10))

        def update(to: int, kind: str, dry_run: bool = False) -> tuple[str, int, int]:
            program.tell(str(to), kind, str(dry_run).lower())
            answer, found, epoch = program.wait_event("updated", count=next(counts)).fields
            return answer, int(found), int(epoch)

        answer, found, epoch = update(NEWEST, "UPGRADE", dry_run=True)
        assert (answer, found) == ("done", 1)
        answer, found, later = update(NEWEST, "UPGRADE")
        assert (answer, found) == ("done", NEWEST)
        assert later > epoch
        for kind, reason in (("SAFE_DOWNGRADE", "cannot read"), ("UNSAFE_DOWNGRADE", "is not supported")):
            answer, found, _ = update(1, kind)
            assert answer.startswith("InvalidUpdateVersionException: ")
            assert reason in answer
            assert found == NEWEST
        program.finish()


def test_a_cluster_of_a_higher_level_refuses_the_start_by_both_numbers(broker: BrokerProcess) -> None:
    """As a release that knows one level less would."""
    TopicCommands(broker.bootstrap).run("cluster", "upgrade", "--level", str(NEWEST))
    assert broker.stop() == 0
    older = (
        "import kbroker.cluster.features as features; features.LEVELS.pop(features.NEWEST); features.NEWEST -= 1; "
        "from kbroker.cli.main import cli; cli()"
    )
    arguments = broker.command()[broker.command().index("serve") :]
    done = subprocess.run(
        [sys.executable, "-c", older, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert f"the cluster is at {FEATURE} {NEWEST}, this kbroker knows up to {NEWEST - 1}: start a newer kbroker" in line
