"""The compact job's passes without Spark: slice after slice in this process, keys joined with a dictionary.

Beside them a broker's storage that is compacted so, or by the broker itself.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np

from kbroker import limits
from kbroker._fast.records.records import build_batch, iter_batches, iter_records
from kbroker.background.compaction_cleaner import Cleaner
from kbroker.background.compaction_round import CleanerSettings
from kbroker.background.proposals import ProposalInbox
from kbroker.background.retention import Retention
from kbroker.clock import Clock
from kbroker.cluster.image import TopicImage
from kbroker.pipeline.jobs.compact_leading import with_a_first_output
from kbroker.pipeline.jobs.compact_plan import PartitionPlan, cut_slices, plan_partition, plan_second_pass, swap_of
from kbroker.pipeline.jobs.compact_tasks import UNPLACED, CompactRules, Keys, scan_slice, write_slice
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.storage.read.object_audit import BucketAudit
from kbroker.storage.rewrite.object_swap import PartitionLocks
from kbroker.storage.rewrite.swap_proposal import COMPACT, SWAPPED, Proposal, Swap
from kbroker.storage.rewrite.swap_proposal_job import ProposingJob
from kbroker.storage.stores.object_store import ObjectStore
from tests.unit.storage.flush.flush_harness import KEYS, NOW_MS, ONCE, Storage, topic_id

DAY_MS = 86_400_000
COMPACTED = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": 0,
    "segment_ms": 1,
    "delete_retention_ms": DAY_MS,
}


def joined(scanned: dict[int, Keys], plan_slices: list[Any]) -> dict[int, Keys]:
    """The newest offsets of the keys of each slice, as the shuffle gives them."""
    newest: dict[tuple[int, int], int] = {}
    for item in plan_slices:
        for low, high, offset in zip(*(column.tolist() for column in scanned[item.number]), strict=True):
            newest[low, high] = max(newest.get((low, high), UNPLACED), offset)
    found: dict[int, Keys] = {}
    for item in plan_slices:
        low, high, _ = scanned[item.number]
        pairs = zip(low.tolist(), high.tolist(), strict=True)
        offsets = np.array([newest[pair] for pair in pairs], np.int64)
        known = offsets > UNPLACED
        found[item.number] = (low[known], high[known], offsets[known])
    return found


class SliceCompaction:
    """One run over one topic of an image."""

    def __init__(
        self, store: ObjectStore, keys: ObjectKeys, image: ManifestImage, clock: Clock, topic: TopicImage, config: Any
    ) -> None:
        self.job = ProposingJob(store, keys, clock, COMPACT, topic.name, topic.topic_id)
        self.store, self.keys, self.image, self.clock = store, keys, image, clock
        self.topic, self.config = topic, config
        self.settings: dict[str, Any] = {}

    def swaps(self, slice_bytes: int) -> list[Swap]:
        """What is to be proposed; its outputs are stored."""
        states = [self.image.partition(self.topic.topic_id, index) for index in range(self.topic.partitions)]
        now_ms = self.clock.now_ms()
        plans = [
            plan
            for state in states
            if state is not None
            and (plan := plan_partition(self.image, state, self.config, now_ms, limits.PRODUCER_ID_EXPIRATION_MS))
        ]
        self.job.announce([plan.partition for plan in plans])
        rules = CompactRules(
            self.topic.name, self.topic.topic_id, self.job.id, os.urandom(16), now_ms,
            self.config.delete_retention_ms, self.config.segment_bytes, **self.settings,
        )  # fmt: skip
        slices = cut_slices(plans, slice_bytes)
        return [swap for plan in plans if (swap := self._swap(rules, plan, slices)) is not None]

    def _swap(self, rules: CompactRules, plan: PartitionPlan, slices: list[Any]) -> Swap | None:
        own = [item for item in slices if item.partition == plan.partition]
        scans, scanned = {}, {}
        for item in own:
            scans[item.number], scanned[item.number] = scan_slice(self.store, rules, plan, item)
        map_end, tasks = plan_second_pass(plan, own, scans)
        if not tasks:
            return None
        newest = joined(scanned, own)
        results = {
            task.slice.number: write_slice(self.store, self.keys, rules, plan, task, newest[task.slice.number])
            for task in tasks
        }
        number, moved = with_a_first_output(self.store, self.keys, self.job.id, self.topic, plan, tasks, results)
        if moved is not None:
            results[number] = moved
        return swap_of(plan, map_end, tasks, results, self.keys.root)


class Side:
    """A broker's storage with a compacted topic `t`; `by_broker` and `by_job` compact it."""

    def __init__(self, directory: Path, seed: int = 0, store: ObjectStore | None = None, partitions: int = 1) -> None:
        directory.mkdir()
        self.directory = directory
        self._partitions = partitions
        self._pack_below_bytes = random.Random(seed).choice([0, 64 * 1024])
        self._open(store, 1)

    def _open(self, store: ObjectStore | None, epoch: int) -> None:
        self.s = Storage(self.directory, store, epoch=epoch, pack_below_bytes=self._pack_below_bytes)
        self.s.add_topic("t", self._partitions, segment_bytes=1 << 20, **COMPACTED)
        self.s.start()
        self.retention = Retention(self.s.table, self.s.manifest, self.s.store, self.s.clock)
        self.locks = PartitionLocks()
        self.inbox = ProposalInbox(
            self.s.table, self.s.manifest, self.s.store, self.s.store, KEYS, self.s.clock, self.s.claim,
            broker_epoch=epoch, locks=self.locks,
        )  # fmt: skip

    def restart(self) -> None:
        """The broker is killed, and starts again on its data directory."""
        clock, epoch = self.s.clock, self.s.table.leader_epoch
        self.s.close()
        self._open(self.s.store, epoch + 1)
        self.s.clock.advance((clock.now_ms() - self.s.clock.now_ms()) / 1000)

    def state(self, partition: int = 0) -> PartitionState:
        found = self.s.manifest.image.partition(topic_id("t"), partition)
        assert found is not None
        return found

    def write(self, *pairs: tuple[bytes, bytes | None], partition: int = 0, **options: Any) -> None:
        """One batch, flushed."""
        self.s.append("t", partition, build_batch([(key, value, NOW_MS, ()) for key, value in pairs], **options))
        self.s.flush()
        self.s.clock.advance(1)

    def contents(self, partition: int = 0) -> dict[int, bytes | None]:
        """offset -> value of the data records in objects."""
        found: dict[int, bytes | None] = {}
        for header, batch in iter_batches(self.s.stored("t", partition), check_crc=True):
            if not header.is_control:
                found |= {record.offset: record.value for record in iter_records(batch)}
        return found

    def by_broker(self) -> bool:
        """One round of the broker's own; False when there was nothing to do."""
        cleaner = Cleaner(
            self.s.table, self.s.manifest, self.s.store, KEYS, self.s.clock,
            settings=CleanerSettings(io_bytes_per_second=0.0), locks=self.locks,
        )  # fmt: skip
        return cleaner.run_once() is not None

    def run(self, **settings: Any) -> SliceCompaction:
        """A run of the job that has not begun."""
        topic = TopicImage("t", topic_id("t"), self._partitions, {})
        config = self.s.table.by_name["t"].config
        run = SliceCompaction(self.s.store, KEYS, self.s.manifest.image, self.s.clock, topic, config)
        run.settings = settings
        return run

    def proposed(self, slice_bytes: int = 1 << 30, **settings: Any) -> tuple[ProposingJob, Proposal] | None:
        """A run of the job up to its proposal; None when there was nothing to do."""
        run = self.run(**settings)
        swaps = run.swaps(slice_bytes)
        if not swaps:
            run.job.abandon()
            return None
        proposal = run.job.propose(swaps, ONCE)
        run.job.drop_staged([KEYS.full(file.key) for swap in swaps for file in swap.files])
        return run.job, proposal

    def by_job(self, slice_bytes: int = 1 << 30, **settings: Any) -> bool:
        """One run of the job, answered by the broker; False when there was nothing to do."""
        proposed = self.proposed(slice_bytes, **settings)
        if proposed is None:
            return False
        job, _ = proposed
        assert self.inbox.look() == 1
        answer = job.answer()
        assert answer is not None
        assert answer.refused is None
        assert {outcome.status for outcome in answer.outcomes} == {SWAPPED}, answer
        job.close()
        return True

    def stored_keys(self) -> set[str]:
        """Of data objects, as the store has them."""
        return {meta.key for meta in self.s.store.list(KEYS.root) if KEYS.parse(meta.key)}

    def check(self) -> None:
        """No fault; once all times are over, nothing but what is live, and no trace of proposals."""
        assert list(BucketAudit(self.s.store, KEYS, self.s.manifest.image).faults()) == []
        self.s.clock.advance(61)
        self.retention.delete_once()
        assert self.stored_keys() == {KEYS.full(key) for key in self.s.manifest.image.live_keys()}
        assert not self.s.manifest.image.reserved
        assert [meta.key for meta in self.s.store.list(KEYS.full("_proposals/"))] == []
