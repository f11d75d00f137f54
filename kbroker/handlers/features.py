"""Features (KIP-584) and their levels: the one table that ApiVersions lists and UpdateFeatures checks against.

A feature is listed if it is `enabled`, because this kbroker serves all of it, or if its option is given. Its
level is that of the program, not of the cluster: nothing has to be finalized, and it cannot be changed.
"""

from __future__ import annotations

from typing import NamedTuple

FINALIZED_EPOCH = 1  # clients use finalized features from epoch 0 up; it never changes, since the levels do not


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
    """The features listed with or without --share-groups."""
    return tuple(
        feature for feature in FEATURES if feature.enabled or (feature.needs_share_groups and share_groups)
    )
