"""Random histories through several rounds: the fast passes against their twin and against the model."""

from __future__ import annotations

import os

import pytest

from kbroker._fast.records.batch_check import check_batches
from kbroker._fast.records.compact_filter import BatchFilter
from kbroker._fast.records.compact_scan import KeyScan
from kbroker._fast.records.key_map import SLOT_BYTES, KeyMap
from kbroker._fast.records.section_codec import PlainSections
from tests.reference.compaction_history import History, Model
from tests.reference.compaction_twin import HORIZON, build_map, clean, parse, plain_bytes, split
from tests.reference.record_twin import crc32c

DAY_MS = 86_400_000
SEEDS = int(os.environ.get("KBROKER_FUZZ_SECONDS", "4")) * 15


@pytest.mark.parametrize("chunk", range(4))
def test_rounds_equal_the_twin_and_the_model(chunk: int) -> None:
    for seed in range(chunk * SEEDS // 4, (chunk + 1) * SEEDS // 4):
        try:
            _one_history(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def _one_history(seed: int) -> None:
    history = History(seed, null_keys=seed % 3 != 0, transactions=seed % 4 != 0)
    rng = history.rng
    model = Model(history, DAY_MS)
    log: list[bytes] = []
    taken = clean_offset = 0
    for _ in range(5):
        for _ in range(rng.randrange(1, 30)):
            history.step()
        if rng.random() < 0.5:
            history.end_all()
        log += history.batches[taken:]
        taken = len(history.batches)
        now_ms = history.now_ms
        limit = rng.choice([1000, 1000, 6])
        key_map = KeyMap(-(-limit * 10 // 9) * SLOT_BYTES + SLOT_BYTES)
        limit = key_map.limit
        aborted, end = history.aborted, history.last_stable_offset
        producers = {p: state for p, state in history.producers.items() if p != 8}  # 8 has expired
        sections = PlainSections((0, 3000, 1 << 20)[seed % 3])
        scan = KeyScan(key_map, clean_offset, end, aborted, sections)
        for batch in log:
            if not scan.feed(batch):
                break
        parsed = [parse(batch) for batch in log]
        offsets, map_end = build_map(parsed, clean_offset, end, aborted, limit)
        assert scan.next_offset == map_end
        assert key_map.size == len(offsets)
        assert all(key_map.get(key) == offset for key, offset in offsets.items())
        if map_end == clean_offset:
            continue
        expected, gone = clean(parsed, offsets, map_end, now_ms, DAY_MS, aborted, producers)
        batch_filter = BatchFilter(key_map, map_end, now_ms, DAY_MS, aborted, producers, sections)
        for start in range(0, len(log), 7):
            batch_filter.feed(b"".join(log[start : start + 7]))
        output, _ = batch_filter.take()
        before, log = log, split(output)
        check_batches(output, 0)
        assert [parse(batch) for batch in log] == expected
        for batch, twin in zip(log, expected, strict=True):
            assert int.from_bytes(batch[17:21], "big") == crc32c(batch[21:])
            if twin.raw:
                assert batch == twin.raw, "a batch that lost nothing was not copied byte for byte"
            elif not twin.attributes & 7:
                assert batch == plain_bytes(twin)
        kept = set(log)
        assert batch_filter.changed_end == max((parse(b).next_offset for b in before if b not in kept), default=0)
        horizons = [b.base_timestamp for b in expected if b.attributes & HORIZON and b.base_timestamp > now_ms]
        assert batch_filter.horizon_ms == max(horizons, default=-1)
        assert sorted(batch_filter.aborted_without_batches()) == gone
        model.check(expected, map_end, now_ms)
        clean_offset = map_end
        history.now_ms += rng.choice([0, 5_000, DAY_MS + 1])
