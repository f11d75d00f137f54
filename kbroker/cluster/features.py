"""`kbroker.version`: the feature (KIP-584) whose level says in which forms a cluster is written.

A broker reads the forms of all levels in LEVELS and writes those of the level that the cluster has finalized. So a
release that knows only the levels before can be started on the cluster again until a newer one is finalized. A new
cluster begins at DEFAULT, and so far the levels above it are for those that ask. docs/formats/metadata.md has what each
level allows.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from kbroker.errors import CorruptionError, ErrorCode, KafkaError

FEATURE = "kbroker.version"
LEVEL_MAX = 2**15 - 1  # of any feature: an int16 in Kafka's protocol


class Forms(NamedTuple):
    """Versions of what is written."""

    record: int  # of the manifest
    part: int  # of a checkpoint of the manifest
    proposal: int  # proposal.json of a job


LEVELS: dict[int, Forms] = {
    1: Forms(record=1, part=1, proposal=1),
    2: Forms(record=2, part=2, proposal=2),  # references know how early their records are
    3: Forms(record=3, part=2, proposal=2),  # records are columns, which can say what broker leads
}
LOWEST, NEWEST = min(LEVELS), max(LEVELS)
DEFAULT = 2
LEADERSHIP = 3  # the lowest level whose manifest has brokers and leaders


class UpgradeType(IntEnum):
    """Directions of an UpdateFeatures request, as in the protocol."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class UnknownLevel(CorruptionError):
    """The cluster has a finalized level of which this kbroker does not know the forms."""


def check_known(feature: str, level: int, where: str) -> None:
    """Raises UnknownLevel, naming the record `where`, for a feature or a level of a newer release."""
    if feature != FEATURE:
        raise UnknownLevel(f"{where}: the cluster has the feature {feature!r:.80}: start a newer kbroker")
    if level not in LEVELS:
        raise UnknownLevel(
            f"{where}: the cluster is at {FEATURE} {level}, this kbroker knows up to {NEWEST}: start a newer kbroker"
        )


def invalid_update(feature: str, level: int, problem: str) -> KafkaError:
    """The refusal of an update, worded as Kafka's."""
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {feature}. {problem}"
    )


def check_change(current: int, level: int, upgrade_type: UpgradeType) -> None:
    """Raises KafkaError unless the cluster may go from level `current` to `level`, both of LEVELS.

    A downgrade is safe between levels of the same forms. No other is possible: what was written stays, and a release
    that knows only `level` could not read it.
    """
    if level == current:
        return
    if level > current:
        if upgrade_type != UpgradeType.UPGRADE:
            raise invalid_update(FEATURE, level, "Can't downgrade to a newer version.")
    elif upgrade_type == UpgradeType.UPGRADE:
        problem = "Can't downgrade the version of this feature without setting the upgrade type to a downgrade."
        raise invalid_update(FEATURE, level, problem)
    elif LEVELS[level] != LEVELS[current]:
        problem = "Unsafe downgrade is not supported in this version."
        if upgrade_type == UpgradeType.SAFE_DOWNGRADE:
            problem = (
                "Refusing to perform the requested downgrade because the bucket may hold data of version "
                f"{current}, which version {level} cannot read."
            )
        raise invalid_update(FEATURE, level, problem)
