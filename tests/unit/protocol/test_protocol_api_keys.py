"""The advertised ranges."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kbroker.protocol.api_keys import (
    SERVED,
    SERVED_WITH_SHARE_GROUPS,
    ApiKey,
    api_versions_for_response,
    is_served,
    request_class,
    response_class,
    served,
)

# What clients of the ecosystem need at least: librdkafka, aiokafka and kafka-go ask for exactly these old versions.
OLD_CLIENTS = {
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.SYNC_GROUP: 0,
    ApiKey.LEAVE_GROUP: 0,
    ApiKey.HEARTBEAT: 0,
    ApiKey.JOIN_GROUP: 2,
    ApiKey.LIST_OFFSETS: 1,
    ApiKey.OFFSET_FETCH: 1,
    ApiKey.OFFSET_COMMIT: 2,
    ApiKey.INIT_PRODUCER_ID: 0,
    ApiKey.API_VERSIONS: 0,
    ApiKey.METADATA: 0,
    ApiKey.FETCH: 4,
    ApiKey.PRODUCE: 3,
}


def test_served_versions_have_tables() -> None:
    for key, versions in served(share_groups=True).items():
        assert versions.first <= versions.last
        for cls in (request_class(key), response_class(key)):
            assert versions.first in cls.VERSIONS
            assert versions.last in cls.VERSIONS
            assert cls.VERSIONS.first == versions.first, "floors are those of Kafka 4"


def test_old_clients_find_their_versions() -> None:
    for key, version in OLD_CLIENTS.items():
        assert is_served(key, version), key


def test_produce_lists_version_0_but_does_not_serve_it() -> None:
    listed = {key: (low, high) for key, low, high in api_versions_for_response()}
    assert listed[ApiKey.PRODUCE] == (0, 13)
    assert not is_served(ApiKey.PRODUCE, 2)
    assert not is_served(ApiKey.PRODUCE, 14)
    assert [key for key, _, _ in api_versions_for_response()] == sorted(listed)
    assert not is_served(4, 0)
    assert not is_served(ApiKey.ALTER_CLIENT_QUOTAS, 0)
    assert not is_served(ApiKey.API_VERSIONS, 6)


def test_titles_are_kafkas() -> None:
    assert ApiKey.OFFSET_FOR_LEADER_EPOCH.title == "OffsetForLeaderEpoch"
    assert ApiKey.API_VERSIONS.title == "ApiVersions"


def test_table_for_the_readme() -> None:
    script = Path(__file__).parents[3] / "scripts" / "api_table.py"
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert lines[0] == "| Key | API | Versions |"
    assert "| 1 | Fetch | 4–18 |" in lines
    assert "| 75 | DescribeTopicPartitions | 0 |" in lines
    assert "| 76 | ShareGroupHeartbeat | 1, with `--share-groups` |" in lines
    assert len(lines) == len(SERVED) + len(SERVED_WITH_SHARE_GROUPS) + 2


def test_share_groups_are_listed_with_their_option_only() -> None:
    without = {key: (low, high) for key, low, high in api_versions_for_response()}
    listed = {key: (low, high) for key, low, high in api_versions_for_response(share_groups=True)}
    added = {key: tuple(versions) for key, versions in SERVED_WITH_SHARE_GROUPS.items()}
    assert listed == without | added
    assert not without.keys() & added.keys()
    assert list(listed) == sorted(listed)
    assert not any(is_served(key, low) for key, (low, _) in added.items())
    assert all(served(share_groups=True)[key] == versions for key, versions in SERVED_WITH_SHARE_GROUPS.items())
