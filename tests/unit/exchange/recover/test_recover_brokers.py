"""After a recovery no broker number and no leader epoch is given again, and any broker may lead."""

import pytest

from kbroker.cluster.protocol.messages import Positions, RegisterRequest
from kbroker.cluster.protocol.registration import Refused, judge_registration
from kbroker.exchange.recover.brokers import STEP
from kbroker.storage.formats.object_keys import Author, authored_pack_key, parse_key
from kbroker.storage.manifest.leadership import NO_LEADER, Registered, Registration
from kbroker.storage.manifest.record import ManifestRecord
from tests.unit.exchange.recover.led_cluster import MODES, LedCluster, registration
from tests.unit.exchange.recover.recover_bucket import KEYS, DamagedCluster, topic_id
from tests.unit.exchange.recover.test_recover_manifest import DAMAGES, damage_record, lose_everything


@pytest.fixture
def cluster():
    made = LedCluster()
    made.fill()
    made.stop()
    return made


def request(directory_id, saved_number):
    return RegisterRequest(directory_id, saved_number, ("nonce-x",), 1, "place", "", "", "", Positions(0, 0))


def judged(image, directory_id, saved_number):
    return judge_registration(request(directory_id, saved_number), image, image.last_number + 1, lambda number: False)


def test_keys_with_and_without_a_number_are_there(cluster):
    authors = {getattr(parse_key(key), "author", None) is None for key in cluster.image.live_keys()}
    assert authors == {True, False}


@pytest.mark.parametrize("damage", DAMAGES)
def test_counters_go_on_above_all_that_was_given(cluster, damage):
    last_number, leader_epoch = cluster.image.last_number, cluster.image.leader_epoch
    DAMAGES[damage](cluster)
    cluster.recover()
    image = cluster.loaded()
    assert image.has_leadership
    assert (image.last_number, image.leader_epoch) == (STEP, STEP)
    assert max(last_number, leader_epoch) < STEP
    assert image.is_fenced(cluster.number)
    for state in image.states():
        assert (state.leader, state.leader_epoch, state.is_clean, state.tail) == (NO_LEADER, STEP, True, None)
        assert state.leader_epochs[-1] == (STEP, state.end_offset)


@pytest.mark.parametrize("damage", ["a record", "the last record", "a missing record", "a short record"])
def test_registrations_and_modes_stay(cluster, damage):
    DAMAGES[damage](cluster)
    cluster.recover()
    image = cluster.loaded()
    assert image.registrations == {
        "other": Registered(registration(1, "other"), used=False, fenced=True),
        "dir": Registered(registration(cluster.number, "dir"), used=True, fenced=True),
    }
    for name, mode in MODES.items():
        assert image.partition(topic_id(name), 0).mode is mode
    assert isinstance(judged(image, "dir", cluster.number), Registration)
    assert isinstance(judged(image, "dir", cluster.number - 1), Refused), "a copy"


def test_what_later_records_say_of_brokers_counts(cluster):
    """A start after the damage: its registration and its leaderships."""
    cluster.start()
    cluster.flush(("plain", 0, cluster.records("plain")))
    cluster.stop()
    damage_record(cluster, 1)
    _, findings = cluster.recover()
    image = cluster.loaded()
    assert image.registrations["dir"] == Registered(registration(cluster.number, "dir"), used=True, fenced=True)
    assert any("brokers: 2 data directories" in line for line in findings.lines())


def test_the_counter_of_numbers_is_above_those_in_keys(cluster):
    """All records are lost: a number is known from the key of an object alone."""
    cluster.store.put(KEYS.full(authored_pack_key(Author(3 * STEP + 7, 0))), b"left over")
    lose_everything(cluster)
    cluster.recover()
    assert cluster.loaded().last_number == 4 * STEP


def test_rows_without_objects_stay(cluster):
    """A topic was created, and nothing was written to it: its rows are only in a record after the damage."""
    cluster.start()
    cluster.stop()
    damage_record(cluster, 0)
    before = {(state.topic_id, state.partition) for state in cluster.image.states()}
    cluster.recover()
    assert {(state.topic_id, state.partition) for state in cluster.loaded().states()} == before


def test_a_cluster_without_brokers_gets_none():
    cluster = DamagedCluster(version=3)
    cluster.fill()
    cluster.stop()
    damage_record(cluster, 3)
    _, findings = cluster.recover()
    assert not cluster.loaded().has_leadership
    assert not any("brokers:" in line for line in findings.lines())


def test_a_broker_is_registered_and_leads_again(cluster):
    damage_record(cluster, 2)
    cluster.recover()
    cluster.start()
    assert (cluster.number, cluster.leader_epoch) == (STEP + 1, STEP + 10)
    end = cluster.end("plain")
    cluster.flush(("plain", 0, cluster.records("plain")))
    cluster.manifest.commit(ManifestRecord(fences=(cluster.number,)))
    assert cluster.loaded().partition(topic_id("plain"), 0).end_offset == end + 12
