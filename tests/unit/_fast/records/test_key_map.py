import random

import pytest

from kbroker._fast.records.key_map import SECRET_BYTES, SLOT_BYTES, KeyMap, siphash128


def test_the_hash_is_siphash_2_4_with_128_bits() -> None:
    # The reference implementation's vectors: secret 00..0f, inputs of 0, 1, 2, 8 and 15 bytes 00, 01, ...
    secret = bytes(range(SECRET_BYTES))
    assert siphash128(secret, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash128(secret, bytes(range(1))).hex() == "da87c1d86b99af44347659119b22fc45"
    assert siphash128(secret, bytes(range(2))).hex() == "8177228da4a45dc7fca38bdef60affe4"
    assert len({siphash128(secret, bytes(n)) for n in range(100)}) == 100


def test_it_answers_as_a_dictionary_of_highest_offsets() -> None:
    rng = random.Random(1)
    key_map, twin = KeyMap(5000 * SLOT_BYTES), {}
    for _ in range(20_000):
        key, offset = rng.randbytes(rng.randrange(3)), rng.randrange(1 << 60)
        if len(twin) < key_map.limit or key in twin:
            assert key_map.put(key, offset)
            twin[key] = max(offset, twin.get(key, -1))
        else:
            assert not key_map.put(key, offset)
    assert len(key_map) == len(twin) == key_map.limit == 4500
    assert all(key_map.get(key) == offset for key, offset in twin.items())
    assert key_map.get(b"none") == -1


def test_a_full_map_takes_known_keys_and_no_new_ones() -> None:
    key_map = KeyMap(10 * SLOT_BYTES + 5)
    assert [key_map.put(b"%d" % n, n) for n in range(10)] == [True] * 9 + [False]
    assert key_map.put(b"3", 77)
    assert key_map.get(b"3") == 77
    assert key_map.get(b"9") == -1
    key_map.clear()
    assert (key_map.get(b"3"), key_map.size) == (-1, 0)
    assert key_map.put(b"9", 0)
    assert key_map.get(b"9") == 0


def test_each_map_has_a_secret_of_its_own() -> None:
    with pytest.raises(ValueError, match="secret"):
        KeyMap(1000, b"short")
    with pytest.raises(ValueError, match="too few"):
        KeyMap(SLOT_BYTES)
    with pytest.raises(ValueError, match="negative"):
        KeyMap(1000).put(b"k", -1)
