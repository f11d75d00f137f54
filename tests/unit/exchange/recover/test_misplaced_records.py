"""Records of version 3 that are whole, but not where they belong: swapped with another one, or of another cluster."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kbroker.errors import CorruptionError
from kbroker.storage.ledger.numbered_log_format import decode_frame, encode_frame
from kbroker.storage.manifest.checkpoints.checkpoint import write_checkpoint
from tests.unit.exchange.recover.led_cluster import LedCluster
from tests.unit.exchange.recover.recover_bucket import TOPICS, topic_id
from tests.unit.exchange.recover.test_recover_manifest import data_records


@pytest.fixture(scope="module")
def cluster() -> LedCluster:
    """It has started twice, with registrations, moves, appends, replacements and transactions."""
    made = LedCluster()
    made.fill()
    made.stop()
    return made


def payload_at(cluster: LedCluster, key: str) -> bytes:
    payload = decode_frame(cluster.store.get(key), key).content["payload"]
    assert isinstance(payload, bytes)
    return payload


def put(cluster: LedCluster, key: str, payload: bytes) -> None:
    """Another payload in the frame of a record, whose CRCs hold."""
    frame = decode_frame(cluster.store.get(key), key)
    content = {**frame.content, "payload": payload}
    cluster.store.put(key, encode_frame(frame.kind, frame.number, frame.epoch, frame.nonce, content))


def refusal(cluster: LedCluster) -> str:
    """Why the manifest cannot be loaded; empty if it can."""
    try:
        cluster.loaded()
    except CorruptionError as error:
        return str(error)
    return ""


def test_swapped_records_are_refused_by_name_or_change_nothing(cluster: LedCluster) -> None:
    """Those that change nothing say things of different partitions."""
    expected, keys = cluster.facts(cluster.loaded()), data_records(cluster)
    refused = 0
    for pair in pairwise(keys):
        before = [payload_at(cluster, key) for key in pair]
        for key, payload in zip(pair, reversed(before), strict=True):
            put(cluster, key, payload)
        reason = refusal(cluster)
        if reason:
            assert any(f"manifest record {int(key[-24:-4])}: " in reason for key in pair)
            refused += 1
        else:
            assert cluster.facts(cluster.loaded()) == expected
        for key, payload in zip(pair, before, strict=True):
            put(cluster, key, payload)
    assert refused >= len(keys) // 2
    assert cluster.facts(cluster.loaded()) == expected


def test_records_of_another_cluster_are_refused_by_name(cluster: LedCluster) -> None:
    """Its topics have other ids, and once a broker is registered a change makes no row."""
    expected = write_checkpoint(cluster.loaded())
    checked = 0
    for key in data_records(cluster):
        before = foreign = payload_at(cluster, key)
        for name in TOPICS:
            ours, theirs = topic_id(name), topic_id(f"{name} elsewhere")
            foreign = foreign.replace(ours, theirs).replace(ours.hex().encode(), theirs.hex().encode())
        if foreign == before:
            continue  # it speaks of brokers alone
        put(cluster, key, foreign)
        with pytest.raises(CorruptionError, match=rf"manifest record {int(key[-24:-4])}: .* has no row"):
            cluster.loaded()
        put(cluster, key, before)
        checked += 1
    assert checked > 5
    assert write_checkpoint(cluster.loaded()) == expected
