"""The controller: claims, seals, joins what arrived into one record, ends its term (cluster protocol §3, §4)."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.cluster.protocol.controller import Phase
from kbroker.cluster.protocol.messages import CommitAnswer, Log, Positions, StreamedRecord, Verdict
from kbroker.cluster.protocol.registration import SavedIdentity
from kbroker.storage.ledger.log_copy import LogCopy
from kbroker.storage.manifest.leadership import Mode
from kbroker.storage.manifest.manifest_copy import ManifestState
from kbroker.storage.manifest.record_decode import read_record
from kbroker.storage.stores.object_store import StoreUnavailable
from kbroker.storage.stores.store_faults import Fault, FaultyStore, When
from tests.unit.cluster.protocol.protocol_cluster import Broker, Change, Cluster, running
from tests.unit.cluster.protocol.protocol_fakes import P, Q, T, append_part, request


def verdicts(cluster: Cluster) -> list[Verdict]:
    """Of the answers that are on their way."""
    answers = [message for _, _, message in cluster.messages if isinstance(message, CommitAnswer)]
    return [answer.verdict for message in answers for answer in message.part_answers()]


def leader(cluster: Cluster, place: tuple[bytes, int] = P) -> Broker:
    return next(broker for broker in cluster.brokers if broker.led.get(place) is not None)


def test_brokers_are_registered_and_topics_get_rows_and_leaders() -> None:
    cluster = running(2, t=Mode.OBJECT, u=Mode.WAL)
    assert [broker.number for broker in cluster.brokers] == [1, 2]
    for broker in cluster.brokers:
        row = broker.ledger.image.partition(*P)
        assert row is not None
        assert (row.leader, row.mode, row.tail) == (1, Mode.OBJECT, ("d1", 0))
    assert [led.place for led in cluster.brokers[0].led] == [P, Q]


def test_windows_of_many_senders_are_joined_into_one_record() -> None:
    cluster = running(2, t=Mode.OBJECT, u=Mode.OBJECT)
    first, second = cluster.brokers
    led = first.led.get(Q)
    assert led is not None
    first.led.hand_over(Q, second.number)
    first.led.hold(Q)
    assert first.led.end_hold(Q)
    first.send_requests()
    cluster.settle()
    before = first.ledger.manifest.number
    first.flush(P, 5)
    second.flush(Q, 3)
    cluster.settle()
    assert first.ledger.manifest.number == before + 1
    assert [b.ledger.image.partition(*place).end_offset for b, place in ((first, Q), (second, P))] == [3, 5]
    assert len(first.under_way) == len(second.under_way) == 0


def test_record_is_sent_before_the_answers_that_rest_on_it_and_only_once_stored() -> None:
    cluster = running(1, t=Mode.OBJECT)
    broker = cluster.brokers[0]
    broker.flush(P, 5)
    cluster.deliver()
    assert cluster.messages == []
    broker.controller.append_manifest()
    assert [type(message) for _, _, message in cluster.messages] == [StreamedRecord, CommitAnswer]


def test_answer_that_was_lost_comes_again_from_the_next_controller() -> None:
    cluster = running(2, t=Mode.OBJECT)
    first, second = cluster.brokers
    first.flush(P, 5)
    cluster.deliver()
    first.controller.append_manifest()
    cluster.messages.clear()  # neither record nor answer arrives
    second.take_over()
    first.send_requests()
    cluster.settle()
    assert first.led.get(P).committed == 5
    assert len(first.under_way) == 0


def test_superseded_controller_appends_nothing_and_resigns() -> None:
    cluster = running(2, t=Mode.OBJECT)
    first, second = cluster.brokers
    old = first.controller
    second.take_over()
    first.flush(P, 5)
    cluster.deliver()
    assert old.append_manifest()
    assert old.phase is Phase.OVER
    assert verdicts(cluster) == []
    cluster.settle()
    assert leader(cluster).led.get(P).committed == 5


def test_controller_resigns_when_it_finds_a_higher_claim() -> None:
    cluster = running(2)
    first, second = cluster.brokers
    second.elected().claim()
    first.controller.look()
    assert first.controller.phase is Phase.OVER


def test_controller_that_finds_anothers_seal_in_one_log_gives_up_both() -> None:
    cluster = running(2)
    first, second = cluster.brokers
    controller = second.elected()
    controller.claim()
    controller.seal(Log.METADATA)
    first.follow(Log.METADATA)
    assert first.controller.phase is Phase.OVER


def test_request_of_a_sender_that_knows_more_is_not_judged() -> None:
    cluster = running(1, t=Mode.OBJECT)
    broker = cluster.brokers[0]
    ahead = Positions(broker.ledger.manifest.number, broker.ledger.metadata.number + 1)
    broker.controller.receive(request(append_part(0, 5, epoch=1))._replace(positions=ahead))
    assert not broker.controller.append_manifest()
    assert cluster.messages == []


def test_request_that_finds_no_room_waits_with_all_behind_it() -> None:
    cluster = running(1, t=Mode.OBJECT, u=Mode.OBJECT)
    broker = cluster.brokers[0]
    controller = broker.controller
    controller.builder.parts_max = 1
    for place, end in ((P, 5), (Q, 3), (P, 8)):
        broker.flush(place, end)
    cluster.deliver()
    ends = []
    while controller.append_manifest():
        controller.builder.parts_max = 1
        ends.append([broker.ledger.image.partition(*place).end_offset for place in (P, Q)])
    assert ends == [[5, 0], [5, 3], [8, 3]]


def test_request_whose_columns_do_not_fit_together_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    cluster = running(1, t=Mode.OBJECT)
    broker = cluster.brokers[0]
    made = request(append_part(0, 5, epoch=broker.led.get(P).leader_epoch))
    broker.controller.receive(made._replace(files=()))
    assert not broker.controller.append_manifest()
    assert "request 0 of broker number 1 is dropped: reference 0: its object is missing" in caplog.text
    broker.controller.receive(made)
    assert broker.controller.append_manifest()


def test_record_in_doubt_is_appended_again_as_it_is() -> None:
    cluster = Cluster()
    store = FaultyStore(cluster.store)
    broker = cluster.broker(1, store=store)
    broker.take_over()
    broker.send_requests()
    cluster.deliver()
    lost = [Fault(when=When.AFTER, error=StoreUnavailable)]

    def choose(operation: str, key: str) -> Fault | None:
        if operation == "put" and "_manifest/" in key and lost:
            return lost.pop()
        return Fault(when=When.BEFORE, error=StoreUnavailable) if operation == "get" and not lost_is_over else None

    lost_is_over = False
    store.choose = choose
    assert broker.controller.append_manifest()
    assert broker.number == 0
    lost_is_over = True
    cluster.settle()
    assert broker.number == 1


def test_fence_and_take_over_are_one_record() -> None:
    cluster = running(2, t=Mode.OBJECT)
    first, second = cluster.brokers
    second.take_over()
    cluster.settle()
    before = second.ledger.manifest.number
    cluster.ended.add(first.number)
    assert second.controller.append_manifest()
    assert second.ledger.manifest.number == before + 1
    assert second.ledger.image.is_fenced(1)
    assert second.led.get(P) is not None


def test_window_of_a_number_that_is_being_fenced_is_judged_after_its_fence() -> None:
    cluster = running(2, t=Mode.OBJECT)
    first, second = cluster.brokers
    second.take_over()
    cluster.settle()
    first.flush(P, 5)
    cluster.ended.add(first.number)
    cluster.deliver()
    second.controller.append_manifest()
    assert verdicts(cluster) == []
    second.controller.append_manifest()
    assert verdicts(cluster) == [Verdict.FENCED]


def test_directory_that_comes_back_leads_its_wal_partitions_from_its_tail() -> None:
    cluster = running(2, t=Mode.WAL)
    first, second = cluster.brokers
    second.take_over()
    cluster.settle()
    cluster.ended.add(first.number)
    cluster.settle()
    assert second.led.get(P) is None
    cluster.brokers.remove(first)
    again = cluster.broker(1, first.saved[-1])
    cluster.settle()
    assert again.number == 3
    assert again.logs.tails == [0]  # that of the row's first leader


def test_copy_of_a_directory_is_refused() -> None:
    cluster = running(1)
    copied = cluster.broker(1, SavedIdentity("d1"))
    cluster.settle()
    assert copied.number == 0
    assert "copy" in copied.refusal


def test_deleted_topic_loses_its_row_and_its_objects() -> None:
    cluster = running(1, t=Mode.OBJECT)
    broker = cluster.brokers[0]
    broker.flush(P, 5)
    cluster.settle()
    deletion = Change(t=None)
    broker.controller.submit(deletion)
    cluster.settle()
    assert deletion.number > 0
    assert broker.ledger.image.partition(*P) is None
    assert broker.led.get(P) is None
    assert broker.controller.delete_due() == 1
    cluster.settle()
    assert not broker.ledger.image.deletions


def test_partition_that_waits_for_its_log_is_given_up_by_command() -> None:
    cluster = running(2, t=Mode.WAL)
    first, second = cluster.brokers
    second.take_over()
    cluster.ended.add(first.number)
    cluster.settle()
    second.controller.elect_unclean({P})
    cluster.settle()
    assert second.led.get(P) is not None


def test_record_that_is_too_large_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = running(1, t=Mode.OBJECT, u=Mode.OBJECT)
    broker = cluster.brokers[0]
    broker.flush(P, 5)
    broker.flush(Q, 3)
    cluster.deliver()
    append = LogCopy.append

    def refuse_two_parts(self: LogCopy[ManifestState], payload: bytes, *rest: Any) -> int:
        if len(read_record(payload, "record").partitions) > 1:
            raise ValueError("too large")
        return append(self, payload, *rest)

    monkeypatch.setattr(LogCopy, "append", refuse_two_parts)
    broker.controller.builder.parts_max = 2
    before = broker.ledger.manifest.number
    cluster.settle()
    assert broker.ledger.manifest.number == before + 2
    assert [broker.led.get(place).committed for place in (P, Q)] == [5, 3]
    assert broker.controller.builder.parts_max > 2


def test_request_that_is_too_large_for_a_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = running(1, t=Mode.OBJECT, u=Mode.OBJECT)
    broker = cluster.brokers[0]
    append = LogCopy.append

    def refuse_five_records(self: LogCopy[ManifestState], payload: bytes, *rest: Any) -> int:
        if any(delta.end_offset == 5 for delta in read_record(payload, "record").partitions.values()):
            raise ValueError("too large")
        return append(self, payload, *rest)

    monkeypatch.setattr(LogCopy, "append", refuse_five_records)
    broker.flush(P, 5)
    broker.flush(Q, 3)
    cluster.settle()
    assert broker.led.get(P) is None
    assert broker.led.get(Q).committed == 3


def test_controller_need_not_be_registered() -> None:
    cluster = Cluster()
    broker = cluster.broker(1)
    broker.take_over()
    assert broker.number == 0
    cluster.settle()
    assert broker.number == 1


def test_metadata_changes_are_stored_one_by_one_and_sent_to_every_broker() -> None:
    cluster = running(2)
    changes = [Change(t=Mode.WAL), Change(t=Mode.OBJECT)]
    for change in changes:
        cluster.brokers[0].controller.submit(change)
    cluster.settle()
    assert [change.number for change in changes] == sorted(change.number for change in changes)
    assert {broker.ledger.topics.durability(T) for broker in cluster.brokers} == {Mode.OBJECT}


def test_change_that_changes_nothing_is_answered_without_a_record() -> None:
    cluster = running(1)
    broker, change = cluster.brokers[0], Change()
    before = broker.ledger.positions
    broker.controller.submit(change)
    cluster.settle()
    assert change.number == 0
    broker.controller.look()
    assert (change.number, broker.ledger.positions) == (before.metadata, before)


def test_superseded_controller_does_not_say_that_a_change_is_there() -> None:
    cluster = running(2)
    change = Change()
    cluster.brokers[1].take_over()
    cluster.brokers[0].controller.submit(change)
    cluster.brokers[0].controller.append_metadata()
    cluster.brokers[0].controller.look()
    assert change.number == 0


def test_broker_that_lacks_records_which_a_checkpoint_replaced_loads_the_log() -> None:
    cluster = running(2, t=Mode.OBJECT)
    first, second = cluster.brokers
    cluster.brokers.remove(second)
    for mode in (Mode.WAL, Mode.OBJECT, Mode.WAL):
        first.controller.submit(Change(t=mode))
        cluster.settle()
        assert [first.controller.checkpoint(log) for log in Log] == [True, True]
    cluster.brokers.append(second)
    second.follow_all()
    assert second.ledger.positions == first.ledger.positions
    assert second.ledger.topics.durability(T) is Mode.WAL


def test_only_the_controller_writes_checkpoints() -> None:
    cluster = running(2)
    first, second = cluster.brokers
    assert not second.ledger.manifest.checkpoint()
    first.deposed("its lease is over")
    assert not first.ledger.manifest.checkpoint()


def test_node_id_of_a_live_broker_is_refused_and_accepted_once_its_lease_is_over() -> None:
    cluster = running(2)
    other = cluster.broker(2, SavedIdentity("other"))
    cluster.settle()
    assert "node id 2 is in use" in other.refusal
    cluster.ended.add(2)
    again = cluster.broker(2, SavedIdentity("other"))
    cluster.settle()
    assert again.number > 2
