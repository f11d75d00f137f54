"""Records which client's tests of which feature passed, in the file that KBROKER_FEATURE_TABLE names.

The marks of a test name clients and features: `feature(client, feature, ...)` on its module, the test or a case. A run
replaces the file's results of the tests it ran with that client, and drops those of modules that no longer exist.
A skipped test has not passed. scripts/client_table.py prints the table.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

CLIENTS = (
    "Java", "Spark", "confluent-kafka", "kafka-python", "aiokafka", "kcat", "franz-go", "sarama", "kafkajs",
)  # fmt: skip
FEATURES = {
    "produce and consume": "every codec and `acks`, keys, headers, large messages",
    "restarts": "`kill -9`, clean stop, an empty disk",
    "idempotence": "one producer over `kill -9` of the broker",
    "groups": "members come and go, commits, restarts",
    "consumer protocol": "KIP-848",
    "share groups": "KIP-932, with `--share-groups`",
    "transactions": "commit, abort, offsets, `read_committed`",
    "admin": "topics, configs, groups, records",
}
# client -> feature -> test (module::function) -> whether all its runs passed
Results = dict[str, dict[str, dict[str, bool]]]
_passed: dict[str, bool] = {}  # node id -> whether all phases passed
_marked: dict[str, set[tuple[str, str]]] = {}  # node id -> (client, feature)


def features_of(item: pytest.Item) -> set[tuple[str, str]]:
    """(client, feature) of a test by all its marks. Raises UsageError on names not in the lists above."""
    names = [str(name) for mark in item.iter_markers("feature") for name in mark.args]
    clients = {name for name in names if name in CLIENTS}
    features = {name for name in names if name in FEATURES}
    if unknown := set(names) - clients - features:
        raise pytest.UsageError(f"{item.nodeid}: no such client or feature: {', '.join(sorted(unknown))}")
    return {(client, feature) for client in clients for feature in features}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if found := features_of(item):
            _marked[item.nodeid] = found


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.nodeid in _marked:
        _passed[report.nodeid] = _passed.get(report.nodeid, True) and report.passed


def pytest_sessionfinish() -> None:
    path = os.environ.get("KBROKER_FEATURE_TABLE")
    if not path or not _passed:
        return
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # each process of a run adds its own
        file.seek(0)
        before: Results = json.loads(file.read() or "{}")
        file.truncate(0)
        file.write(json.dumps(merged(before, dict(runs())), indent=1, sort_keys=True) + "\n")


def runs() -> Iterator[tuple[tuple[str, str, str], bool]]:
    """((client, feature, test), whether all its cases passed) of this run."""
    together: dict[tuple[str, str, str], bool] = {}
    for node_id, passed in _passed.items():
        test = node_id.rpartition("/")[2].partition("[")[0]
        for client, feature in _marked[node_id]:
            together[client, feature, test] = together.get((client, feature, test), True) and passed
    yield from together.items()


def merged(before: Results, ran: dict[tuple[str, str, str], bool]) -> Results:
    """The results of earlier runs, replaced by those of this run, without those of modules that no longer exist."""
    again = {(client, test) for client, _, test in ran}
    kept: dict[tuple[str, str, str], bool] = {
        (client, feature, test): passed
        for client, features in before.items()
        for feature, tests in features.items()
        for test, passed in tests.items()
        if (client, test) not in again and (Path(__file__).parent / test.partition("::")[0]).exists()
    }
    results: Results = {}
    for (client, feature, test), passed in (kept | ran).items():
        results.setdefault(client, {}).setdefault(feature, {})[test] = passed
    return results
