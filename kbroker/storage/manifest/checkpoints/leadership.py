"""Brokers and leaders, as a checkpoint of version 3 has them."""

from __future__ import annotations

from typing import Any

from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import NO_EPOCH, NO_LEADER, Mode, Registered, Registration
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.storage.manifest.record import INT32_MAX, RecordParser

TEXT_MAX = 4096  # characters of a registration's texts

# -- registrations ---------------------------------------------------------------------------------------------------


def parse_registration(parser: RecordParser, value: Any, what: str) -> Registration:
    """Checks a registration's form: its fields in order, as records and checkpoints have it."""
    number, directory_id, node_id, nonce, place, rack, listeners, release, fences = parser.array(
        value, what, len(Registration._fields)
    )
    return Registration(
        parser.integer(number, what, 1),
        parser.text(directory_id, what, 64),
        parser.integer(node_id, what, 0, INT32_MAX),
        parser.text(nonce, what, 64),
        parser.text(place, what, TEXT_MAX),
        parser.text(rack, what, TEXT_MAX),
        parser.text(listeners, what, TEXT_MAX),
        parser.text(release, what, TEXT_MAX),
        parser.boolean(fences, what),
    )


def brokers_json(image: ManifestImage) -> dict[str, Any]:
    """What a checkpoint's head says of brokers."""
    newest = {each.registration.number for each in image.registrations.values()}
    return {
        "i": [[list(each.registration), each.used, each.fenced] for each in image.registrations.values()],
        "o": [[number, directory_id] for number, directory_id in image.numbers.items() if number not in newest],
        "n": image.last_number,
        "h": image.leader_epoch,
    }


def read_brokers(parser: RecordParser, image: ManifestImage, checkpoint: dict[str, Any]) -> None:
    """Fills registrations and counters."""
    image.has_leadership = True
    image.last_number = parser.integer(checkpoint.get("n"), "n")
    image.leader_epoch = parser.integer(checkpoint.get("h"), "h", NO_EPOCH, INT32_MAX)
    for item in parser.array(checkpoint.get("i"), "i"):
        value, used, fenced = parser.array(item, "i", 3)
        registration = parse_registration(parser, value, "i")
        if registration.directory_id in image.registrations:
            raise parser.fail(f"i: directory {registration.directory_id:.80} is there twice")
        image.registrations[registration.directory_id] = Registered(
            registration, parser.boolean(used, "i"), parser.boolean(fenced, "i")
        )
        _add_number(parser, image, registration.number, registration.directory_id)
    for item in parser.array(checkpoint.get("o"), "o"):
        number, directory_id = parser.array(item, "o", 2)
        if parser.text(directory_id, "o", 64) not in image.registrations:
            raise parser.fail(f"o: directory {directory_id:.80} is not registered")
        _add_number(parser, image, parser.integer(number, "o", 1), directory_id)


def _add_number(parser: RecordParser, image: ManifestImage, number: int, directory_id: str) -> None:
    if number in image.numbers or number > image.last_number:
        raise parser.fail(f"broker number {number} is there twice, or above the last one, {image.last_number}")
    image.numbers[number] = directory_id


# -- rows ------------------------------------------------------------------------------------------------------------


def row_json(state: PartitionState) -> list[Any]:
    """[leader, leader epoch, mode, mode version, tail or null, clean]."""
    return [state.leader, state.leader_epoch, int(state.mode), state.mode_version, state.tail, state.is_clean]


def read_row(parser: RecordParser, state: PartitionState, value: Any, what: str) -> None:
    """Fills the leader's part of a state."""
    leader, leader_epoch, mode, version, tail, is_clean = parser.array(value, what, 6)
    state.leader = parser.integer(leader, what, NO_LEADER)
    state.leader_epoch = parser.integer(leader_epoch, what, NO_EPOCH, INT32_MAX)
    state.mode = Mode(parser.integer(mode, what, 0, max(Mode)))
    state.mode_version = parser.integer(version, what)
    state.tail = parse_tail(parser, tail, what)
    state.is_clean = parser.boolean(is_clean, what)


def has_row(state: PartitionState) -> bool:
    """Whether the leader's part of a state is other than at first."""
    return state.leader_epoch != NO_EPOCH or state.mode != Mode.WAL or state.mode_version > 0


def check_rows(parser: RecordParser, image: ManifestImage) -> None:
    """After all states: checks them against the counters; of an image without leadership, sets the epoch counter."""
    epochs = [state.leader_epochs[-1][0] for state in image.states() if state.leader_epochs]
    epochs += [state.leader_epoch for state in image.states()]
    newest = max(epochs, default=NO_EPOCH)
    if not image.has_leadership:
        image.leader_epoch = newest
    if newest > image.leader_epoch or any(state.leader > image.last_number for state in image.states()):
        raise parser.fail("a partition has a leader or leader epoch above the last one given")


def parse_tail(parser: RecordParser, value: Any, what: str) -> tuple[str, int] | None:
    """[directory id, first leader epoch], or null."""
    if value is None:
        return None
    directory_id, leader_epoch = parser.array(value, what, 2)
    return parser.text(directory_id, what, 64), parser.integer(leader_epoch, what, 0, INT32_MAX)
