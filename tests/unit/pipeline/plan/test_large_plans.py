"""Plans of very many objects: by columns, without a Python object for each; and the packed form of their splits."""

from __future__ import annotations

import pickle
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kbroker.pipeline.options import parse_options
from kbroker.pipeline.plan import batch_plan
from kbroker.pipeline.plan.batch_plan import plan_ranges
from kbroker.pipeline.plan.plan_summary import PlanSummary
from kbroker.pipeline.plan.planned_objects import PlannedObject, pack
from kbroker.pipeline.plan.splits import OBJECT_COST_BYTES, Split
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import PartitionState, RefRow
from tests.unit.storage.read.object_bucket import NOW, topic_id

PARTITIONS, OBJECTS = 200, 100


def row(base: int, end: int, start: int, length: int, newest: int, file: int) -> RefRow:
    values = dict.fromkeys(RefRow._fields, 0) | {
        "base_offset": base, "end_offset": end, "start": start, "length": length, "crc32c": 7, "leader_epoch": 1,
        "max_timestamp": newest, "record_count": end - base, "file": file,
    }  # fmt: skip
    return RefRow(**values)


def state_of(image: ManifestImage, topic: str, partition: int) -> PartitionState:
    states = image.partitions.setdefault(topic_id(topic), {})
    return states.setdefault(partition, PartitionState(topic_id(topic), partition))


def packs(partitions: int = PARTITIONS, objects: int = OBJECTS) -> ManifestImage:
    """Packs with an image of every partition."""
    image, rng = ManifestImage("root/"), random.Random(1)
    for number in range(objects):
        etag = f'"{rng.getrandbits(128):032x}"'
        file = image.files.add(f"_packs/0000000001-{number:020d}.pack", partitions * 2000, etag, 1, NOW)
        start = 0
        for partition in range(partitions):
            length = rng.randrange(500, 2000)
            state = state_of(image, "t", partition)
            base = state.end_offset
            state.append(row(base, base + 10 + number % 3, start, length, NOW + number * 1000, file))
            state.end_offset = state.last_stable_offset = base + 10 + number % 3
            start += length
    return image


def view_of(image: ManifestImage, topics: dict[str, int]) -> Any:
    by_name = {name: SimpleNamespace(name=name, topic_id=topic_id(name), partitions=count, internal=False)
               for name, count in topics.items()}  # fmt: skip
    return SimpleNamespace(manifest=image, topics=SimpleNamespace(by_name=by_name), cluster_id="c")


def ranges_of(image: ManifestImage, topic: str) -> batch_plan.Ranges:
    return {(topic, state.partition): (0, state.end_offset) for state in image.states()}


def plan(image: ManifestImage, bounds: dict[str, Any], summary: PlanSummary, **options: str) -> list[Split]:
    given = parse_options({"object.store": "memory:", "subscribe": "t", **options})
    return plan_ranges(view_of(image, {"t": PARTITIONS}), given, ranges_of(image, "t"), 2, bounds, summary=summary)


def covered(splits: list[Split]) -> list[tuple[int, int, int]]:
    """(partition, first, stop) of all shares, adjacent ones joined."""
    found: list[tuple[int, int, int]] = []
    for share in sorted((share for split in splits for share in split.shares), key=lambda s: (s.partition, s.first)):
        if found and found[-1][0] == share.partition and found[-1][2] == share.first:
            found[-1] = (share.partition, found[-1][1], share.stop)
        else:
            found.append((share.partition, share.first, share.stop))
    return found


