"""Features (KIP-584) and their levels: the one table that ApiVersions lists and UpdateFeatures checks against.

A feature is listed if it is `enabled`, because this kbroker serves all of it, or if its option is given. Levels of
Kafka's features are the program's and cannot be changed; that of kbroker.version is the cluster's.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.cluster.features import FEATURE as KBROKER_VERSION
from kbroker.cluster.features import LOWEST, NEWEST
from kbroker.cluster.image import MetadataImage


class Feature(NamedTuple):
    """A feature: the levels it may have, and the one it has."""

    name: str
    lowest: int
    highest: int
    level: int
    enabled: bool
    needs_share_groups: bool = False  # enabled by --share-groups


FEATURES: tuple[Feature, ...] = (
    Feature("metadata.version", 7, 25, 25, enabled=True),  # 3.3-IV3 to 4.0-IV3, which fits the APIs best
    Feature("kraft.version", 0, 1, 1, enabled=False),  # no quorum of controllers
    Feature("transaction.version", 0, 2, 2, enabled=True),  # KIP-890
    Feature("group.version", 0, 1, 1, enabled=True),  # KIP-848
    Feature("eligible.leader.replicas.version", 0, 1, 1, enabled=False),  # nothing is replicated
    Feature("share.version", 0, 1, 1, enabled=False, needs_share_groups=True),  # KIP-932
    Feature("streams.version", 0, 1, 1, enabled=False),  # KIP-1071
)


def enabled_features(image: MetadataImage, share_groups: bool = False) -> tuple[Feature, ...]:
    """The features of a cluster, listed with or without --share-groups."""
    fixed = (feature for feature in FEATURES if feature.enabled or (feature.needs_share_groups and share_groups))
    return (*fixed, Feature(KBROKER_VERSION, LOWEST, NEWEST, image.level, enabled=True))
