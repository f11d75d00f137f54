"""Whether a broker's copy of the ledger is what the records say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import PartitionState
from tests.simulation.cluster.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World


def check_copies(world: World) -> None:
    """Compares the copies of all that run, which have all records. Raises Violation."""
    truth = world.checker.truth
    expected = contents(truth.manifest)
    for broker in world.brokers:
        if not broker.is_running:
            continue
        found, topics = contents(broker.copy.image), broker.copy.topics.image
        for what, value in expected.items():
            if found[what] != value:
                raise Violation(f"the copy of {broker} has other {what}: {found[what]}, not {value}")
        if (topics.by_id, topics.deleted, topics.level) != (
            truth.metadata.by_id, truth.metadata.deleted, truth.metadata.level
        ):  # fmt: skip
            raise Violation(f"the copy of {broker} has other topics: {topics}, not {truth.metadata}")


def contents(image: ManifestImage) -> dict[str, Any]:
    """What all copies have alike, also those that began with a checkpoint."""
    return {
        "rows": {(row.topic_id, row.partition): row_contents(image, row) for row in image.states()},
        "registrations": image.registrations,
        "numbers": (image.numbers, image.last_number, image.leader_epoch),
        "deletions": (dict(image.deletions), image.dropped.keys()),
    }


def row_contents(image: ManifestImage, row: PartitionState) -> tuple[Any, ...]:
    """One row, with its objects by key."""
    refs = [image.ref(row.row(n)) for n in range(row.object_count)]
    leadership = row.leader, row.leader_epoch, row.leader_epochs, row.mode, row.mode_version, row.tail, row.is_clean
    state = dict(row.producers.items()), row.open_transactions, row.aborted
    return row.log_start_offset, row.end_offset, row.last_stable_offset, leadership, state, refs
