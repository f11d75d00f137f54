import json
from types import SimpleNamespace

from kbroker.cli.offline.object_show import log_object_json
from kbroker.clock import ManualClock
from kbroker.storage.ledger.numbered_log import NumberedLog
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.memory_store import MemoryStore
from tests.unit.storage.flush.flush_harness import KEYS, ONCE
from tests.unit.storage.manifest.changes import change_of

TOPIC = bytes(range(16))


def test_a_manifest_record_in_columns_is_shown_by_the_names_of_its_fields():
    store = MemoryStore()
    log = NumberedLog(store, KEYS.manifest_dir, 1, bytes(16), retries=ONCE)
    manifest = Manifest(log, ManualClock(), root=KEYS.root, record_version=lambda: 3)
    manifest.load()
    delta = {"e": 1, "r": [[0, 0, 1, 0, 10, 1, 1, 5, 1]]}
    manifest.commit(change_of({"f": [["k", 10, "e", 1]], "p": {TOPIC.hex(): {"3": delta}}}))
    meta = max(store.list(KEYS.manifest_dir), key=lambda meta: meta.key[-24:])
    shown = json.loads(log_object_json(SimpleNamespace(store=store, keys=KEYS), meta))
    payload = shown["content"]["payload"]
    assert payload["files"] == [{"key": "k", "size": 10, "etag": "e", "crc32c": 1}]
    assert payload["partitions"][f"{TOPIC.hex()}-3"]["end_offset"] == 1
    assert payload["partitions"][f"{TOPIC.hex()}-3"]["added"][0]["length"] == 10
