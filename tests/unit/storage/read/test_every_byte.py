"""Rot at any byte of any object, its ETag as before: `object verify` names the object, or its page says why not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.storage.formats.kfs import parse_segment
from kbroker.storage.formats.kfs_index import INDEX_HEADER_BYTES, rebuild_index
from kbroker.storage.formats.kfs_keys import KfsKey, index_key_of
from kbroker.storage.formats.object_keys import KlixKey, PackKey
from kbroker.storage.formats.pack import ENTRY_BYTES, FOOTER_BYTES
from kbroker.storage.manifest.checkpoints import parts as manifest_parts
from kbroker.storage.read.object_audit import BucketAudit, NamedImage
from kbroker.storage.stores.memory_store import MemoryStore
from kbroker.storage.stores.object_store import ObjectMeta
from kbroker.storage.stores.store_wrappers import StoreWrapper
from tests.unit.exchange.recover.recover_bucket import DamagedCluster
from tests.unit.storage.read.object_bucket import KEYS

FLIPS = (0x01, 0x80)


class RottenStore(StoreWrapper):
    """`rotten`: bytes that some objects have instead of their own, although nothing else tells."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.rotten: dict[str, bytes] = {}

    def get(self, key: str, start: int | None = None, length: int | None = None, if_match: str | None = None) -> bytes:
        if key not in self.rotten:
            return super().get(key, start, length, if_match)
        first, data = start or 0, self.rotten[key]
        return data[first:] if length is None else data[first : first + length]

    def get_into(self, key: str, start: int, out: memoryview, if_match: str | None = None) -> int:
        out[:] = self.get(key, start, len(out), if_match)
        return len(out)


class Rotting:
    """A cluster with an object of every kind, of which one byte at a time is another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(manifest_parts, "INLINE_BYTES_MAX", 0)  # parts of checkpoints are objects
        made = DamagedCluster()
        made.fill()
        made.manifest.checkpoint()
        self.store = RottenStore(made.store)
        for meta in list(self.store.list(KEYS.root)):
            key = KEYS.parse(meta.key)
            if isinstance(key, KfsKey) and not key.is_index:
                index = rebuild_index(parse_segment(self.store.get(meta.key), meta.key), meta.key)
                self.store.put(index_key_of(meta.key), index)
        self.image = made.loaded()
        self.audit = BucketAudit(self.store, KEYS, self.image)
        self.listed: dict[str, ObjectMeta] = {meta.key: meta for meta in self.store.list(KEYS.root)}
        self.named: dict[str, list[NamedImage]] = {}
        for state in self.image.states():
            for ref in self.image.objects_from(state.topic_id, state.partition):
                self.named.setdefault(ref.key, []).append(NamedImage(state.topic_id, state.partition, ref))

    def faults(self, key: str) -> list[str]:
        """What verify says of one object."""
        parsed = KEYS.parse(key)
        if isinstance(parsed, KfsKey) and parsed.is_index:
            key = key.removesuffix(".index") + ".kfs"
        if not isinstance(parsed, KlixKey | PackKey | KfsKey):
            return list(self.audit.log_faults(self.listed[key]))
        images = sorted(self.named[key], key=lambda item: item.ref.start)
        return list(self.audit.object_faults(key, self.listed[key], images, self.listed.get(index_key_of(key))))

    def rotten(self, key: str) -> Iterator[tuple[int, bytes, list[str]]]:
        """(position, bytes, faults) for every byte of an object, each bit or two in turn."""
        good = self.store.get(key)
        for position in range(len(good)):
            for flip in FLIPS:
                bad = good[:position] + bytes([good[position] ^ flip]) + good[position + 1 :]
                self.store.rotten[key] = bad
                yield position, bad, self.faults(key)
        self.store.rotten[key] = good


@pytest.fixture
def rotting(monkeypatch: pytest.MonkeyPatch) -> Rotting:
    return Rotting(monkeypatch)


def kind_of(key: str) -> str:
    relative = KEYS.relative(key)
    folder = relative.partition("/")[0]
    return f"{folder if folder.startswith('_') else 'data'} {Path(relative).suffix}"


def chosen(rotting: Rotting) -> dict[str, str]:
    """The smallest live object of every kind."""
    found: dict[str, str] = {}
    for key, meta in sorted(rotting.listed.items(), key=lambda item: item[1].size):
        parsed = KEYS.parse(key)
        images = rotting.named.get(key.replace(".index", ".kfs"), [])
        if parsed is not None and not images:
            continue
        directory = sum(image.ref.length + ENTRY_BYTES for image in images) + FOOTER_BYTES
        if not isinstance(parsed, PackKey) or directory == meta.size:  # what is not named any more may be anything
            found.setdefault(kind_of(key), key)
    return found


KINDS = {
    "data .obj", "data .kfs", "data .index", "_packs .pack", "_manifest .rec", "_manifest .ckp",
    "_manifest_parts .part", "_metadata .rec", "_claims .json",
}  # fmt: skip


def test_there_is_an_object_of_every_kind_and_nothing_is_wrong(rotting: Rotting) -> None:
    assert set(chosen(rotting)) == KINDS
    assert [fault for key in chosen(rotting).values() for fault in rotting.faults(key)] == []


@pytest.mark.parametrize("kind", sorted(KINDS - {"_claims .json"}))
def test_each_byte_of_an_object(rotting: Rotting, kind: str) -> None:
    key = chosen(rotting)[kind]
    unseen = sorted({position for position, _, faults in rotting.rotten(key) if not any(key in f for f in faults)})
    assert unseen == []


def test_each_byte_of_every_seal(rotting: Rotting) -> None:
    seals = [key for key in rotting.listed if key.endswith(".rec") and rotting.store.get(key)[6] == 3]
    assert len(seals) >= 2
    for key in seals[:2]:
        assert all(any(key in fault for fault in faults) for _, _, faults in rotting.rotten(key))


def test_each_byte_of_a_claim(rotting: Rotting) -> None:
    key = chosen(rotting)["_claims .json"]
    good = rotting.store.get(key)
    name = good.index(b'"crc32c"')
    for position, _, faults in rotting.rotten(key):
        # Rot in the checksum's own name makes it an unknown member; all that the claim says is as it was.
        assert any(key in fault for fault in faults) or name < position <= name + len("crc32c"), position


def test_each_byte_of_a_claim_of_an_earlier_release(rotting: Rotting) -> None:
    """It has no checksum: rot is found where it breaks the form, the version or the epoch."""
    key = chosen(rotting)["_claims .json"]
    values = json.loads(rotting.store.get(key))
    del values["crc32c"]
    rotting.store.rotten[key] = json.dumps(values, sort_keys=True, indent=1).encode()
    assert rotting.faults(key) == []
    for position, bad, faults in rotting.rotten(key):
        if not faults:
            now = json.loads(bad)
            assert (now["version"], now["epoch"], now["released"]) == (1, values["epoch"], values["released"]), position


def test_the_header_of_an_index_is_what_a_broker_writes(rotting: Rotting) -> None:
    """Its interval too, at bytes 10 to 13: no reader needs it, so nothing else would find it."""
    key = chosen(rotting)["data .index"]
    named = {position for position, _, faults in rotting.rotten(key) if faults}
    assert named >= set(range(INDEX_HEADER_BYTES))
