"""A task on objects that are not what was written: an error that names the object, or all rows, but never fewer."""

from __future__ import annotations

import dataclasses

import pytest

from kbroker.errors import CorruptionError
from kbroker.limits import MIB
from kbroker.pipeline import object_batches, object_index
from kbroker.pipeline.data_loss import DataLossError
from kbroker.pipeline.plan import batch_plan
from kbroker.pipeline.plan.splits import WHOLE_BYTES, Split
from kbroker.pipeline.split_reader import read_split
from kbroker.storage.formats.klix import ENTRY_BYTES
from tests.unit.pipeline.cluster_bucket import ClusterBucket
from tests.unit.storage.read.object_bucket import batches

OPTIONS = {"object.store": "memory:", "subscribe": "t", "columns": "offset,value", "splitBytes": str(100 * MIB)}
KINDS = ("pack", "small", "large", "pieces")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, kind: str) -> ClusterBucket:
    if kind == "pieces":
        monkeypatch.setattr(object_index, "PIECE_BYTES", 20 * ENTRY_BYTES)
        monkeypatch.setattr(object_batches, "TAIL_BYTES", 40)
    made = ClusterBucket()
    made.topic("t")
    monkeypatch.setattr("kbroker.pipeline.bucket_view.store_of", lambda place: made.store)
    monkeypatch.setattr("kbroker.pipeline.object_batches.store_of", lambda place: made.store)
    return made


class Written:
    """One object with all of a topic, and what a query reads of it."""

    def __init__(self, bucket: ClusterBucket, kind: str) -> None:
        """ "pieces": it is large, and its index is read in pieces."""
        self._bucket = bucket
        if kind == "pack":
            bucket.topic("other")
            self.key = bucket.pack([("other", 0, batches(0, 3)), ("t", 0, batches(0, 8))])
        else:
            self.key = bucket.klix("t", 0, batches(0, 8) if kind == "small" else batches(0, 300, 3, 5000))
        self.data = bucket.store.get(self.key)
        (self._split,) = batch_plan.plan_batch(OPTIONS, 1, {})
        (self.ref,) = self._split.objects_of(self._split.shares[0])
        self.rows = self.read(self._split)

    def read(self, split: Split, **options: str) -> list[tuple]:
        return [tuple(row.values()) for batch in read_split({**OPTIONS, **options}, split) for row in batch.to_pylist()]

    def with_bytes(self, data: bytes, **options: str) -> list[tuple]:
        """What is read where the store has `data` under the key, as the version that the plan means."""
        self._bucket.store.put(self.key, data)
        etag = self._bucket.store.head(self.key).etag
        objects = dataclasses.replace(self._split.objects, other_etags={0: etag}, _unpacked=None)
        return self.read(dataclasses.replace(self._split, objects=objects), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_anywhere_is_an_error_or_changes_nothing(bucket: ClusterBucket, kind: str) -> None:
    written = Written(bucket, kind)
    first, stop = written.ref.start, written.ref.start + written.ref.length
    assert (written.ref.length > WHOLE_BYTES) is (kind in ("large", "pieces"))
    near = [*range(first, first + 200, 3), *range(stop - 120, stop)]
    positions = (
        range(first, stop) if kind in ("pack", "small") else [*near, *range(first, stop, written.ref.length // 40)]
    )
    found = 0
    for position in positions:
        data = bytearray(written.data)
        data[position] ^= 1 << position % 8
        try:
            assert written.with_bytes(bytes(data), failOnDataLoss="false") == written.rows, position
        except CorruptionError as error:
            assert written.key in str(error)  # noqa: PT017
            found += 1
    assert found > len(positions) * 0.9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["empty", "head", "middle", "index", "tail"])
def test_a_truncated_object_is_an_error(bucket: ClusterBucket, kind: str, part: str) -> None:
    written = Written(bucket, kind)
    first, length = written.ref.start, written.ref.length
    kept = {"empty": 0, "head": 30, "middle": length // 2, "index": length - 40, "tail": length - 1}[part]
    with pytest.raises((CorruptionError, DataLossError), match=written.key):
        written.with_bytes(written.data[: first + kept])


@pytest.mark.parametrize("kind", KINDS)
def test_another_object_of_the_same_length_is_an_error(bucket: ClusterBucket, kind: str) -> None:
    written = Written(bucket, kind)
    for data in (bytes(len(written.data)), b"\xff" * len(written.data), written.data[::-1]):
        with pytest.raises(CorruptionError, match=written.key):
            written.with_bytes(data)
