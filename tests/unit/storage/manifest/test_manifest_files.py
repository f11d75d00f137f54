import random

import pytest

from kbroker._fast.manifest.key_hash import hash_key
from kbroker.storage.formats.object_keys import Author, authored_pack_key, klix_key, pack_key
from kbroker.storage.manifest.deletions import DeleteQueue
from kbroker.storage.manifest.files import FileTable
from kbroker.storage.manifest.key_table import PREFIX_OTHER
from kbroker.storage.manifest.keys import (
    hash_keys,
    is_prefix,
    pack_etag,
    pack_object_key,
    unpack_etag,
    unpack_object_key,
)
from kbroker.storage.manifest.partition_state import KLIX, PACK

TOPIC = bytes(range(16))
KEYS = [
    klix_key("t", TOPIC, 0, 0),
    klix_key("a-b.c_d", TOPIC, 2**31 - 1, 2**63 - 1, 3),
    klix_key("t", TOPIC, 7, 123, 1, "00" * 8),
    klix_key("t", TOPIC, 7, 123, 2, "ff" * 8),
    pack_key(1, 0),
    pack_key(9_999_999_999, 2**63 - 1, 1),
    klix_key("t", TOPIC, 7, 123, author=Author(1, 0)),
    klix_key("_packs", TOPIC, 7, 2**63 - 1, 2, author=Author(9_999_999_999, 2**63 - 1)),
    authored_pack_key(Author(1, 0)),
    authored_pack_key(Author(9_999_999_999, 2**63 - 1), 1),
]
OTHER_KEYS = ["t/0/segment-00000000000000000000.kfs", "odd", "_packs/1.pack", f"t-{TOPIC.hex()}/00/{0:020d}.obj", ""]


@pytest.mark.parametrize("key", KEYS)
def test_our_keys_round_trip_as_numbers(key):
    assert unpack_object_key(*pack_object_key(key)) == key


@pytest.mark.parametrize("key", KEYS)
def test_the_table_knows_packs_by_their_keys(key):
    table = FileTable()
    place = table.add(key, 1, "e", 1, 1)
    assert table.keys.key(place) == key
    assert table.keys.kind(place) == (PACK if key.endswith(".pack") else KLIX)
    assert is_prefix(table.keys.prefixes[0])


@pytest.mark.parametrize(
    "prefix", ["", "_packs/", "_packs/b1", "_packs/b0000000000", "_packs/b0000000001/", "t", "a/b"]
)
def test_other_prefixes_are_refused(prefix):
    assert not is_prefix(prefix)


@pytest.mark.parametrize("key", [*OTHER_KEYS, klix_key("t", TOPIC, 0, 0, 2**30)])
def test_other_keys_are_not_packed(key):
    assert pack_object_key(key) is None


@pytest.mark.parametrize(
    "etag", ["0" * 32, '"' + "f" * 32 + '"', "a" * 32 + "-12", '"' + "a" * 32 + '-99999"', "0-0", "1f-ff"]
)
def test_etags_round_trip(etag):
    assert unpack_etag(pack_etag(etag)) == etag


@pytest.mark.parametrize(
    "etag", ["", "x", "A" * 32, "a" * 31, '"' + "a" * 32, "a" * 32 + "-0", "00-1", "1-" + "f" * 17]
)
def test_other_etags_are_not_packed(etag):
    assert pack_etag(etag) is None


def test_column_hashes_equal_row_hashes():
    import numpy as np

    rng = random.Random(1)
    rows = [tuple(rng.getrandbits(63) for _ in range(5)) for _ in range(50)]
    assert hash_keys([np.array(column) for column in zip(*rows, strict=True)]).tolist() == [hash_key(r) for r in rows]


def test_a_table_behaves_like_a_dict_and_reuses_places():
    """Against a plain dict, through sorting of the index and free places."""
    rng = random.Random(2)
    table, model, places = FileTable(), {}, {}
    for serial in range(3000):
        if model and rng.random() < 0.45:
            key = rng.choice(list(model))
            table.remove(places.pop(key))
            del model[key]
        else:
            kind = rng.random()
            key = klix_key("t", TOPIC, serial % 7, serial, serial % 3 and 2, "ab" * 8 if serial % 3 else "")
            key = key if kind < 0.7 else pack_key(1, serial) if kind < 0.9 else f"odd-{serial}"
            etag = rng.choice(["e", "ab" * 16, f"{serial:x}-1"])
            places[key] = table.add(key, serial, etag, serial, serial + 1)
            model[key] = (serial, etag, serial, serial + 1)
        if rng.random() < 0.01:
            assert table.keys.sort() is None
        if serial % 100 == 0:
            assert {f.key: (f.size, f.etag, f.crc32c, f.created_ms) for f in table.values()} == model
            assert all(table.keys.place_of(key) == place for key, place in places.items())
            assert len(table) == len(model)
    assert table.places < 1800
    assert table.keys.place_of(klix_key("t", TOPIC, 0, 10**9)) is None
    assert table.keys.place_of("nothing") is None


def test_two_keys_of_one_hash_are_kept_apart(monkeypatch):
    monkeypatch.setattr("kbroker.storage.manifest.key_table.hash_key", lambda values: 5)
    table = FileTable()
    places = [table.add(pack_key(1, n), 1, "e", 1, 1) for n in range(3)]
    assert [table.keys.place_of(pack_key(1, n)) for n in range(4)] == [*places, None]
    assert table.keys.prefix[places[1]] == PREFIX_OTHER
    table.remove(places[0])
    assert [table.keys.place_of(pack_key(1, n)) for n in range(3)] == [None, *places[1:]]


def test_references_of_many_objects_are_dropped_at_once():
    import numpy as np

    table = FileTable()
    for n in range(3):
        table.live[table.add(pack_key(1, n), 1, "e", 1, 1)] = n + 1
    assert table.drop_references(np.array([2, 1, 2, 0])) == [0]
    assert table.drop_references(np.array([2])) == [2]
    assert list(table.live) == [0, 1, 0]


def test_the_delete_queue_returns_what_is_due():
    queue = DeleteQueue()
    assert queue.due(10**15, 5, lambda key: True) == []
    queue["a"] = 50
    queue.update({"b": 40, "c": 60})
    queue.setdefault("a", 1)
    assert queue.due(39, 5, lambda key: True) == []
    assert queue.due(50, 5, lambda key: True) == ["a", "b"]
    assert queue.due(50, 1, lambda key: True) == ["a"]
    assert (queue.pop("a"), queue.pop("b"), queue.pop("b", None)) == (50, 40, None)
    assert queue.due(59, 5, lambda key: True) == []
    queue["t/0/segment-0.kfs"] = 99
    assert queue.due(59, 5, lambda key: True) == ["t/0/segment-0.kfs"]
    assert queue.due(59, 5, lambda key: False) == []
    del queue["t/0/segment-0.kfs"]
    assert queue.due(59, 5, lambda key: True) == []
    assert queue.due(60, 5, lambda key: True) == ["c"]
