"""What the judge lets through and no record can have is refused, and nothing beside it (cluster protocol §4)."""

from __future__ import annotations

import pytest

from kbroker.cluster.protocol.controller import Phase
from kbroker.cluster.protocol.joined_record import JoinedRecord
from kbroker.cluster.protocol.messages import (
    CommitAnswer,
    Part,
    PartAnswer,
    PartitionId,
    PartKind,
    RegisterAnswer,
    RegisterRequest,
    Verdict,
)
from kbroker.storage.manifest.leadership import Mode
from tests.unit.cluster.protocol.protocol_cluster import Broker, Cluster, running
from tests.unit.cluster.protocol.protocol_fakes import NOWHERE, P, Q, append_part, delta, pack, request

PLACES = (P, Q, (b"v" * 16, 0))


@pytest.fixture
def cluster() -> Cluster:
    return running(1, t=Mode.OBJECT, u=Mode.OBJECT, v=Mode.OBJECT)


def part_of(broker: Broker, place: PartitionId, part_id: int, file: int = 0, **changes: object) -> Part:
    """The append of five records."""
    part = append_part(0, 5, place, broker.ledger.image.partition(*place).leader_epoch, file=file)
    return part._replace(id=part_id, delta=delta(0, 5, file, **changes))


def answers(cluster: Cluster) -> dict[int, PartAnswer]:
    """By part."""
    sent = [message for _, _, message in cluster.messages if isinstance(message, CommitAnswer)]
    return {answer.part: answer for message in sent for answer in message.part_answers()}


def ends(broker: Broker) -> list[int]:
    return [broker.ledger.image.partition(*place).end_offset for place in PLACES]


# Each passes the judge. The last one is a number that the record's column cannot hold.
UNFIT = (
    ({"last_stable_offset": 9}, "last stable offset 9 is above 5"),
    ({"clean_offset": 9}, "clean offset 9"),
    ({"leader_epochs": ((1, 0),)}, "leader epochs"),
    ({"producers": ((7, 1 << 20, -1, 0, -1, ()),)}, "does not fit into int16"),
)


@pytest.mark.parametrize(("changes", "reason"), UNFIT)
def test_part_that_no_record_can_have_is_refused_and_those_of_its_object_are_stored(
    cluster: Cluster, changes: dict[str, object], reason: str
) -> None:
    broker = cluster.brokers[0]
    parts = [part_of(broker, P, 1), part_of(broker, Q, 2, **changes), part_of(broker, PLACES[2], 3)]
    broker.controller.receive(request(*parts))
    assert broker.controller.append_manifest()
    found = answers(cluster)
    assert [found[n].verdict for n in (1, 2, 3)] == [Verdict.COMMITTED, Verdict.REFUSED, Verdict.COMMITTED]
    assert reason in found[2].reason
    assert ends(broker) == [5, 0, 5]


@pytest.mark.parametrize(("changes", "reason"), UNFIT)
def test_request_that_no_record_can_have_spoils_no_other(
    cluster: Cluster, changes: dict[str, object], reason: str
) -> None:
    broker = cluster.brokers[0]
    broker.controller.receive(request(part_of(broker, P, 1, **changes), files=[pack(1, 1)]))
    broker.controller.receive(request(part_of(broker, Q, 2), files=[pack(1, 2)]))
    assert broker.controller.append_manifest()
    assert {n: answer.verdict for n, answer in answers(cluster).items()} == {
        1: Verdict.REFUSED, 2: Verdict.COMMITTED
    }  # fmt: skip
    assert ends(broker) == [0, 5, 0]


def test_other_kinds_of_parts_are_refused_like_appends(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    epoch = broker.ledger.image.partition(*P).leader_epoch
    start = delta(0, 1, added=(), end_offset=7, log_start_offset=3)
    broker.controller.receive(request(Part(99, PartKind.LOG_START, *P, 1, epoch, delta=start), files=[]))
    broker.flush(Q, 5)
    cluster.deliver()
    assert broker.controller.append_manifest()
    assert answers(cluster)[99].verdict is Verdict.REFUSED
    assert ends(broker) == [0, 5, 0]


def test_of_requests_that_contradict_each_other_the_first_is_stored(cluster: Cluster) -> None:
    broker, controller = cluster.brokers[0], cluster.brokers[0].controller
    for n, place in enumerate(PLACES[:2]):
        controller.receive(request(part_of(broker, place, n), files=[pack(1, 1)]))
    controller.receive(request(part_of(broker, PLACES[2], 2), files=[pack(1, 2)]))
    assert controller.append_manifest()
    found = answers(cluster)
    assert [found[n].verdict for n in range(3)] == [Verdict.COMMITTED, Verdict.REFUSED, Verdict.COMMITTED]
    assert "an object is named twice" in found[1].reason
    assert ends(broker) == [5, 0, 5]


def test_of_parts_that_contradict_each_other_the_first_is_stored(cluster: Cluster) -> None:
    broker, controller = cluster.brokers[0], cluster.brokers[0].controller
    parts = [part_of(broker, place, n, file=n) for n, place in enumerate(PLACES)]
    controller.receive(request(*parts, files=[pack(1, 1), pack(1, 1), pack(1, 2)]))
    assert controller.append_manifest()
    found = answers(cluster)
    assert [found[n].verdict for n in range(3)] == [Verdict.COMMITTED, Verdict.REFUSED, Verdict.COMMITTED]
    assert ends(broker) == [5, 0, 5]


def test_start_that_no_record_can_have_is_refused_and_another_is_registered(cluster: Cluster) -> None:
    controller = cluster.brokers[0].controller
    for node_id, listeners in ((5, "x" * 5_000), (6, "")):
        name = f"d{node_id}"
        controller.receive(RegisterRequest(name, 0, (name,), node_id, name, "", listeners, "", NOWHERE))
    assert controller.append_manifest()
    found = [message for _, _, message in cluster.messages if isinstance(message, RegisterAnswer)]
    assert [(answer.nonce, answer.number) for answer in found] == [("d5", 0), ("d6", 2)]
    assert "is not a string of at most" in found[0].refusal


def test_commit_that_is_refused_unloads_its_partition_alone(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    broker = cluster.brokers[0]
    broker.flush(P, 5)
    broker.flush(Q, 3)
    commit = next(iter(broker.under_way))
    (part_id,) = commit.parts
    part = commit.parts[part_id]
    broken = request(part._replace(delta=delta(0, 5, last_stable_offset=9)), files=[pack(1, 1)])
    cluster.messages = [
        (sender, to, broken._replace(id=commit.id) if getattr(message, "id", None) == commit.id else message)
        for sender, to, message in cluster.messages
    ]
    cluster.settle()
    assert broker.led.get(P) is None
    assert broker.logs.events[-1].endswith("REFUSED")
    assert broker.led.get(Q).committed == 3
    assert "last stable offset 9 is above 5" in caplog.text


def test_controller_whose_own_content_does_not_fit_resigns(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = cluster.brokers[0]

    def add_fence(self: JoinedRecord, number: int) -> None:
        self._fences.append(99)

    monkeypatch.setattr(JoinedRecord, "add_fence", add_fence)
    cluster.ended.add(1)
    controller = broker.controller
    assert controller.append_manifest()
    assert controller.phase is Phase.OVER
