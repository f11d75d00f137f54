"""What is checked, and where (numbers of "What must never happen", and decisions D2, D4, D5, D6):

- `check_start`, after every start: D2 and 5, 11 (what was acknowledged is there after a crash on the same disk), D4
  and D5 (what a flush confirmed is there on any disk; what is there is a prefix of the log over all partitions, so no
  half transaction, 7), 4 (never offset 0), 14 (a deleted topic stays deleted), D6 (one owner's records only).
- `check_objects`, at any moment: D3 (a record that an object-durable topic acknowledged or returned needs no
  disk for it), also of a broker that was superseded.
- `check_reads`, after every start, at the end, and between: 10, 13, 19 (every record under its offset, byte for byte,
  no hole), 2 and 3 (only expired or deleted records are missing; the newest value of each key stays).
- `check_producers`: D2, 1, 7 (open transactions as the log has them; a retry gets its first answer again).
- `check_bucket`, at any moment, also in the middle of an operation: D4 and D5 (the bucket alone is one consistent
  moment), 10 (batches against their CRC), and that no record is earlier than the manifest says.
- `World.check_deletion`, `WatchedStore`, `check_end`: 4 and D6 (nothing that is named or not ours is deleted, nothing
  is overwritten; what is left at the end is what the manifest names, or what a sweep reports and cannot prove).
- `World.confirm`, `SimulatedBroker.check_may_write`, `World._after`: 6 and D6 (a superseded broker's flush is never
  true; it writes nothing once it knows; no broker takes a failure of the store for a fence).
- 15: after an outage of any length the history continues with the same processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kbroker._fast.records.records import iter_batches, iter_records, parse_marker
from kbroker.storage.formats.kfs_keys import index_key_of
from kbroker.storage.formats.object_keys import KfsKey, KlixKey, PackKey
from kbroker.storage.manifest.partition_state import TIMES_UNKNOWN, ObjectRef
from kbroker.storage.read.object_reader import ObjectReader
from tests.reference.time_bounds import broken_bound, times_of_batches
from tests.simulation.bucket import FOREIGN
from tests.simulation.model import Entry, Place, Topic, open_since, surviving_keys

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker
    from tests.simulation.world import World

READ_BYTES = 1 << 20
BODY_AT = 16  # after base offset, length and leader epoch, which a broker sets
FRESH_MS = 12 * 3_600_000  # a producer that has written this recently is known


def by_place(entries: Iterable[Entry]) -> dict[Place, list[Entry]]:
    """The entries of each partition, in order."""
    found: dict[Place, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.place, []).append(entry)
    return found


# -- after a start ---------------------------------------------------------------------------------------------------


def check_start(world: World, broker: SimulatedBroker, required: int) -> list[Entry]:
    """What of the cluster's log the broker has; at least `required`, and a prefix of it over all partitions."""
    check_topics(world, broker)
    log_starts = {
        (hot.topic_id, hot.index): (hot.next_offset, hot.log_start_offset) for hot in broker.table.all_partitions()
    }
    for place, (_, log_start) in log_starts.items():
        answered = world.topics[place[0]].answered_start.get(place[1], 0)
        if log_start < answered:
            world.fail(f"{place[0].hex()[:6]}/{place[1]} starts at {log_start}, and {answered} was answered")
    return _prefix(world, f"{broker.name} after its start", log_starts, required)


def check_topics(world: World, broker: SimulatedBroker) -> None:
    """Topics that were answered are there, deleted ones are not; others must have been asked for."""
    for topic_id, found in broker.table.by_id.items():
        topic = world.topics.get(topic_id)
        if topic is None:
            if found.name not in world.asked_names:
                world.fail(f"topic {found.name} exists, and no client created it")
            world.topics[topic_id] = as_topic(found)
        elif topic.deleted:
            world.fail(f"topic {found.name} {topic_id.hex()[:6]} is back after its deletion")
    for topic_id, topic in world.topics.items():
        if topic_id not in broker.table.by_id and not topic.deletion_asked:
            world.fail(f"topic {topic.name} {topic_id.hex()[:6]} is lost")


