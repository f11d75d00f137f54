"""A broker whose partitions are led in turns by its own directory and by others: rows are set as records would."""

from __future__ import annotations

import random
from typing import NamedTuple

from kbroker.storage.flush.plan import PlanLimits, plan_flush
from kbroker.storage.manifest.partition_state import PartitionState
from kbroker.storage.manifest.tails import tail_epoch
from tests.unit.storage.flush.flush_harness import KIB, NOW_MS, Storage, batch, topic_id

OWN, OTHER = "dir-1", "dir-2"


class Entry(NamedTuple):
    """A batch that was appended here."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    lsn: int
    data: bytes


class Row:
    """What the ledger has of one partition, and every entry of it in this directory's WAL."""

    def __init__(self, name: str) -> None:
        self.state = PartitionState(topic_id(name), 0)
        self.entries: list[Entry] = []

    @property
    def is_led_here(self) -> bool:
        return self.state.tail is not None and self.state.tail[0] == OWN

    def move(self, leader_epoch: int, directory: str | None) -> None:
        """As a record moves the partition; `directory` None: the tail stays."""
        state = self.state
        kept = tuple(epoch for epoch in state.leader_epochs if epoch[1] < state.end_offset)
        state.leader_epochs = (*kept, (leader_epoch, state.end_offset))
        state.leader_epoch = leader_epoch
        if directory is not None:
            state.tail = directory, leader_epoch