def test_a_plan_makes_no_python_object_of_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    image = packs()
    made = []
    for kind in (ManifestImage, PartitionState):
        name = "ref" if kind is ManifestImage else "row"
        real = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, at, real=real: made.append(at) or real(self, at))
    monkeypatch.setattr(PlannedObject, "__new__", lambda *given: pytest.fail("made on the driver"))
    summary = PlanSummary()
    splits = plan(image, {}, summary)
    assert summary.objects == PARTITIONS * OBJECTS
    assert summary.rows == sum(end for _, end in ranges_of(image, "t").values())
    assert len(made) <= PARTITIONS, "one look at the end of a partition"
    assert covered(splits) == [(partition, 0, end) for (_, partition), (_, end) in ranges_of(image, "t").items()]
    assert len(pickle.dumps(splits)) < 20 * summary.objects
    total = summary.bytes_read + OBJECT_COST_BYTES * summary.objects
    assert len(splits) == -(-total // batch_plan.SPLIT_BYTES_MAX), "bounded by bytes, not by partitions"


def test_splits_name_the_objects_that_the_manifest_has() -> None:
    image = packs()
    splits: list[Split] = pickle.loads(pickle.dumps(plan(image, {}, PlanSummary())))
    for split in splits:
        for share in split.shares:
            expected = [
                PlannedObject.of(ref)._replace(min_timestamp=PlannedObject._field_defaults["min_timestamp"], late_ms=-1)
                for ref in image.objects_from(topic_id("t"), share.partition, share.first)
                if ref.base_offset < share.stop
            ]
            assert split.objects_of(share) == expected


def test_bounds_leave_a_small_plan() -> None:
    image = packs()
    summary = PlanSummary()
    window = (NOW + 50_000, NOW + (1 << 40))
    splits = plan(image, {"timestamp": window, "partition": {7, 9}}, summary)
    assert (summary.objects, len(splits)) == (100, 2)
    assert len(pickle.dumps(splits)) < 5000
    everything = sum(state.data_bytes for state in image.states())
    assert summary.bytes_read + summary.bytes_skipped == everything
    assert summary.skipped_by_offset > 0.98 * everything


def test_many_splits_are_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    image = packs()
    total = PARTITIONS * OBJECTS * OBJECT_COST_BYTES
    assert len(plan(image, {}, PlanSummary())) >= total // batch_plan.SPLIT_BYTES_MAX
    monkeypatch.setattr(batch_plan, "MANY_SPLITS", 10)
    assert 9 <= len(plan(image, {}, PlanSummary())) <= 11


KEYS = [
    ("_packs/0000000001-00000000000000000007.pack", '"0123456789abcdef0123456789abcdef"'),
    (f"t-{topic_id('t').hex()}/3/00000000000000000009-2-ffffffffffffffff.obj", "ffffffffffffffffffffffffffffffff"),
    (f"t-{topic_id('t').hex()}/3/00000000000000000010.obj", "1f-ffffffffffffffff"),
    ("ns/t/0/segment-00000000000000000000.kfs", "any other form"),
    (f"t-{topic_id('t').hex()}/4/00000000000000000011.obj", '"0123456789abcdef0123456789abcdef-12"'),
]


@pytest.mark.parametrize("seed", range(10))
def test_packing_is_exact(seed: int) -> None:
    rng = random.Random(seed)
    image = ManifestImage(rng.choice(("", "a/b/")))
    files = [image.files.add(key, 1 << 40, etag, 1, NOW) for key, etag in rng.sample(KEYS, rng.randrange(1, 6))]
    rows, times = [], []
    for _ in range(rng.randrange(1, 50)):
        base = rng.choice((0, 5, (1 << 62) + rng.randrange(100)))
        one = row(base, base + rng.choice((1, 1000, 1 << 40)), rng.randrange(1 << 40), rng.randrange(1 << 32),
                  NOW, rng.choice(files))  # fmt: skip
        rows.append(one._replace(record_count=rng.randrange(one.end_offset - base + 1)))
        times.append((rng.choice((-(1 << 63), -1, NOW)), rng.choice((-1, 0, 1 << 31))))
    packed = pickle.loads(pickle.dumps(pack(image, np.array(rows), list(np.array(times).T))))
    found = packed.between(0, len(rows))
    assert [(one.min_timestamp, one.late_ms) for one in found] == times
    for one, ref in zip(found, map(image.ref, rows), strict=True):
        assert one == PlannedObject.of(ref)._replace(min_timestamp=one.min_timestamp, late_ms=one.late_ms)
    assert packed.between(1, 3) == found[1:3]


def klix(image: ManifestImage, partition: int, *lengths: int) -> None:
    """Objects of one partition, a record for each KiB."""
    state = state_of(image, "t", partition)
    for length in lengths:
        base, count = state.end_offset, max(1, length >> 10)
        key = f"t-{topic_id('t').hex()}/{partition}/{base:020d}.obj"
        file = image.files.add(key, length, '"0123456789abcdef0123456789abcdef"', 1, NOW)
        state.append(row(base, base + count, 0, length, NOW, file))
        state.end_offset = state.last_stable_offset = base + count


@pytest.mark.parametrize("least", [None, 50, 333])
@pytest.mark.parametrize("objects", [3, 48, 3000])
def test_a_skewed_partition_is_work_for_all_cores(objects: int, least: int | None) -> None:
    """One of 3 GiB among hundred small ones: in large objects or small ones."""
    image = ManifestImage()
    for partition in range(100):
        klix(image, partition, 50_000)
    klix(image, 100, *[(3 << 30) // objects] * objects)
    summary = PlanSummary()
    options = {} if least is None else {"minPartitions": str(least)}
    splits = plan(image, {}, summary, **options)
    costs = [sum(share.cost_bytes for share in split.shares) for split in splits]
    assert len(splits) >= (least or 12)
    assert max(costs) <= 1.1 * sum(costs) / len(splits)
    assert covered(splits) == [(partition, 0, end) for (_, partition), (_, end) in ranges_of(image, "t").items()]


def test_a_skewed_partition_is_cut_by_what_its_bounds_leave() -> None:
    image = ManifestImage()
    klix(image, 0, *[256 << 20] * 12)
    klix(image, 1, *[1 << 20] * 12)
    first, stop = 1 << 20, 3 << 20  # of 3 GiB two
    splits = plan(image, {"offset": (first, stop - 1)}, PlanSummary())
    costs = [sum(share.cost_bytes for share in split.shares) for split in splits]
    assert covered(splits) == [(0, first, stop)]
    assert len(splits) in (8, 9)
    assert max(costs) <= 1.1 * (2 << 30) / 8