def as_topic(log: Any) -> Topic:
    """The model's view of a topic in a broker's table."""
    config = log.config
    short = 0 <= config.retention_ms < 86_400_000
    kind = "compact" if config.compacted else "kfs" if config.kfs else "short" if short else "plain"
    if config.object_durable and kind == "plain":
        kind = "object"
    return Topic(log.name, log.topic_id, len(log.partitions), kind, config.retention_ms)


def _prefix(world: World, what: str, ends: dict[Place, tuple[int, int]], required: int) -> list[Entry]:
    """The entries that partitions with these (end, log start) hold; they must be a prefix of all."""
    kept: list[Entry] = []
    missing: Entry | None = None
    highest: dict[Place, int] = {}
    for number, entry in enumerate(world.lineage):
        if entry.place not in ends:
            kept.append(entry)  # of a deleted topic
            continue
        end, log_start = ends[entry.place]
        if entry.next_offset <= end:
            kept.append(entry)
            highest[entry.place] = entry.next_offset
            if missing is not None and entry.next_offset > log_start:
                world.fail(f"{what}: {missing} is missing, and {entry}, which came later, is there")
        elif missing is None:
            missing = entry
            if number < required:
                world.fail(f"{what}: {entry}, number {number} of {required} that must be there, is lost")
    for place, (end, log_start) in ends.items():
        if end > max(highest.get(place, 0), log_start):
            world.fail(f"{what}: {place[0].hex()[:6]}/{place[1]} ends at {end}, {highest.get(place, 0)} was written")
    return kept


def check_objects(world: World) -> None:
    """What object-durable topics have acknowledged or shown, on any broker that runs, is what the bucket has."""
    image = None
    for broker in world.alive():
        for hot in broker.table.all_partitions():
            if not hot.object_durable or hot.deleted or world.topics[hot.topic_id].deletion_asked:
                continue
            image = image or world.bucket_image()
            state = image.partition(hot.topic_id, hot.index)
            end = max(state.end_offset, state.log_start_offset) if state is not None else 0
            what = f"{broker.name}: {hot.topic_id.hex()[:6]}/{hot.index}"
            if hot.high_watermark() > max(end, hot.log_start_offset):
                world.fail(f"{what} shows up to {hot.high_watermark()}, and the bucket ends at {end}")
            for entry in broker.entries:
                if entry.place == (hot.topic_id, hot.index) and entry.object_durable and entry.acknowledged:
                    if entry not in world.lineage:
                        world.fail(f"{what}: {entry} was acknowledged, and the owner's log is without it")
                    elif entry.next_offset > end:
                        world.fail(f"{what}: {entry} was acknowledged, and the bucket ends at {end}")
    world.judge()


# -- records ---------------------------------------------------------------------------------------------------------


def check_reads(world: World, broker: SimulatedBroker) -> None:
    """Every partition of a broker, from its log start to its high watermark, as a consumer would read it."""
    entries = by_place(broker.entries)
    reader = ObjectReader(world.watched, broker.cluster.manifest.image, READ_BYTES)
    for hot in broker.table.all_partitions():
        topic = world.topics[hot.topic_id]
        start, end = hot.log_start_offset, hot.high_watermark()
        data: list[bytes] = []
        offset = start
        while offset < end:
            piece = hot.read_bytes(offset, end, READ_BYTES)
            if piece is None:
                found = reader.read(hot.topic_id, hot.index, offset, end, READ_BYTES)
                if found is None:
                    break
                data += [bytes(part) for part in found.parts]
                offset = found.next_offset
            else:
                if not piece:
                    world.fail(f"{broker.name}: {topic.name}-{hot.index}@{offset} of {end} reads as nothing")
                    break
                data.append(piece)
                offset = list(iter_batches(piece))[-1][0].next_offset
        written = entries.get((hot.topic_id, hot.index), [])
        check_records(world, broker.name, topic, hot.index, written, start, end, data)
    world.judge()


