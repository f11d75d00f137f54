import pytest

from kbroker.storage.formats.object_keys import (
    Author,
    KlixKey,
    ObjectKeys,
    PackKey,
    authored_pack_key,
    klix_key,
    pack_key,
    parse_key,
    split_root,
)

TOPIC_ID = bytes(range(16))
CLUSTER = "4L6g3nShT-eMCtK--X86sw"


def test_klix_key_is_the_documented_one():
    key = klix_key("orders", TOPIC_ID, 7, 42)
    assert key == "orders-000102030405060708090a0b0c0d0e0f/7/00000000000000000042.obj"
    assert klix_key("orders", TOPIC_ID, 7, 42, 3) == key.replace(".obj", "-3.obj")
    assert klix_key("orders", TOPIC_ID, 7, 42, 3, "0123456789abcdef") == key.replace(".obj", "-3-0123456789abcdef.obj")
    assert pack_key(12, 5) == "_packs/0000000012-00000000000000000005.pack"


def test_keys_with_a_broker_number_are_the_documented_ones():
    author = Author(7, 12)
    key = klix_key("orders", TOPIC_ID, 7, 42, author=author)
    suffix = "b0000000007-00000000000000000012"
    assert key == f"orders-000102030405060708090a0b0c0d0e0f/7/00000000000000000042-{suffix}.obj"
    assert klix_key("orders", TOPIC_ID, 7, 42, 3, author=author) == key.replace("-b", "-3-b")
    assert authored_pack_key(author) == f"_packs/{suffix}.pack"
    assert authored_pack_key(author, 1) == f"_packs/{suffix}-1.pack"


@pytest.mark.parametrize("generation", [0, 1, 999])
@pytest.mark.parametrize("author", [Author(1, 0), Author(10**10 - 1, 2**63 - 1)])
def test_keys_with_a_broker_number_parse_back(generation, author):
    key = klix_key("t-b1", TOPIC_ID, 0, 5, generation, author=author)
    assert parse_key(key) == KlixKey("t-b1", TOPIC_ID, 0, 5, generation, "", author)
    assert parse_key(authored_pack_key(author, generation)) == PackKey(-1, -1, generation, author)


@pytest.mark.parametrize("author", [Author(0, 0), Author(-1, 0), Author(10**10, 0), Author(1, -1), Author(1, 2**63)])
def test_no_key_has_an_impossible_broker_number(author):
    with pytest.raises(ValueError, match="out of range"):
        klix_key("t", TOPIC_ID, 0, 0, author=author)
    with pytest.raises(ValueError, match="out of range"):
        authored_pack_key(author)


@pytest.mark.parametrize("topic", ["a", "with-dash", "a.b_c", "__consumer_offsets", "x" * 249, "t-" + "0" * 32])
@pytest.mark.parametrize("generation", [0, 1, 999])
def test_keys_parse_back(topic, generation):
    for rewrite in ("", "00000000000000ff") if generation else ("",):
        key = klix_key(topic, TOPIC_ID, 2**31 - 1, 2**63 - 1, generation, rewrite)
        assert parse_key(key) == KlixKey(topic, TOPIC_ID, 2**31 - 1, 2**63 - 1, generation, rewrite)
    assert parse_key(pack_key(3, 4)) == PackKey(3, 4)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "ü", "x" * 250, "a b"])
def test_illegal_topics_get_no_key(topic):
    with pytest.raises(ValueError, match="topic name"):
        klix_key(topic, TOPIC_ID, 0, 0)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "orders-000102030405060708090A0B0C0D0E0F/7/00000000000000000042.obj",  # upper case
        "orders-000102030405060708090a0b0c0d0e0f/07/00000000000000000042.obj",
        "orders-000102030405060708090a0b0c0d0e0f/7/42.obj",
        "orders-000102030405060708090a0b0c0d0e0f/7/00000000000000000042-0.obj",
        "orders-000102030405060708090a0b0c0d0e0f/7/00000000000000000042-01.obj",
        "orders-000102030405060708090a0b0c0d0e0f/7/00000000000000000042-0-0123456789abcdef.obj",
        "orders-000102030405060708090a0b0c0d0e0f/7/00000000000000000042-1-0123456789ABCDEF.obj",
        "orders-000102030405060708090a0b0c0d0e0f/7/00000000000000000042-1-0123456789abcde.obj",
        "orders-000102030405060708090a0b0c0d0e0f/7/00000000000000000042-1-.obj",
        "orders-000102030405060708090a0b0c0d0e0f/7/99999999999999999999.obj",
        "orders-000102030405060708090a0b0c0d0e0f/2147483648/00000000000000000042.obj",
        "..-000102030405060708090a0b0c0d0e0f/7/00000000000000000042.obj",
        "orders-000102030405060708090a0b0c0d0e0f/7/00000000000000000042.obj\n",
        "_manifest/0000000001-00000000000000000001.rec",
        "_packs/1-2.pack",
        "_packs/b0000000001-1.pack",
        "_packs/b0000000000-00000000000000000000.pack",
        "_packs/b0000000001-99999999999999999999.pack",
        "_packs/b0000000001-00000000000000000000-0.pack",
        "orders-000102030405060708090a0b0c0d0e0f/7/00000000000000000042-b0000000000-00000000000000000000.obj",
        "orders-000102030405060708090a0b0c0d0e0f/7/00000000000000000042-0-b0000000001-00000000000000000000.obj",
        "orders-000102030405060708090a0b0c0d0e0f/7/"
        "00000000000000000042-1-0123456789abcdef-b0000000001-00000000000000000000.obj",
    ],
)
def test_foreign_keys_are_not_data(key):
    assert parse_key(key) is None


def test_keys_are_relative_to_the_root():
    keys = ObjectKeys(CLUSTER, "a/b")
    assert keys.root == f"a/b/kbroker-{CLUSTER}/"
    assert keys.manifest_dir == f"a/b/kbroker-{CLUSTER}/_manifest"
    full = keys.full(pack_key(1, 2))
    assert keys.relative(full) == pack_key(1, 2)
    assert keys.parse(full) == PackKey(1, 2)
    assert keys.parse("elsewhere/" + pack_key(1, 2)) is None
    assert split_root(full) == ("a/b", CLUSTER, pack_key(1, 2))
    assert split_root("klite-x/y") is None
    assert ObjectKeys(CLUSTER).root == f"kbroker-{CLUSTER}/"
    with pytest.raises(ValueError, match="not under"):
        keys.relative("elsewhere/x")
    with pytest.raises(ValueError, match="cluster id"):
        ObjectKeys("a/b")
