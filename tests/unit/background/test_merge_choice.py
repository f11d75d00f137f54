"""Planning a window of references at a time finds the merges that planning all at once finds."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

import kbroker.background.merge_choice as merge_choice
from kbroker.background.merge_choice import MergeChoice
from kbroker.clock import ManualClock
from kbroker.storage.formats.object_keys import Author, authored_pack_key, klix_key, pack_key, parse_key
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import PACK
from kbroker.storage.manifest.record_apply import apply_payload
from kbroker.storage.rewrite.merge_plan import Candidate, MergeLimits, plan_merges

TOPIC = bytes(range(16))
BOUNDS = MergeLimits(
    fan_in=4, count_max=5, object_bytes_max=60, below_bytes=(10, 25), enough_bytes=(30, 50),
    pack_age_ms=(1_000_000, 2_000_000), span_ms=5_000,
)  # fmt: skip
CONFIG = SimpleNamespace(
    segment_ms=10**12, segment_bytes=10**12, retention_ms=-1, retention_bytes=-1, delete_enabled=True, compacted=False,
    max_compaction_lag_ms=10**12, kfs=False, file_delete_delay_ms=7,
)  # fmt: skip


def image_of(rng: random.Random, count: int) -> ManifestImage:
    image = ManifestImage()
    offset = 0
    for number in range(count):
        generation = rng.choice([0, 0, 0, 0, 1, 1, 2])
        rewrite = f"{number:016x}" if generation else ""
        packed = rng.random() < 0.4
        key = pack_key(1, number, generation) if packed else klix_key("t", TOPIC, 0, offset, generation, rewrite)
        if rng.random() < 0.3:
            author = Author(rng.randint(1, 3), number)
            key = klix_key("t", TOPIC, 0, offset, generation, author=author)
            key = authored_pack_key(author, generation) if packed else key
        key = key if rng.random() < 0.95 else f"odd-{number}"
        end, length, time_ms = offset + rng.randint(1, 3), rng.randint(1, 30), 1_000_000 + number * rng.randint(1, 900)
        row = [0, offset, end, 0, length, 1, 1, rng.choice([time_ms, -1]), 1]
        delta = {"p": {TOPIC.hex(): {"0": {"r": [row]}}}}
        apply_payload(image, {"v": 1, "t": 1_000_000 + number * 3, "f": [[key, 30, "e", 1]], **delta})
        offset = end
    return image


def choice_of(image: ManifestImage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> MergeChoice:
    partition = SimpleNamespace(topic_id=TOPIC, index=0, leader_epoch=1)
    topic = SimpleNamespace(name="t", topic_id=TOPIC, config=CONFIG, partitions=[partition])
    monkeypatch.setattr(MergeChoice, "_bounds_of", lambda self, config: BOUNDS)
    table = SimpleNamespace(by_id={TOPIC: topic})
    return MergeChoice(table, SimpleNamespace(image=image), clock, BOUNDS)  # type: ignore[arg-type]


def candidates_of(image: ManifestImage) -> list[Candidate]:
    found = []
    for ref in image.objects_from(TOPIC, 0):
        parsed = parse_key(ref.key)
        generation = getattr(parsed, "generation", 2)
        newest = ref.max_timestamp if ref.max_timestamp >= 0 else ref.created_ms
        found.append(Candidate(ref.length, generation, ref.kind == PACK and parsed is not None, newest, ref.created_ms))
    return found


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("window", [6, 9, 1000])
def test_windows_find_what_one_plan_finds(seed: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_choice, "WINDOW_ROWS", window)
    rng = random.Random(seed)
    clock = ManualClock(rng.choice([1_500_000, 2_500_000, 10_000_000]))
    image = image_of(rng, rng.randint(0, 60))
    choice = choice_of(image, clock, monkeypatch)
    refs = list(image.objects_from(TOPIC, 0))
    plan = plan_merges(candidates_of(image), BOUNDS, clock.now_ms())
    merges = list(choice.due())
    assert [merge.inputs for merge in merges] == [tuple(refs[first:last]) for first, last in plan.due]
    for merge, (first, _) in zip(merges, plan.due, strict=True):
        assert merge.generation == candidates_of(image)[first].generation + 1
    if refs and not plan.due:
        expected = refs[plan.settled].base_offset if plan.settled < len(refs) else refs[-1].end_offset
        assert choice._settled[TOPIC, 0] == expected
        look = choice._looks[TOPIC, 0]
        assert (look.appended_count, look.appended_bytes) == (
            len(refs) + plan.room_count,
            sum(ref.length for ref in refs) + plan.room_bytes,
        )


def test_a_partition_is_not_planned_again_before_a_merge_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(1_000_000)
    image = ManifestImage()
    choice = choice_of(image, clock, monkeypatch)
    looked: list[int] = []
    windows = MergeChoice._windows
    monkeypatch.setattr(MergeChoice, "_windows", lambda self, *args: looked.append(1) or windows(self, *args))
    for number in range(4):
        row = [0, number, number + 1, 0, 2, 1, 1, 1, 1]
        payload = {"f": [[klix_key("t", TOPIC, 0, number), 9, "e", 1]], "p": {TOPIC.hex(): {"0": {"r": [row]}}}}
        apply_payload(image, {"v": 1, "t": 1_000_000, **payload})
        merges = list(choice.due())
    assert len(looked) == 2  # the first one alone, and the fan-in
    assert [len(merge.inputs) for merge in merges] == [4]


def test_objects_that_changed_since_the_plan_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(1_000_000)
    image = ManifestImage()
    choice = choice_of(image, clock, monkeypatch)
    for number in range(10):
        row = [0, number, number + 1, 0, 9, 1, 1, 1, 1]
        payload = {"f": [[klix_key("t", TOPIC, 0, number), 9, "e", 1]], "p": {TOPIC.hex(): {"0": {"r": [row]}}}}
        apply_payload(image, {"v": 1, "t": 1_000_000, **payload})
    found = choice.due()
    assert [ref.base_offset for ref in next(found).inputs] == [0, 1, 2, 3, 4]
    apply_payload(image, {"v": 1, "t": 1, "p": {TOPIC.hex(): {"0": {"s": 6}}}})
    assert list(found) == []