def check_records(
    world: World,
    reader: str,
    topic: Topic,
    index: int,
    entries: Sequence[Entry],
    start: int,
    end: int,
    data: list[bytes],
) -> None:
    """Batches read from `start` to `end` against what was written there."""
    what = f"{reader}: {topic.name}-{index} [{start}, {end})"
    wanted = [entry for entry in entries if start < entry.next_offset <= end]
    batches = [(header, bytes(batch)) for piece in data for header, batch in iter_batches(piece, check_crc=True)]
    check_log_start(world, what, topic, index, entries, start)
    if topic.kind == "compact":
        _check_compacted(world, what, entries, start, end, batches)
        return
    for entry, (header, batch) in zip(wanted, batches, strict=False):
        if (header.base_offset, header.next_offset) != (entry.base_offset, entry.next_offset):
            world.fail(f"{what}: a batch at {header.base_offset} where {entry} should be")
            return
        if entry.body and batch[BODY_AT:] != entry.body:
            world.fail(f"{what}: {entry} reads as something else")
        if entry.marker and parse_marker(batch) is None:
            world.fail(f"{what}: {entry} is no marker")
        if header.leader_epoch != entry.epoch:
            world.fail(f"{what}: {entry} of epoch {entry.epoch} reads as of {header.leader_epoch}")
    if len(wanted) != len(batches):
        world.fail(f"{what}: {len(batches)} batches, {len(wanted)} were written")


def _check_compacted(
    world: World, what: str, entries: Sequence[Entry], start: int, end: int, batches: Sequence[tuple[Any, bytes]]
) -> None:
    written = {
        entry.base_offset + i: record
        for entry in entries
        if entry.next_offset <= end
        for i, record in enumerate(entry.records)
    }
    found = {record.offset: record for _, batch in batches for record in iter_records(batch)}
    for offset, record in found.items():
        if written.get(offset) != (record.key, record.value):
            world.fail(f"{what}: offset {offset} reads as {record.key!r}={record.value!r}, not {written.get(offset)}")
    complete = [entry for entry in entries if entry.next_offset <= end]
    for key, (offset, value) in surviving_keys(complete, start).items():
        if value is not None and offset not in found:
            world.fail(f"{what}: the newest value of {key!r}, at {offset}, is gone")


def check_log_start(
    world: World, what: str, topic: Topic, index: int, entries: Sequence[Entry], start: int
) -> None:
    """The log start has passed only records that were deleted or have expired."""
    if start <= topic.asked_start.get(index, 0):
        return
    for entry in entries:
        if topic.asked_start.get(index, 0) < entry.next_offset <= start:
            age_ms = world.clock.now_ms() - entry.timestamp_ms
            if topic.kind == "compact" or not 0 <= topic.retention_ms < age_ms:
                world.fail(f"{what}: {entry}, {age_ms} ms old, was let go")


def check_producers(world: World, broker: SimulatedBroker) -> None:
    """Open transactions are those that the log says; the last batch of each young producer is known."""
    now_ms = world.clock.now_ms()
    for place, entries in by_place(broker.entries).items():
        hot = broker.table.partition_by_id(*place)
        if hot is None or hot.log_start_offset > 0:
            continue
        end = hot.high_watermark()  # an object-durable topic may have more, which is not visible yet
        expected = min(open_since(entry for entry in entries if entry.next_offset <= end).values(), default=end)
        if hot.last_stable_offset() != expected:
            world.fail(f"{broker.name}: {place[1]}: last stable offset {hot.last_stable_offset()}, not {expected}")
        newest = {e.producer_id: e for e in entries if e.producer_id >= 0 and not e.marker}
        known = {state[0]: state for state in hot.producers.snapshot()}
        for producer_id, entry in newest.items():
            if now_ms - entry.timestamp_ms > FRESH_MS:
                continue
            state = known.get(producer_id)
            if state is None or not state[5] or state[5][-1][1] != entry.next_offset - 1:
                world.fail(f"{broker.name}: producer {producer_id} wrote {entry}, and is known as {state}")
    world.judge()


# -- the bucket ------------------------------------------------------------------------------------------------------


