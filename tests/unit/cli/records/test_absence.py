"""What produce says while no broker answers."""

from __future__ import annotations

from kbroker.cli.records.absence import RemarkedRetries
from kbroker.client.cluster_client import ClientError
from kbroker.clock import ManualClock


class Asked:
    """A cluster that answers the given questions."""

    def __init__(self, *answers: bool) -> None:
        self._answers = iter(answers)
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        if not next(self._answers):
            raise ClientError("no broker answers at b:1")


def remarks(asked: Asked, attempts: int) -> list[str]:
    """What is said in a call that succeeds at the last of its attempts."""
    said: list[str] = []
    retries = RemarkedRetries(
        120.0, clock=ManualClock(), wait=lambda seconds: False, ask=asked, note=said.append
    ).attempts()
    for _ in range(attempts):
        next(retries)
    return said


REMARK = "no broker answers at b:1; trying again for 120 s"


def test_nothing_is_asked_where_nothing_fails() -> None:
    asked = Asked()
    assert remarks(asked, 1) == []
    assert asked.count == 0


def test_a_broker_that_does_not_answer_is_remarked_once_in_a_call() -> None:
    asked = Asked(False)
    assert remarks(asked, 9) == [REMARK]


def test_a_retry_while_the_cluster_answers_is_not_remarked() -> None:
    assert remarks(Asked(True, True), 3) == []
    assert remarks(Asked(True, False), 9) == [REMARK]
