"""The part of a record that names brokers and leaders: which changes fit the image, and what they change in it."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.errors import CorruptionError
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import NO_LEADER, Move, Registered, Registration
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.storage.manifest.record import ManifestRecord, PartitionDelta


def has_leadership(record: ManifestRecord) -> bool:
    """Whether a record says anything that versions 1 and 2 cannot say."""
    return bool(record.registrations or record.fences or record.moves or record.modes or record.new_partitions)


# -- checking --------------------------------------------------------------------------------------------------------


def check_leadership(image: ManifestImage, record: ManifestRecord, name: str) -> None:
    """CorruptionError, naming the record, unless the image can take it."""
    fenced = _check_numbers(image, record, name)
    made = {entry[:2] for entry in record.new_partitions}
    if len(made) < len(record.new_partitions):
        raise CorruptionError(f"{name}: a partition is made twice")
    for topic_id, partition in made:
        if image.partition(topic_id, partition) is not None or topic_id in image.dropped:
            raise CorruptionError(f"{name}: partition {_named(topic_id, partition)} exists, or its topic was dropped")
    dropped = {topic_id for topic_id, _ in record.dropped_topics}
    for what, changed in (
        ("moved", [move[:2] for move in record.moves]),
        ("given a mode", [mode[:2] for mode in record.modes]),
    ):
        if len(set(changed)) < len(changed):
            raise CorruptionError(f"{name}: a partition is {what} twice")
        for topic_id, partition in changed:
            if image.partition(topic_id, partition) is None and (topic_id, partition) not in made:
                raise CorruptionError(f"{name}: partition {_named(topic_id, partition)} is {what}, and has no row")
            if topic_id in dropped:
                raise CorruptionError(f"{name}: topic {topic_id.hex()} is dropped and {what}")
    if any(topic_id in dropped for topic_id, _ in made):
        raise CorruptionError(f"{name}: a topic is dropped and gets partitions")
    for move in record.moves:
        _check_move(image, move, fenced, name)


def check_sender(
    image: ManifestImage, record: ManifestRecord, topic_id: bytes, partition: int, delta: PartitionDelta, what: str
) -> None:
    """CorruptionError unless the row is there, once brokers are registered, and led by the delta's sender."""
    state = image.partition(topic_id, partition)
    if state is None and image.registrations:
        raise CorruptionError(f"{what} is changed, and has no row")
    if any(made[:2] == (topic_id, partition) for made in record.new_partitions):
        raise CorruptionError(f"{what} is made and changed")
    if delta.number == NO_LEADER:
        return
    row = (state.leader, state.leader_epoch) if state is not None else None
    if row != (delta.number, delta.leader_epoch) or image.is_fenced(delta.number):
        sender = f"broker number {delta.number} under epoch {delta.leader_epoch}"
        raise CorruptionError(f"{what}: from {sender}, but the row has {row}")


def _check_numbers(image: ManifestImage, record: ManifestRecord, name: str) -> set[int]:
    """Checks registrations and fences; returns the numbers that the record fences."""
    last = image.last_number
    fenced = set(record.fences)
    for registration in record.registrations:
        if registration.number <= last:
            raise CorruptionError(f"{name}: broker number {registration.number} follows {last}")
        last = registration.number
        earlier = image.registrations.get(registration.directory_id)
        if earlier is not None and registration.fences:
            fenced.add(earlier.registration.number)
    if len({registration.directory_id for registration in record.registrations}) < len(record.registrations):
        raise CorruptionError(f"{name}: a directory is registered twice")
    for number in record.fences:
        if image.directory_of(number) is None:
            raise CorruptionError(f"{name}: fences broker number {number}, which is not known")
    return fenced


def _check_move(image: ManifestImage, move: Move, fenced: set[int], name: str) -> None:
    what = f"{name}: partition {_named(*move[:2])}"
    if move.leader_epoch <= image.leader_epoch:
        raise CorruptionError(f"{what} gets leader epoch {move.leader_epoch}, the last one was {image.leader_epoch}")
    if move.leader == NO_LEADER:
        return
    if image.directory_of(move.leader) is None:
        raise CorruptionError(f"{what} is moved to broker number {move.leader}, which is not known")
    if move.leader in fenced or image.is_fenced(move.leader):
        raise CorruptionError(f"{what} is moved to broker number {move.leader}, which is fenced")


def _named(topic_id: bytes, partition: int) -> str:
    return f"{topic_id.hex()}/{partition}"


# -- applying, under the image's lock --------------------------------------------------------------------------------


def apply_numbers(image: ManifestImage, record: ManifestRecord) -> None:
    """Applies registrations, fences and new partitions: what comes before the deltas."""
    for registration in record.registrations:
        _register(image, registration)
    _fence(image, record.fences)
    for topic_id, partition, mode in record.new_partitions:
        state = PartitionState(topic_id, partition, pool=image.producer_pool)
        state.mode = mode
        image.partitions.setdefault(topic_id, {})[partition] = state
        image.changed.add((topic_id, partition))
    image.has_leadership = image.has_leadership or has_leadership(record)


def apply_moves(image: ManifestImage, record: ManifestRecord) -> None:
    """Applies modes and moves: what comes after the deltas. An epoch starts at the end of the objects."""
    for topic_id, partition, mode in record.modes:
        state = image.partitions[topic_id][partition]
        state.mode = mode
        state.mode_version += 1
        image.changed.add((topic_id, partition))
    for move in record.moves:
        state = image.partitions[move.topic_id][move.partition]
        epochs = state.leader_epochs
        if epochs and epochs[-1][1] >= state.end_offset:
            epochs = epochs[:-1]  # nothing was appended under it
        state.leader_epochs = (*epochs, (move.leader_epoch, state.end_offset))
        state.leader, state.leader_epoch = move.leader, move.leader_epoch
        state.tail = move.tail or state.tail
        state.is_clean = move.clean
        image.leader_epoch = max(image.leader_epoch, move.leader_epoch)
        image.changed.add((move.topic_id, move.partition))
        directory_id = image.directory_of(move.leader)
        if directory_id is not None:
            registered = image.registrations[directory_id]
            if registered.registration.number == move.leader and not registered.used:
                image.registrations[directory_id] = registered._replace(used=True)


def _register(image: ManifestImage, registration: Registration) -> None:
    earlier = image.registrations.get(registration.directory_id)
    if earlier is not None and (registration.fences or earlier.fenced):
        del image.numbers[earlier.registration.number]
    image.registrations[registration.directory_id] = Registered(registration)
    image.numbers[registration.number] = registration.directory_id
    image.last_number = registration.number


def _fence(image: ManifestImage, numbers: Iterable[int]) -> None:
    for number in numbers:
        directory_id = image.numbers.get(number)
        if directory_id is None:
            continue  # fenced by a registration of the same record
        registered = image.registrations[directory_id]
        if registered.registration.number == number:
            image.registrations[directory_id] = registered._replace(fenced=True)
        else:
            del image.numbers[number]
