"""Many transactional Java producers and a read_committed reader, over kills of the broker and the loss of its disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import java_tools
import pytest
import scenarios
from broker_process import BrokerProcess
from conftest import SMALL, Store, require
from java_program import Event, JavaProgram
from java_tools import CLIENT_VERSIONS, NEWEST_CLIENTS
from scenarios import end_offsets, new_topic
from served_apis import TRANSACTIONS, need, settings
from test_client_confluent import CLIENT
from transaction_ledger import OUTCOMES, Ledger
from until import until

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.feature("Java", "transactions")]
PARTITIONS = 4
PRODUCERS = 6
KILLS = 3
BETWEEN_KILLS = 40  # transactions
SEED = 7


@pytest.fixture(scope="module")
def broker_process(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that often checks for transactions that timed out."""
    require(not java_tools.missing(), java_tools.missing())
    data_dir: Path = tmp_path_factory.mktemp(store.kind) / "data"
    fast = settings(transaction_abort_timed_out_transaction_cleanup_interval_ms=500)
    process = BrokerProcess(data_dir, *store.options, *SMALL, environ={**store.environ, **fast})
    yield process
    process.kill()


class Run:
    """The programs of one test, on one topic."""

    def __init__(self, broker: BrokerProcess, class_path: str, folder: Path) -> None:
        self.broker = broker
        self.topic = new_topic(broker, CLIENT, "transactions", PARTITIONS)
        self._class_path = class_path
        self._folder = folder

    def producers(self, seed: int) -> JavaProgram:
        """The producers, at work."""
        numbers = (str(PARTITIONS), str(PRODUCERS), str(seed))
        return self.program("TransactionalProducers", *numbers, log=f"producers-{seed}.log")

    def reader(self, isolation: str = "read_committed") -> JavaProgram:
        """A reader from the beginning."""
        return self.program("CommittedReader", isolation, log="reader.log")

    def program(self, main: str, *arguments: str, log: str) -> JavaProgram:
        """One of tests/integration/java/clients, on the topic."""
        arguments = (self.broker.bootstrap, self.topic, *arguments)
        return JavaProgram(self._class_path, main, *arguments, log_path=self._folder / log)

    def read(self, isolation: str = "read_committed") -> list[Event]:
        """All that there is to read."""
        with self.reader(isolation) as reader:
            reader.finish()
            return list(reader.find("read"))


def ended(program: JavaProgram) -> int:
    """Transactions that have come to an end."""
    return sum(event.name in OUTCOMES for event in program.events)


def wait_for_more(program: JavaProgram, count: int) -> None:
    """Waits until so many more transactions have ended."""
    goal = ended(program) + count
    program.wait_until(lambda: ended(program) >= goal, f"{goal} transactions")


def places(events: list[Event]) -> dict[str, list[tuple[str, ...]]]:
    """What was read, by partition."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for event in events:
        found.setdefault(event.fields[0], []).append(event.fields)
    return found


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_read_committed_readers_see_exactly_the_committed_records(
    broker: BrokerProcess, tmp_path: Path, version: str
) -> None:
    """A reader that runs all the time and later ones read the same, despite kills and a lost disk."""
    need(broker, *TRANSACTIONS)
    run = Run(broker, java_tools.compiled_clients(version), tmp_path)
    with run.producers(SEED) as producers, run.reader() as live:
        for kill in range(KILLS):
            wait_for_more(producers, BETWEEN_KILLS)
            if kill == 1:
                broker.flush()
            broker.kill()
            broker.start()
        wait_for_more(producers, BETWEEN_KILLS)
        producers.finish()
        live.finish()
        ledger = Ledger(producers.events)
        seen_live = list(live.find("read"))
    assert ledger.count("committed") >= (KILLS + 1) * BETWEEN_KILLS // 3
    assert ledger.count("aborted") > 0
    assert ledger.count("fenced") > 0
    assert ledger.count("unknown") <= len(ledger.transactions) // 20
    ledger.check(seen_live)
    assert places(run.read()) == places(seen_live)
    uncommitted = run.read("read_uncommitted")
    assert len(uncommitted) > len(seen_live)
    broker.kill()
    broker.start()
    assert places(run.read()) == places(seen_live)
    broker.flush()
    broker.kill()
    scenarios.lose_disk(broker)
    broker.start("--take-over")
    assert places(run.read()) == places(seen_live)
    assert places(run.read("read_uncommitted")) == places(uncommitted)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_killed_producers_do_not_block_readers(broker: BrokerProcess, tmp_path: Path, version: str) -> None:
    """Their successors abort what they left open; a reader comes to the end."""
    need(broker, *TRANSACTIONS)
    run = Run(broker, java_tools.compiled_clients(version), tmp_path)
    with run.producers(SEED) as killed:
        wait_for_more(killed, BETWEEN_KILLS)
        killed.kill()
        first = list(killed.events)
    with run.producers(SEED + 1) as successors:
        wait_for_more(successors, BETWEEN_KILLS)
        successors.finish()
        reads = run.read()
        check_both(first, list(successors.events), reads)


def test_a_producer_continues_after_a_transaction_that_timed_out(broker: BrokerProcess, tmp_path: Path) -> None:
    """With transaction.version 2 the time-out takes the transaction, and not the producer."""
    need(broker, *TRANSACTIONS)
    run = Run(broker, java_tools.compiled_clients(NEWEST_CLIENTS), tmp_path)
    with run.program("TimedOutProducer", log="timed-out.log") as producer:
        producer.wait_event("open")
        until(lambda: end_offsets(broker, run.topic, 1) == [2], "the marker of the time-out after the first record")
        producer.tell("go on")
        producer.wait_event("refused")
        producer.wait_event("committed")
        producer.finish()
    assert [event.fields[2] for event in run.read()] == ["next"]


def check_both(first: list[Event], second: list[Event], reads: list[Event]) -> None:
    """Both generations of producers number from 0: the second's transactions begin where a number repeats."""
    ends: dict[str, int] = {}
    for event in first:
        if event.name == "sent":
            ends[event.fields[3]] = max(ends.get(event.fields[3], -1), int(event.fields[4]))
    begins: dict[str, int] = {}
    for event in second:
        if event.name == "sent":
            begins[event.fields[3]] = min(begins.get(event.fields[3], 1 << 62), int(event.fields[4]))
    assert all(begins[partition] > ends[partition] for partition in ends.keys() & begins.keys())
    Ledger(second).check([event for event in reads if int(event.fields[1]) >= begins[event.fields[0]]])
    open_at_the_kill = [Event("unknown", 0, (name, str(number), "killed")) for name, number in still_open(first)]
    Ledger([*first, *open_at_the_kill]).check(
        [event for event in reads if int(event.fields[1]) < begins[event.fields[0]]]
    )


def still_open(events: list[Event]) -> list[tuple[str, int]]:
    """Transactions without a reported end."""
    return [key for key, transaction in Ledger(events).transactions.items() if transaction.outcome == "open"]
