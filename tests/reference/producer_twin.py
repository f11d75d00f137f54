"""Producer state of a partition, written as plainly as possible: the oracle of the compiled one."""

from __future__ import annotations

from dataclasses import dataclass, field

MODULUS = 2**31


@dataclass
class Producer:
    """One producer id."""

    epoch: int
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    txn_first_offset: int = -1
    batches: list[tuple[int, int, int, int]] = field(default_factory=list)  # first seq, last seq, base, last offset


@dataclass(eq=False)
class Guard:
    """A verification that is asked for or answered (KIP-890)."""

    epoch: int
    lowest_sequence: int
    bumps: bool


@dataclass
class ProducerTwin:
    """Answers like a partition: an error code, or the base offset and whether it is a duplicate."""

    next_offset: int = 0
    producers: dict[int, Producer] = field(default_factory=dict)
    transactions: list[list[int]] = field(default_factory=list)  # [producer id, first offset, marker offset or -1]
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)
    guards: dict[int, Guard] = field(default_factory=dict)

    def ask(self, producer_id: int, epoch: int, sequence: int, bumps: bool) -> Guard | None:
        """The guard for a batch of one record that is to be verified; None: it needs no verification."""
        known = self.producers.get(producer_id)
        if known is not None:
            open_here = known.txn_first_offset >= 0 and known.epoch == epoch
            cached = known.epoch == epoch and (sequence, sequence) in [b[:2] for b in known.batches]
            if epoch < known.epoch or open_here or cached:
                return None
        guard = self.guards.get(producer_id)
        if guard is None or guard.epoch < epoch:
            guard = self.guards[producer_id] = Guard(epoch, sequence, bumps)
        elif guard.epoch == epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def unverified(self, producer_id: int, epoch: int, sequence: int, guard: Guard | None) -> int:
        """The error of a transactional batch for want of a verification, or 0."""
        known, current = self.producers.get(producer_id), self.guards.get(producer_id)
        if known is not None and known.txn_first_offset >= 0 and known.epoch == epoch:
            return 0
        if current is not None and epoch < current.epoch:
            return 47
        if current is None or current is not guard:
            return 48
        fresh = known is None or not known.batches
        return 45 if sequence > current.lowest_sequence or (current.bumps and fresh and sequence != 0) else 0

    def data(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        count: int,
        timestamp: int,
        transactional: bool,
        guard: Guard | None = None,
        verify: bool = False,
    ) -> tuple[int, int, bool]:
        """(error code, base offset, duplicate) of a client batch; with `verify` it must have been verified."""
        last = (sequence + count - 1) % MODULUS
        known = self.producers.get(producer_id)
        if known is not None:
            if known.epoch == epoch:
                for first_seq, last_seq, base, _ in known.batches:
                    if (first_seq, last_seq) == (sequence, last):
                        return 0, base, True
            if epoch < known.epoch:
                return 47, -1, False
        if verify and transactional and (error := self.unverified(producer_id, epoch, sequence, guard)):
            return error, -1, False
        if known is not None:
            fresh = epoch > known.epoch or not known.batches
            if sequence != (0 if fresh else (known.batches[-1][1] + 1) % MODULUS):
                return 45, -1, False
            if known.txn_first_offset >= 0 and not transactional:
                return 48, -1, False
        if known is None:
            known = self.producers[producer_id] = Producer(epoch)
        if known.epoch != epoch:
            known.epoch, known.batches = epoch, []
        base = self.next_offset
        self.next_offset += count
        known.batches = [*known.batches, (sequence, last, base, self.next_offset - 1)][-5:]
        known.last_timestamp = timestamp
        if transactional:
            self.guards.pop(producer_id, None)
        if transactional and known.txn_first_offset < 0:
            known.txn_first_offset = base
            self.transactions.append([producer_id, base, -1])
        return 0, base, False

    def marker(self, producer_id: int, epoch: int, coordinator_epoch: int, commit: bool, timestamp: int) -> int:
        """The error code of a transaction marker."""
        known = self.producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            return 47
        if known is not None and coordinator_epoch < known.coordinator_epoch:
            return 52
        if known is None:
            known = self.producers[producer_id] = Producer(epoch)
        if known.epoch != epoch:
            known.epoch, known.batches = epoch, []
        self.guards.pop(producer_id, None)
        offset = self.next_offset
        self.next_offset += 1
        known.coordinator_epoch, known.last_timestamp = coordinator_epoch, timestamp
        if known.txn_first_offset >= 0:
            for transaction in self.transactions:
                if transaction[0] == producer_id and transaction[2] < 0:
                    transaction[2] = offset
            still_open = [t[1] for t in self.transactions if t[2] < 0]
            if not commit:
                stable = min([*still_open, offset + 1])
                self.aborted.append((producer_id, known.txn_first_offset, offset, stable))
            known.txn_first_offset = -1
        return 0

    def last_stable_offset(self, high_watermark: int) -> int:
        """min(high watermark, first offset of a transaction that is open or whose marker is not below it)."""
        unstable = [t[1] for t in self.transactions if t[2] < 0 or t[2] >= high_watermark]
        return min([high_watermark, *unstable])