class Generations:
    """`restart` ends the process as a crash does, and its directory comes back under a new leader epoch."""

    def __init__(self, directory, names, seed=0, rows=None):
        self.rng = random.Random(seed)
        self.rows = rows or {name: Row(name) for name in names}
        self.epoch = max([10, *(row.state.leader_epoch for row in self.rows.values())])
        self.flushed_lsn = 0
        self._directory = directory
        for row in self.rows.values() if rows is None else ():
            row.move(self.next_epoch(), OWN)
        self.storage = self._start()

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    def _start(self) -> Storage:
        epoch = self.next_epoch()
        storage = Storage(self._directory, epoch=epoch, data_dir_id=OWN)
        image = storage.manifest.image
        if self.flushed_lsn:
            image.wal_flushed[OWN] = self.flushed_lsn
        for name, row in self.rows.items():
            if row.is_led_here:
                row.move(epoch, None)
            image.partitions[topic_id(name)] = {0: row.state}
            storage.add_topic(name)
        return storage.start()

    def hot(self, name):
        return self.storage.table.partition(name, 0)

    # -- what happens ------------------------------------------------------------------------------------------------

    def append(self, name, records=1, size=5):
        """Appends a batch to a partition that is led here."""
        values = [self.rng.randbytes(size) for _ in range(records)]
        base = self.storage.append(name, 0, batch(values, timestamp=NOW_MS + self.rng.randrange(1000)))
        hot = self.hot(name)
        lsn = int(hot.entries(0, 1 << 60)["lsn"][-1])
        self.storage.sync()
        self.rows[name].entries.append(self.read(name, base, lsn))

    def read(self, name, base, lsn=-1) -> Entry:
        """The batch at an offset."""
        data = self.hot(name).read_bytes(base, base + 10, 1)
        return Entry(base, _end(data), int.from_bytes(data[12:16], "big"), lsn, data)

    def flush_some(self, name):
        """A part of the partition is committed, and the log's flushed position does not move: other parts wait."""
        state = self.rows[name].state
        ends = [entry.end_offset for entry in self.tail(name)]
        if ends:
            state.end_offset = self.rng.choice(ends)

    def flush(self):
        """Everything is flushed."""
        for name, row in self.rows.items():
            row.state.end_offset = self.end(name)
            if row.is_led_here:
                self.hot(name).note_flushed(row.state.end_offset)
        self.flushed_lsn = self.storage.wal.durable_lsn
        self.storage.wal.trim(self.flushed_lsn)

    def renew(self, name):
        """The leader resigns to itself: another epoch, the same tail."""
        self.hot(name).leader_epoch = self.next_epoch()
        self.rows[name].move(self.epoch, None)

    def move_away(self, name, records):
        """Another directory leads the partition from the row's end, and appends. What only this log has is given up."""
        row = self.rows[name]
        self.storage.table.remove_topic(topic_id(name))
        row.move(self.next_epoch(), OTHER)
        row.state.end_offset += records

    def come_back(self, name):
        """The partition is led here again, with a new tail."""
        row, table = self.rows[name], self.storage.table
        table.remove_topic(topic_id(name))
        table.leader_epoch = self.next_epoch()
        row.move(table.leader_epoch, OWN)
        self.storage.add_topic(name)
        self.hot(name).tail_epoch = tail_epoch(row.state, OWN)

    def tear(self):
        """Ends the process in the middle of the last write: its batch has no valid CRC any more."""
        self.storage.close()
        row = max(self.rows.values(), key=lambda row: row.entries[-1].lsn if row.entries else -1)
        entry = row.entries.pop()
        files = sorted(path for path in self._directory.glob("*.wal") if int(path.stem) <= entry.lsn)
        with files[-1].open("r+b") as file:
            file.seek(4096 + entry.lsn - int(files[-1].stem) + len(entry.data) - 1)
            last = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([last[0] ^ 1]))

    def step(self):
        """Something happens to a partition; returns its name."""
        rng = self.rng
        name = rng.choice(list(self.rows))
        if not self.rows[name].is_led_here:
            self.come_back(name)
            return name
        match rng.choice(["append"] * 6 + ["big"] * 2 + ["some", "renew", "away"]):
            case "append":
                self.append(name, records=rng.randint(1, 3))
            case "big":
                self.append(name, size=rng.choice([20_000, 200_000]))
            case "some":
                self.flush_some(name)
            case "renew":
                self.renew(name)
            case "away":
                self.move_away(name, rng.randint(0, 4))
        return name

    def restart(self):
        self.storage.close()
        self.storage = self._start()

    # -- what must be ------------------------------------------------------------------------------------------------

    def tail(self, name) -> list[Entry]:
        """The entries behind the row's end that count, by the words of the protocol."""
        row = self.rows[name]
        if not row.is_led_here:
            return []
        first_epoch = row.state.tail[1]
        return [
            entry
            for entry in row.entries
            if entry.leader_epoch >= first_epoch and entry.end_offset > row.state.end_offset
        ]

    def end(self, name) -> int:
        tail = self.tail(name)
        return tail[-1].end_offset if tail else self.rows[name].state.end_offset

    def planned(self):
        """(base offset, WAL position) of the batches that the next flush takes, by topic."""
        wal = self.storage.wal
        partitions = self.storage.table.all_partitions()
        image = self.storage.manifest.image
        plan = plan_flush(partitions, image, self.flushed_lsn, wal.durable_lsn, PlanLimits(pack_below_bytes=64 * KIB))
        assert plan.end_lsn == wal.durable_lsn
        taken = {name: [] for name in self.rows}
        for planned in plan.objects:
            for run in planned.images:
                places = run.entries["base_offset"].tolist(), run.entries["lsn"].tolist()
                taken[run.topic] += zip(*places, strict=True)
        return taken

    def check(self):
        """The log of each partition, flushes and look-ups have the entries of its tail, and no other."""
        planned = self.planned()
        for name, row in self.rows.items():
            hot, tail, start = self.hot(name), self.tail(name), row.state.end_offset
            if hot is None:  # led elsewhere, in this process
                assert not planned[name]
                continue
            assert hot.next_offset == self.end(name), name
            assert planned[name] == [(entry.base_offset, entry.lsn) for entry in tail], name
            assert self._read_from(name, start) == b"".join(entry.data for entry in tail), name
            counted = {entry.lsn for entry in row.entries if entry.leader_epoch >= row.state.tail[1]}
            found = hot.offset_for_timestamp(NOW_MS, hot.next_offset), hot.max_timestamp_batch(hot.next_offset)
            assert all(batch is None or batch[1] in counted for batch in found), name

    def _read_from(self, name, offset) -> bytes:
        parts = []
        while offset < self.hot(name).next_offset:
            entry = self.read(name, offset)
            parts.append(entry.data)
            offset = entry.end_offset
        return b"".join(parts)

    def check_epochs(self):
        """After a restart: a consumer that has read the tail is not told that it was truncated (KIP-320)."""
        for name in self.rows:
            log = self.hot(name).log
            for entry in self.tail(name):
                assert log.epochs.epoch_at(entry.base_offset) == entry.leader_epoch, name
                assert log.end_offset_for(entry.leader_epoch)[1] >= entry.end_offset, name


def _end(data: bytes) -> int:
    return int.from_bytes(data[:8], "big") + int.from_bytes(data[23:27], "big") + 1
