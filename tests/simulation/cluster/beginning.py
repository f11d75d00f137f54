"""The bucket with which every history begins: three registered brokers, two topics and the internal one, all led."""

from __future__ import annotations

from typing import Any

from kbroker.cluster.features import FEATURE, LEADERSHIP
from kbroker.cluster.image import TRANSACTION_STATE
from kbroker.cluster.records import FeatureLevel, TopicCreated, payload
from kbroker.storage.formats.object_keys import pack_key
from kbroker.storage.ledger.claim_format import ClaimRecord, encode_claim
from kbroker.storage.ledger.numbered_log_format import FrameKind, encode_frame, encode_seal, record_name
from kbroker.storage.manifest.leadership import Mode, Move, NewPartition, Registration
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.manifest.record_encode import encode_json
from tests.simulation.cluster import codec
from tests.simulation.cluster.bucket import Bucket
from tests.simulation.cluster.flushing import delta_of_flush, file_entry
from tests.simulation.cluster.records import Data, Entry, LogState
from tests.simulation.cluster.topics import DURABILITY
from tests.simulation.cluster.truth import KEYS, Body

EPOCH = 1
NONCE = bytes(16)
EMPTY = ManifestRecord(1, None, (), {}, (), (), ())


def fill(
    bucket: Bucket, cluster: str, topic_ids: list[bytes], modes: list[Mode], partitions: list[int], leaders: list[int]
) -> None:
    """Broker number n is of directory d(n-1) on host(n-1), with nonce n. The internal topic is the first. `leaders`: of
    each partition."""
    claim = ClaimRecord(EPOCH, "d0", "host0", 1, 1, f"{0:032x}", 0, False, cluster=cluster)
    bucket.create(f"{KEYS.claims_dir}/{EPOCH:010d}.json", encode_claim(claim))
    places = [
        (id_, n, mode)
        for id_, count, mode in zip(topic_ids, partitions, [max(modes), *modes], strict=True)
        for n in range(count)
    ]
    registered = EMPTY._replace(
        registrations=tuple(
            Registration(n, f"d{n - 1}", n - 1, f"n{n}", f"host{n - 1}", "", "", "", True) for n in (1, 2, 3)
        ),
        new_partitions=tuple(NewPartition(*place) for place in places),
    )
    led = EMPTY._replace(
        moves=tuple(
            Move(*place[:2], leader, EPOCH + n, (f"d{leader - 1}", EPOCH + n), False, False)
            for n, (place, leader) in enumerate(zip(places, leaders, strict=True), 1)
        ),
    )
    _write(bucket, KEYS.metadata_dir, "changes", [_topics(topic_ids, modes, partitions, LEADERSHIP)])
    _write(bucket, KEYS.manifest_dir, "manifest", [codec.encode_record(record) for record in (registered, led)])


def fill_before(
    bucket: Bucket, topic_ids: list[bytes], modes: list[Mode], partitions: list[int], producer: int
) -> None:
    """As a single broker of the release before has left it: stopped, at that release's level, all of it in objects.
    Partitions of the last topic have nothing yet."""
    claim = ClaimRecord(EPOCH, "before", "before", 1, 1, f"{0:032x}", 0, False, released=True)
    bucket.create(f"{KEYS.claims_dir}/{EPOCH:010d}.json", encode_claim(claim))
    places = [(topic_ids[1], n) for n in range(partitions[1])]
    body = Body({place: [Entry(place, n, EPOCH, Data(producer, n)) for n in (0, 1)] for place in places})
    key = pack_key(EPOCH, 1)
    bucket.create(KEYS.root + key, body)
    nothing = LogState({}, {})
    states = [nothing.after(entries) for entries in body.values()]
    deltas = {
        place: delta_of_flush(nothing, state, body[place], 0, 2, n)._replace(leader_epochs=state.epochs)
        for n, (place, state) in enumerate(zip(places, states, strict=True))
    }
    flushed = EMPTY._replace(files=(file_entry(key, body),), partitions=deltas)
    _write(bucket, KEYS.metadata_dir, "changes", [_topics(topic_ids, modes, partitions, LEADERSHIP - 1)])
    _write(bucket, KEYS.manifest_dir, "manifest", [encode_json(flushed, codec.BEFORE)])


def _topics(topic_ids: list[bytes], modes: list[Mode], partitions: list[int], level: int) -> Any:
    configs = [{}, *({DURABILITY: mode.name.lower()} for mode in modes)]
    names = (TRANSACTION_STATE, "x", "y")
    topics = [TopicCreated(*topic) for topic in zip(names, topic_ids, partitions, configs, strict=True)]
    return payload([FeatureLevel(FEATURE, level), *topics])


def _write(bucket: Bucket, directory: str, kind: str, payloads: list[Any]) -> None:
    bucket.create(f"{directory}/{record_name(0, 1)}", encode_seal(1, 0, NONCE, EPOCH))
    for number, content in enumerate(payloads, 2):
        data = encode_frame(FrameKind.RECORD, number, EPOCH, NONCE, {"kind": kind, "payload": content})
        bucket.create(f"{directory}/{record_name(EPOCH, number)}", data)
