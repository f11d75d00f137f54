"""Kills a broker repeatedly under a load that records what was acknowledged, then checks what the broker has."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from tests.crash.ledger import Ledger, verify, verify_commits
from tests.crash.load import COMMIT_RETRIABLE, GROUP, Load
from tests.crash.raw_client import RawClient
from tests.crash.small_broker import Place, connect, small_broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.until import until

TOPIC = "ledger"
PARTITIONS = 6
RECORDS_BETWEEN_KILLS = (300, 2_500)  # acknowledged
START_SECONDS = (0.0, 1.2)  # until a start is killed
START_KILL_SHARE = 0.3


def committed_offsets(client: RawClient, partitions: int) -> dict[int, tuple[int, str]]:
    """The group's offsets, once the coordinator has loaded them."""
    found: list[dict[int, tuple[int, str]]] = []

    def loaded() -> bool:
        answer = client.committed(GROUP, TOPIC, range(partitions))
        if isinstance(answer, dict):
            found.append(answer)
            return True
        assert answer in COMMIT_RETRIABLE, f"OffsetFetch: error {answer}"
        return False

    until(loaded, "loading of the group")
    return found[0]


def check_all(broker: BrokerProcess, ledger: Ledger, *, finished: bool, partitions: list[int] | None = None) -> int:
    """Reads partitions and commits back from a running broker and judges them."""
    with connect(broker) as client:
        records = verify(ledger, client, TOPIC, finished=finished, partitions=partitions)
        if finished:
            verify_commits(ledger, committed_offsets(client, ledger.partitions))
    return records


def kill_during_start(broker: BrokerProcess, seconds: float) -> None:
    """Starts the broker and kills it after a while, ready or not. AssertionError if it exits earlier."""
    process = broker.spawn()
    try:
        code = process.wait(seconds)
        raise AssertionError(f"the broker exited with {code}\n{broker.log()[-4000:]}")
    except subprocess.TimeoutExpired:
        pass
    finally:
        broker.kill()


def run_kills(folder: Path, place: Place, rounds: int, seed: int, *options: str) -> dict[str, int]:
    """Kills a broker with these options at random points, `rounds` times. Returns counts.

    AssertionError names what is wrong.
    """
    draw = random.Random(seed)
    broker = small_broker(folder / "data", place, *options)
    ledger = Ledger(PARTITIONS)
    counted = {"kills": 0, "start_kills": 0}
    broker.start()
    try:
        with connect(broker) as client:
            client.create_topic(TOPIC, PARTITIONS)
        load = Load((broker.host, broker.port), TOPIC, ledger, seed)
        with load.running():
            for _ in range(rounds):
                ledger.wait_for_more(draw.randint(*RECORDS_BETWEEN_KILLS))
                broker.kill()
                counted["kills"] += 1
                if draw.random() < START_KILL_SHARE:
                    kill_during_start(broker, draw.uniform(*START_SECONDS))
                    counted["start_kills"] += 1
                # One partition now, while the load goes on; all of them at the end.
                broker.start()
                check_all(broker, ledger, finished=False, partitions=[draw.randrange(PARTITIONS)])
            ledger.wait_for_more(RECORDS_BETWEEN_KILLS[0])
        counted["records"] = check_all(broker, ledger, finished=True)
        counted["acknowledged"], counted["observed"], counted["commits"] = ledger.counts()
        assert broker.stop() == 0, broker.log()[-4000:]
        # After a clean stop the bucket alone holds everything.
        successor = small_broker(folder / "data-after", place).start()
        try:
            assert check_all(successor, ledger, finished=True) == counted["records"]
        finally:
            successor.kill()
    finally:
        broker.kill()
    return counted
