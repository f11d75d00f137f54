"""The next leader of a partition that has none (cluster protocol §5)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from kbroker.cluster.protocol.judge import Ledger, resigned_to
from kbroker.cluster.protocol.messages import Part, PartitionId
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import NO_EPOCH, NO_LEADER, Mode, Move
from kbroker.storage.manifest.partition_state import PartitionState

EVERY_ENTRY = 0  # first leader epoch of a tail that has all entries of its log


def is_leaderless(row: PartitionState, image: ManifestImage, fenced: Collection[int]) -> bool:
    """The row has no leader, or one that is fenced, by an earlier record or by the one that is being built."""
    return row.leader == NO_LEADER or row.leader in fenced or image.is_fenced(row.leader)


def successor(
    row: PartitionState,
    image: ManifestImage,
    leader_epoch: int,
    candidates: Sequence[int],
    choose: Callable[[PartitionId, Sequence[int]], int],
    *,
    unclean: bool = False,
) -> Move | None:
    """The record that gives a leaderless row to one of the candidates; None while it has to wait.

    `candidates`: numbers that are saved, not fenced, and not stopping, in rising order. `unclean`: an operator has
    given up what only the tail's log has.
    """
    place = row.topic_id, row.partition
    if candidates and (any_may_lead(row) or unclean):
        leader = choose(place, candidates)
        tail = (_directory(image, leader), EVERY_ENTRY if is_first_move(row) else leader_epoch)
        return Move(*place, leader, leader_epoch, tail, clean=False, unclean=unclean and not any_may_lead(row))
    home = number_of_tail(row, image)
    if home in candidates:
        return Move(*place, home, leader_epoch, None, clean=False, unclean=False)
    return None


def any_may_lead(row: PartitionState) -> bool:
    """Whether nothing that was acknowledged is only in a log. What was reached decides, not what the topic wants."""
    return row.is_clean or row.mode >= Mode.OBJECT


def is_first_move(row: PartitionState) -> bool:
    """No record has given it a leader: in the log of a broker that was alone before such records, everything counts."""
    return row.leader_epoch == NO_EPOCH


def is_all_clean(image: ManifestImage) -> bool:
    """§3: whether every partition was resigned to none with everything flushed, so that no log has more."""
    return all(row.leader == NO_LEADER and row.is_clean for row in image.states())


def number_of_tail(row: PartitionState, image: ManifestImage) -> int:
    """The broker that has the directory of the row's tail; NO_LEADER if there is none."""
    registered = image.registrations.get(row.tail[0]) if row.tail is not None else None
    return registered.registration.number if registered is not None else NO_LEADER


def resignation(part: Part, ledger: Ledger, leader_epoch: int) -> Move:
    """The record of a resignation that was accepted.

    The tail changes only if everything was flushed: a leader that resigns to itself keeps the tail of its log.
    """
    assert part.successor is not None
    leader = resigned_to(part, ledger)
    clean = part.successor.clean
    tail = (_directory(ledger.image, leader), leader_epoch) if leader != NO_LEADER and clean else None
    return Move(
        part.topic_id, part.partition, leader, leader_epoch, tail, clean=clean and leader == NO_LEADER, unclean=False
    )


def least_loaded(image: ManifestImage) -> Callable[[PartitionId, Sequence[int]], int]:
    """Chooses the candidate that leads the fewest partitions, then the lowest number; counts its own choices."""
    led: dict[int, int] = {}
    for state in image.states():
        led[state.leader] = led.get(state.leader, 0) + 1

    def choose(place: PartitionId, candidates: Sequence[int]) -> int:
        chosen = min(candidates, key=lambda number: (led.get(number, 0), number))
        led[chosen] = led.get(chosen, 0) + 1
        return chosen

    return choose


def _directory(image: ManifestImage, number: int) -> str:
    directory_id = image.directory_of(number)
    assert directory_id is not None, f"broker {number} has no directory"
    return directory_id
