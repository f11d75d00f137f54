"""Judges a read_committed read by the reports of transactional producers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from java_program import Event

Place = tuple[int, int]  # partition, offset
OUTCOMES = ("committed", "aborted", "fenced", "unknown")


@dataclass
class Transaction:
    """One transaction as its producer reported it; `sent` has its acknowledged records, by index."""

    outcome: str = "open"
    sent: dict[int, Place] = field(default_factory=dict)


class Ledger:
    """All transactions of a run, by producer and number."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.transactions: dict[tuple[str, int], Transaction] = {}
        for event in events:
            assert event.name != "wrong", event
            if event.name == "ended":
                continue
            key = (event.fields[0], int(event.fields[1]))
            if event.name == "begin":
                assert key not in self.transactions
                self.transactions[key] = Transaction()
            elif event.name == "sent":
                index, partition, offset = map(int, event.fields[2:])
                self.transactions[key].sent[index] = (partition, offset)
            else:
                assert event.name in OUTCOMES, event
                self.transactions[key].outcome = event.name

    def count(self, outcome: str) -> int:
        """How many ended so."""
        return sum(transaction.outcome == outcome for transaction in self.transactions.values())

    def check(self, reads: Iterable[Event]) -> None:
        """Exactly the committed records, each where it was acknowledged, in the order of its producer."""
        seen: dict[tuple[str, int], dict[int, Place]] = {}
        last_offset: dict[int, int] = {}
        last_of_producer: dict[tuple[str, int], tuple[int, int]] = {}
        for event in reads:
            partition, offset, value = int(event.fields[0]), int(event.fields[1]), event.fields[2]
            producer, number_text, index_text = value.split("/")
            number, index = int(number_text), int(index_text)
            assert offset > last_offset.get(partition, -1), f"{value} at {partition}:{offset} again"
            last_offset[partition] = offset
            assert (number, index) > last_of_producer.get((producer, partition), (-1, -1)), f"{value} is out of order"
            last_of_producer[producer, partition] = (number, index)
            records = seen.setdefault((producer, number), {})
            assert index not in records, f"{value} at {records[index]} and at {partition}:{offset}"
            records[index] = (partition, offset)
        for key, transaction in self.transactions.items():
            self._check_one(key, transaction, seen.pop(key, {}))
        assert seen == {}, "read, but never written"

    @staticmethod
    def _check_one(key: tuple[str, int], transaction: Transaction, read: dict[int, Place]) -> None:
        if transaction.outcome == "committed":
            assert read == transaction.sent, f"{key} was committed"
        elif transaction.outcome == "unknown":
            # All or nothing; some of the sent transactions may not have been acknowledged.
            assert not read or sorted(read) == list(range(len(read))), f"{key}: a part of it was read: {read}"
            assert not read or read.items() >= transaction.sent.items(), f"{key}: a part of it was read: {read}"
        else:
            assert read == {}, f"{key} was {transaction.outcome}"
