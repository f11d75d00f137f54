"""Brokers and leaders in a recovered manifest: as if all brokers had stopped for good, each with everything flushed.

A recovery asks for just that, or for `--take-over`, which gives up what only a log has. So every known broker number is
fenced, every row is without a leader and may be led by any broker, and no log's unflushed entries count any more.
Unreadable records may have given numbers and leader epochs: both counters go on far above what is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kbroker.storage.formats.object_keys import KlixKey, PackKey
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import (
    NO_EPOCH,
    NO_LEADER,
    Mode,
    ModeChange,
    Move,
    Registered,
    Registration,
)
from kbroker.storage.manifest.record import ManifestRecord, PartitionId
from kbroker.storage.manifest.record_apply import apply_record
from kbroker.storage.manifest.record_decode import read_record
from kbroker.storage.manifest.record_encode import encode_record

STEP = 1_000_000  # counters go on at its multiples


@dataclass(slots=True)
class KnownBrokers:
    """What the readable records, and the keys of objects, say of brokers. `last_number`: the highest in any of them."""

    registrations: dict[str, Registration] = field(default_factory=dict)  # the newest, by directory id
    used: set[int] = field(default_factory=set)  # numbers that were given leadership
    modes: dict[PartitionId, Mode] = field(default_factory=dict)
    last_number: int = 0
    leader_epoch: int = NO_EPOCH
    has_leadership: bool = False

    def add_image(self, image: ManifestImage) -> None:
        """What the readable part of the manifest adds up to."""
        self.has_leadership |= image.has_leadership
        self.last_number = max(self.last_number, image.last_number)
        self.leader_epoch = max(self.leader_epoch, image.leader_epoch)
        for directory_id, (registration, used, _) in image.registrations.items():
            self.registrations[directory_id] = registration
            self.used |= {registration.number} if used else set()
        self.modes.update({(state.topic_id, state.partition): state.mode for state in image.states()})

    def add_record(self, record: ManifestRecord) -> None:
        """A later record, in the order of the log."""
        for registration in record.registrations:
            self.registrations[registration.directory_id] = registration
        for topic_id, partition, mode in (*record.new_partitions, *record.modes):
            self.modes[topic_id, partition] = mode
        self.used.update(move.leader for move in record.moves)
        deltas = record.partitions.values()
        epochs = [epoch for delta in deltas for epoch, _ in delta.leader_epochs]
        epochs += [delta.leader_epoch for delta in deltas] + [move.leader_epoch for move in record.moves]
        self.leader_epoch = max([self.leader_epoch, *epochs])
        self._add_numbers([each.number for each in record.registrations])
        self._add_numbers(record.fences)
        self._add_numbers([move.leader for move in record.moves])
        self._add_numbers([delta.number for delta in deltas])

    def add_key(self, key: object) -> None:
        """A parsed key of an object in the bucket: its author's number was given."""
        if isinstance(key, KlixKey | PackKey) and key.author is not None:
            self._add_numbers([key.author.number])

    def _add_numbers(self, numbers: Iterable[int]) -> None:
        given = [number for number in numbers if number != NO_LEADER]
        self.has_leadership |= bool(given)
        self.last_number = max(self.last_number, *given, 0)

    def lines(self) -> Iterator[str]:
        """Lines for the report."""
        if self.has_leadership:
            yield (
                f"brokers: {len(self.registrations)} data directories are known, their numbers are fenced; a directory "
                "whose last start is only in an unreadable record is refused: start the broker on a new one"
            )

    def close(self, image: ManifestImage, now_ms: int) -> None:
        """Fences all numbers and ends all leaderships in a recovered image; nothing where there were none."""
        if not self.has_leadership:
            return
        image.has_leadership = True
        for directory_id, registration in self.registrations.items():
            image.registrations[directory_id] = Registered(registration, registration.number in self.used, fenced=True)
            image.numbers[registration.number] = directory_id
        image.last_number = _step_above(self.last_number)
        epoch = _step_above(max(self.leader_epoch, image.leader_epoch))
        places = [(state.topic_id, state.partition) for state in image.states()]
        modes = [(place, self.modes.get(place, Mode.WAL)) for place in places]
        record = ManifestRecord(
            now_ms,
            modes=tuple(ModeChange(*place, mode) for place, mode in modes if mode is not Mode.WAL),
            moves=tuple(Move(*place, NO_LEADER, epoch, None, clean=True, unclean=True) for place in places),
        )
        apply_record(image, read_record(encode_record(record), "recovery"))


def _step_above(counter: int) -> int:
    return (max(counter, 0) // STEP + 1) * STEP