def check_bucket(world: World) -> None:
    """The bucket as a broker with nothing else finds it."""
    image = world.bucket_image()
    places = {(state.topic_id, state.partition): state for state in image.states()}
    gone = {topic_id for topic_id, topic in world.topics.items() if topic.deletion_asked}
    ends = {place: (0, 0) for place in by_place(world.lineage) if place[0] not in gone}
    for place, state in places.items():
        if place in ends:
            ends[place] = max(state.end_offset, state.log_start_offset), state.log_start_offset
    _prefix(world, "the bucket", ends, world.confirmed)
    reader = ObjectReader(world.watched, image, READ_BYTES)
    entries = by_place(world.lineage)
    for (topic_id, index), state in places.items():
        if topic_id in gone or topic_id not in world.topics:
            continue
        data: list[bytes] = []
        offset = state.log_start_offset
        while offset < state.end_offset:
            found = reader.read(topic_id, index, offset, state.end_offset, READ_BYTES)
            if found is None:
                break
            data += [bytes(part) for part in found.parts]
            offset = found.next_offset
        written = [e for e in entries.get((topic_id, index), []) if e.next_offset <= state.end_offset]
        start, end = state.log_start_offset, max(state.end_offset, state.log_start_offset)
        if start == 0 and tuple(sorted(open_since(written).items())) != tuple(state.open_transactions):
            world.fail(f"the bucket: {index}: open transactions {state.open_transactions}, not {open_since(written)}")
        check_records(world, "the bucket", world.topics[topic_id], index, written, start, end, data)
        _check_times(world, image.objects_from(topic_id, index, state.log_start_offset), data)
    world.judge()


def _check_times(world: World, refs: Iterable[ObjectRef], data: list[bytes]) -> None:
    """No record is earlier than the manifest says of its object."""
    batches = [batch for piece in data for batch in iter_batches(piece)]
    for ref in refs:
        inside = b"".join(bytes(b) for header, b in batches if ref.base_offset <= header.base_offset < ref.end_offset)
        world.seen["objects of known times"] += ref.min_timestamp != TIMES_UNKNOWN and ref.late_ms >= 0
        problem = broken_bound(times_of_batches(inside), ref)
        if problem is not None:
            world.fail(f"{ref}: {problem}")


def check_end(world: World, broker: SimulatedBroker, root: str) -> None:
    """After grace times and sweeps: the bucket holds what the manifest names, and what is not ours."""
    from tests.simulation.world import KEYS

    image = world.bucket_image()
    named = {KEYS.full(key) for key in image.live_keys()}
    listed = {meta.key for meta in world.memory.list(root) if KEYS.parse(meta.key) is not None}
    if named - listed:
        world.fail(f"the manifest names what is not there: {sorted(named - listed)[:3]}")
    known = named | {index_key_of(key) for key in named if isinstance(KEYS.parse(key), KfsKey)}
    reported = {meta.key for meta in broker.converter.orphan_sweep.sweep_orphans().found}
    for key in sorted(listed - known):
        if key not in reported and not isinstance(KEYS.parse(key), KfsKey):
            world.fail(f"{key} is left, and no sweep reports it")
        if _is_provable(world, broker, image, key):
            world.fail(f"{key} is left, though everything in it is superseded")
    if image.reserved or image.deletions:
        world.fail(f"left to be deleted: {[*image.reserved, *image.deletions][:3]}")
    for upload in world.memory.list_multipart(root):
        world.fail(f"an unfinished upload of {upload.key} is left")
    for key, body in FOREIGN.items():
        if world.memory.get(key.format(id=world.cluster_id)) != body:
            world.fail(f"{key} was changed")
    world.judge()


def _is_provable(world: World, broker: SimulatedBroker, image: Any, key: str) -> bool:
    """Whether every partition that the object may hold data of has flushed beyond all that any broker accepted."""
    from tests.simulation.world import KEYS

    parsed = KEYS.parse(key)
    accepted: dict[Place, int] = {}
    for place, _, offset in world.accepted:
        accepted[place] = max(offset, accepted.get(place, 0))
    if isinstance(parsed, KlixKey):
        places = [(parsed.topic_id, parsed.partition)]
    elif isinstance(parsed, PackKey) and parsed.broker_epoch < broker.epoch:
        places = list(accepted)
    else:
        return False
    ends = [image.partition(*place) for place in places]
    return all(
        state is not None and accepted.get(place, -1) < state.end_offset
        for place, state in zip(places, ends, strict=True)
    )
