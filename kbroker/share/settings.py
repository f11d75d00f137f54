"""The configs of a share group that concern its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

LATEST = "latest"
EARLIEST = "earliest"


class BrokerNumbers(Protocol):
    """The part of kbroker.cluster.config_defs.BrokerConfigs that is needed here."""

    def number(self, name: str) -> int:
        """The value of a number."""
        ...


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """Configs of one group, or the broker's if the group has none."""

    lock_duration_ms: int = 30_000  # share.record.lock.duration.ms
    delivery_count_limit: int = 5  # share.delivery.count.limit
    record_locks_max: int = 2_000  # share.partition.max.record.locks
    offset_reset: str = LATEST  # share.auto.offset.reset: latest, earliest, by_duration:PnDTnHnMn.nS
    read_committed: bool = False  # share.isolation.level
    renew_enabled: bool = True  # share.renew.acknowledge.enable


def group_settings(own: Mapping[str, str], broker: BrokerNumbers) -> ShareSettings:
    """The settings of a group with these configs of its own."""

    def number(name: str) -> int:
        return int(own[name]) if name in own else broker.number(f"group.{name}")

    return ShareSettings(
        lock_duration_ms=number("share.record.lock.duration.ms"),
        delivery_count_limit=number("share.delivery.count.limit"),
        record_locks_max=number("share.partition.max.record.locks"),
        offset_reset=own.get("share.auto.offset.reset", LATEST),
        read_committed=own.get("share.isolation.level") == "read_committed",
        renew_enabled=own.get("share.renew.acknowledge.enable", "true").lower() == "true",
    )
