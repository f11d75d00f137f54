"""Features (KIP-584) and their levels: the one table that ApiVersions lists and UpdateFeatures judges against.

A feature is listed where `enabled` says that this kbroker serves it in whole, or the option that it needs is given. Its
level is that of the program, not of the cluster: nothing has to be finalized, and it cannot be changed.
"""

from __future__ import annotations

from typing import NamedTuple

FINALIZED_EPOCH = 1  # clients take finalized features for real from 0 up; it never changes, as the levels do not


class Feature(NamedTuple):
    """A feature: the levels it may have, and the one it has."""

    name: str
    lowest: int
    highest: int
    level: int
    enabled: bool
    needs_share_groups: bool = False  # enabled by --share-groups


FEATURES: tuple[Feature, ...] = (
    Feature("metadata.version", 7, 25, 25, enabled=True),  # 3.3-IV3 to 4.0-IV3: broker_config_table's release
    Feature("kraft.version", 0, 1, 1, enabled=False),  # no quorum of controllers
    Feature("transaction.version", 0, 2, 2, enabled=True),  # KIP-890
    Feature("group.version", 0, 1, 1, enabled=True),  # KIP-848
    Feature("eligible.leader.replicas.version", 0, 1, 1, enabled=False),  # nothing is replicated
    Feature("share.version", 0, 1, 1, enabled=False, needs_share_groups=True),  # KIP-932
    Feature("streams.version", 0, 1, 1, enabled=False),  # KIP-1071
)


def enabled_features(share_groups: bool = False) -> tuple[Feature, ...]:
    """Those that clients of a broker with or without --share-groups are told of."""
    return tuple(
        feature for feature in FEATURES if feature.enabled or (feature.needs_share_groups and share_groups)
    )
