"""What a part of a commit costs the controller, and every other broker: in CPU, by what is done with it.

    python -m bench.commit_parts [--partitions N] [--windows N] [--rounds N]

Brokers lead all partitions. Each window, every partition has a part with one reference and, every third one, a
producer; PARTS_A_PACK of them share a pack. The requests go through the classes of the protocol to a log in memory.
The garbage collector runs as in a broker; the least of all rounds counts.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kbroker.cluster.protocol.commits import Commits
from kbroker.cluster.protocol.ledger_copy import LedgerCopy
from kbroker.cluster.protocol.messages import (
    CommitAnswer,
    CommitRequest,
    Destination,
    Log,
    Message,
    Part,
    PartitionId,
    PartKind,
    ReadyRequest,
    StreamedRecord,
)
from kbroker.cluster.protocol.record_builder import RecordBuilder
from kbroker.storage.formats.object_keys import pack_key
from kbroker.storage.ledger.log_copy import LogCopy
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.leadership import Mode, Move, NewPartition, Registration
from kbroker.storage.manifest.manifest_copy import ManifestCopy
from kbroker.storage.manifest.partition_state import ProducerEntry, RefRow, pack_times
from kbroker.storage.manifest.record import FileEntry, ManifestRecord, PartitionDelta
from kbroker.storage.manifest.record_apply import apply_record
from kbroker.storage.stores.memory_store import MemoryStore

BROKERS = 4
TOPICS = 100
PARTS_A_REQUEST = 500
PARTS_A_PACK = 80
WINDOWS_A_SECOND = 4
LEADER_EPOCH = 5
NOW_MS = 1_700_000_000_000
CONTROLLER_STEPS = ("judge and join", "encode and check", "apply", "answers")
STEPS = ("send", *CONTROLLER_STEPS, "take", "end")


class Topics:
    """The metadata: all topics of the bench."""

    def restore(self, number: int, checkpoint: Any) -> None:
        """Never called."""

    def apply(self, number: int, payload: Any) -> Any:
        """Never called."""

    def knows(self, topic_id: bytes) -> bool:
        """All of them."""
        return True

    def is_deleted(self, topic_id: bytes) -> bool:
        """None is."""
        return False

    def durability(self, topic_id: bytes) -> Mode:
        """The same for all."""
        return Mode.OBJECT

    def partitions(self) -> Iterable[PartitionId]:
        """Their rows are there already."""
        return ()


class Around:
    """Transport, leases and balance: messages are kept."""

    def __init__(self) -> None:
        self.sent: list[tuple[Destination, Message]] = []

    def send(self, to: Destination, message: Message) -> None:
        """Keeps it."""
        self.sent.append((to, message))

    def is_alive(self, number: int) -> bool:
        """All are."""
        return True

    def choose(self, place: PartitionId, candidates: Sequence[int]) -> int:
        """The first."""
        return candidates[0]


class Cpu:
    """CPU seconds of each step in this round."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STEPS, 0.0)

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Around a step, or a part of it."""
        begun = time.process_time_ns()
        yield
        self.seconds[step] += (time.process_time_ns() - begun) / 1e9


class Bench:
    """A controller, another broker's copy, and what the brokers have under way."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.topics = [n.to_bytes(16, "big") for n in range(TOPICS)]
        self.around = Around()
        self.store = MemoryStore()
        self.own, self.other = self._copy(1), self._copy(0)
        self.builder = RecordBuilder(self.own, self.around, self.around, self.around)
        self.builder.is_survey_due = False
        self.senders = [Commits(number) for number in range(1, BROKERS + 1)]
        for sender in self.senders:
            self.builder.receive(ReadyRequest(sender.number))
        self.builder.is_survey_due = False

    def _copy(self, epoch: int) -> LedgerCopy[Topics]:
        """The one that may write owns the log first."""

        def log(kind: str) -> NumberedLog:
            return NumberedLog(self.store, f"root/_{kind}", 0, bytes(16))

        manifest, metadata = ManifestCopy(log("manifest"), "root/"), LogCopy(log("changes"), "changes", Topics)
        for copy in (manifest, metadata):
            copy.write_as(epoch)
            copy.load()
            if epoch:
                copy.seal()
        ledger: LedgerCopy[Topics] = LedgerCopy(manifest, metadata)
        self._lead(ledger.image)
        return ledger

    def _lead(self, image: ManifestImage) -> None:
        numbers = range(1, BROKERS + 1)
        places = [(place, 1 + n % BROKERS) for n, place in enumerate(map(self.place, range(self.partitions)))]
        apply_record(image, ManifestRecord(
            1, registrations=tuple(Registration(n, f"d{n}", n, "n", "p", "r", "l", "v", True) for n in numbers)
        ))  # fmt: skip
        apply_record(image, ManifestRecord(
            1, new_partitions=tuple(NewPartition(*place, Mode.OBJECT) for place, _ in places),
            moves=tuple(Move(*place, n, LEADER_EPOCH, (f"d{n}", LEADER_EPOCH), False, False) for place, n in places),
        ))  # fmt: skip

    def place(self, n: int) -> PartitionId:
        """The n-th partition."""
        return self.topics[n % TOPICS], n // TOPICS

    def parts(self, sender: Commits, window: int) -> list[list[Part]]:
        """A window of a broker, by request."""
        mine = range(sender.number - 1, self.partitions, BROKERS)
        chunks = [mine[first : first + PARTS_A_REQUEST] for first in range(0, len(mine), PARTS_A_REQUEST)]
        return [[self._part(sender, n, at, window) for at, n in enumerate(chunk)] for chunk in chunks]

    def _part(self, sender: Commits, n: int, at: int, window: int) -> Part:
        base, end = window * 10, window * 10 + 10
        times = pack_times(200, 0)
        row = RefRow(base, end, at % PARTS_A_PACK * 1000, 1000, n * 7919, LEADER_EPOCH, NOW_MS + window, 10, times,
                     at // PARTS_A_PACK)  # fmt: skip
        producers: tuple[ProducerEntry, ...] = ()
        if n % 3 == 0:
            producers = ((n, 0, -1, NOW_MS, -1, ((window, end - 1, 9, NOW_MS),)),)
        delta = PartitionDelta(0, None, end, end, None, (), (), producers, (), (row,))
        place = self.place(n)
        return Part(sender.next_id(), PartKind.APPEND, *place, sender.number, LEADER_EPOCH, base, end, delta)

    def files(self, sender: Commits, parts: int) -> list[FileEntry]:
        """The packs of a request."""
        keys = [pack_key(sender.number, sender.next_counter()) for _ in range(0, parts, PARTS_A_PACK)]
        return [FileEntry(key, PARTS_A_PACK * 1000, f"{hash(key) & (1 << 64) - 1:032x}", 7) for key in keys]

    # -- a window ----------------------------------------------------------------------------------------------

    def run(self, window: int) -> dict[str, float]:
        """CPU seconds of each step."""
        cpu = Cpu()
        requests: list[CommitRequest] = []
        for sender in self.senders:
            for parts in self.parts(sender, window):
                commit = sender.begin(parts, sender.next_counter())
                sender.stored(commit, self.files(sender, len(parts)))
                with cpu.of("send"):
                    request = sender.request(commit, self.own.positions)
                assert request is not None
                requests.append(request)
        for request in requests:
            self.builder.receive(request)
        records: list[StreamedRecord] = []
        while self._append(cpu, records):
            pass
        for record in records:
            with cpu.of("take"):
                taken = self.other.log(Log.MANIFEST).take(record.epoch, record.number, record.record)
            assert taken
        self._end(cpu)
        return cpu.seconds

    def _append(self, cpu: Cpu, records: list[StreamedRecord]) -> bool:
        copy = self.own.manifest
        with cpu.of("judge and join"):
            joined = self.builder.build()
            record = joined.record(NOW_MS)
        if record is None:
            return False
        with cpu.of("encode and check"):
            payload, checked = copy.state.encode(record, joined.tables)

        def apply() -> Any:
            with cpu.of("apply"):
                return copy.state.apply_checked(checked)

        number = copy.append(payload, apply)
        with cpu.of("answers"):
            self.around.sent += joined.stored_answers(number)
        records.append(StreamedRecord(Log.MANIFEST, 1, number, payload))
        return True

    def _end(self, cpu: Cpu) -> None:
        answered, self.around.sent = self.around.sent, []
        for to, message in answered:
            assert isinstance(to, int)
            assert isinstance(message, CommitAnswer)
            sender = self.senders[to - 1]
            with cpu.of("end"):
                for answer in message.part_answers():
                    sender.committed(answer)
                sender.end_applied(self.own.manifest.number)
        assert not any(map(len, self.senders)), "parts without an answer"


def main() -> None:
    """Prints a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--windows", type=int, default=12)
    arguments = parser.parse_args()
    gc.collect()
    gc.freeze()
    bench = Bench(arguments.partitions)
    rounds = [bench.run(window) for window in range(arguments.windows)][2:]
    least = {step: min(each[step] for each in rounds) / arguments.partitions * 1e6 for step in STEPS}
    for step, micros in least.items():
        print(f"{step:20} {micros:6.2f} µs a part")
    controller = sum(least[step] for step in CONTROLLER_STEPS)
    share = controller * arguments.partitions * WINDOWS_A_SECOND / 1e6
    print(f"{'controller':20} {controller:6.2f} µs a part, {share:.1%} of a core at {WINDOWS_A_SECOND} windows/s")


if __name__ == "__main__":
    main()
