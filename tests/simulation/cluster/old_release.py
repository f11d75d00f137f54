"""A start of the release before: it knows no level, and no form of a record, that brokers and leaders need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.cluster import features
from kbroker.cluster.features import LEADERSHIP, LEVELS, UnknownLevel
from kbroker.cluster.metadata_state import MetadataState
from kbroker.storage.ledger.loaded_log import LoadedLog
from tests.simulation.cluster import codec
from tests.simulation.cluster.bucket import ALWAYS, BrokerStore
from tests.simulation.cluster.simulated import Replacements
from tests.simulation.cluster.truth import KEYS
from tests.simulation.cluster.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World


def start_release_before(world: World) -> None:
    """It reads both logs, in one step. Raises Violation unless it can, or the level is finalized and it says so."""
    is_finalized = world.checker.truth.metadata.level >= LEADERSHIP
    store: Any = BrokerStore(world.bucket, ALWAYS, world.rng)
    replacements = Replacements()
    replacements.set(features, "LEVELS", {level: forms for level, forms in LEVELS.items() if level < LEADERSHIP})
    topics = MetadataState()
    try:
        metadata = LoadedLog(
            store, f"{KEYS.metadata_dir}/", lambda number, kind, payload: topics.apply(number, payload)
        )
        metadata.load(topics.restore)
    except UnknownLevel as error:
        world.note("a start of the release before is refused: %s", error)
        if not is_finalized:
            raise Violation(f"refused at level {world.checker.truth.metadata.level}: {error}") from error
        return
    finally:
        replacements.undo()
    if is_finalized:
        raise Violation("the release before does not notice that a level is finalized which it does not know")
    LoadedLog(store, f"{KEYS.manifest_dir}/", check_record).load(check_checkpoint)


def check_record(number: int, kind: str, payload: Any) -> None:
    """A record of the manifest."""
    if codec.version(payload) > codec.BEFORE:
        raise Violation(f"manifest record {number} is of a version that the release before cannot read")


def check_checkpoint(number: int, payload: Any) -> None:
    """A checkpoint of the manifest."""
    if payload["v"] > codec.BEFORE:
        raise Violation(f"manifest checkpoint {number} is of a version that the release before cannot read")
