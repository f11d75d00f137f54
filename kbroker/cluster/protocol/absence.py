"""What may be concluded from absence: only one's own copy of the ledger tells that something is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kbroker.cluster.protocol.surroundings import TopicView
from kbroker.errors import CorruptionError
from kbroker.storage.manifest.partition_state import ObjectRef
from kbroker.storage.stores.object_store import NotFound

T = TypeVar("T")


def marker_is_moot(topic_id: bytes, own_topics: TopicView) -> bool:
    """§6: whether a transaction's marker counts as written because its topic was deleted.

    A leader that answers UNKNOWN_TOPIC_OR_PARTITION may have an old copy: half a transaction would be committed.
    """
    return own_topics.is_deleted(topic_id)


def read_named(
    find: Callable[[], ObjectRef | None], read: Callable[[ObjectRef], T], refresh: Callable[[], None]
) -> T | None:
    """§7: reads the object that the own copy names for an offset; None if it names none.

    What an old copy lacks is not damage: `refresh` reads the ledger to its end. CorruptionError if that still names the
    object: objects are deleted only after the record that replaced them.
    """
    while True:
        ref = find()
        if ref is None:
            return None
        try:
            return read(ref)
        except NotFound as error:
            look_again(refresh)
            if find() == ref:
                raise CorruptionError(f"{ref.key}: the manifest names it, but it is missing") from error


def look_again(refresh: Callable[[], None]) -> None:
    """§7: NotFound by an old copy means refresh."""
    refresh()
