"""Manifest records and checkpoints are hostile JSON: refused as CorruptionError, or applied with all invariants."""

from __future__ import annotations

import copy
import itertools
import json
import os
import random
import time

from kbroker.errors import CorruptionError
from kbroker.storage.manifest.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.record_apply import apply_payload

SECONDS = float(os.environ.get("KBROKER_FUZZ_SECONDS", "2"))
TOPICS = [bytes([n]) * 16 for n in range(3)]
STRANGE = [None, True, -1, 0, 1, 2**63, -(2**63), 1.5, "", "x", "../x", [], {}, [[]], [0], "\ud800", "AAAA", 10**30]


def check(image: ManifestImage) -> None:
    """Objects in one gapless row per partition, live counts right, nothing both live and to be deleted."""
    live: dict[str, int] = {}
    for state in image.states():
        refs = list(image.objects_from(state.topic_id, state.partition))
        for before, after in itertools.pairwise(refs):
            assert before.end_offset == after.base_offset
        if refs:
            assert refs[-1].end_offset == state.end_offset
            assert refs[0].end_offset > state.log_start_offset
        assert state.data_bytes == sum(ref.length for ref in refs)
        for ref in refs:
            key = ref.key.removeprefix("root/")
            live[key] = live.get(key, 0) + 1
            assert ref.start + ref.length <= ref.size
            assert image.find(state.topic_id, state.partition, ref.base_offset) == ref
            assert image.find(state.topic_id, state.partition, ref.end_offset - 1) == ref
    assert live == {file.key: file.live for file in image.files.values()}
    assert not set(live) & set(image.deletions)


def plausible(rng: random.Random, image: ManifestImage, serial: int) -> dict:
    """A record that mostly fits."""
    files, partitions = [], {}
    for topic_id in rng.sample(TOPICS, rng.randint(0, 2)):
        for number in range(rng.randint(1, 3)):
            state = image.partition(topic_id, number)
            end = state.end_offset if state else 0
            delta: dict = {"r": []}
            for _ in range(rng.randint(0, 2)):
                base, end = end + (rng.random() < 0.02), end + rng.randint(1, 5)
                if not files or rng.random() < 0.5:
                    files.append([f"k-{serial}-{len(files)}{rng.choice(['.obj', '.pack'])}", 100, "e", 1])
                times = rng.choice([[], [-1, -1], [4, 0], [0, rng.randrange(9)]])
                delta["r"].append([len(files) - 1, base, max(end, base + 1), 0, 100, 1, 1, 5, 1, *times])
            if rng.random() < 0.3:
                delta["s"] = rng.randint(state.log_start_offset if state else 0, end + 1)
            if rng.random() < 0.3:
                delta["b"] = [[rng.randint(0, 5), 0, -1, 5, -1, [[0, 1, 0, 5]]]]
            if state and state.object_count and rng.random() < 0.2:
                row = state.row(rng.randrange(state.object_count))
                files.append([f"k-{serial}-m{len(files)}.obj", 100, "e", 1])
                delta["m"] = [row.base_offset]
                delta["r"].append([len(files) - 1, row.base_offset, row.end_offset, 0, 100, 1, 1, 5, 1])
            partitions.setdefault(topic_id.hex(), {})[str(number)] = delta
    used = {row[0] for deltas in partitions.values() for delta in deltas.values() for row in delta["r"]}
    record = {"v": 1, "t": serial, "f": files if len(used) == len(files) else files[:1], "p": partitions}
    if rng.random() < 0.05:
        record["d"] = {rng.choice(TOPICS).hex(): 5}
    if image.deletions and rng.random() < 0.3:
        record["x"] = [rng.choice(list(image.deletions))]
    return record


def places(value, found=None):
    """Every (container, key) in a JSON value."""
    found = [] if found is None else found
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found.append((value, key))
        places(item, found)
    return found


def damage(rng: random.Random, value):
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        spots = places(value)
        if not spots:
            return rng.choice(STRANGE)
        container, key = rng.choice(spots)
        if rng.random() < 0.2:
            del container[key]
            if isinstance(container, list):
                continue
        else:
            item = container[key]
            nudged = item + rng.choice([-1, 1]) if type(item) is int and rng.random() < 0.5 else rng.choice(STRANGE)
            container[key] = nudged
    return value


def test_records_and_checkpoints_apply_or_are_corrupt():
    rng = random.Random(os.environ.get("KBROKER_FUZZ_SEED", "6"))
    until = time.monotonic() + SECONDS
    accepted = refused = serial = 0
    image = ManifestImage("root/")
    while time.monotonic() < until or min(accepted, refused) <= 20:
        serial += 1
        if serial % 200 == 0:
            image = ManifestImage("root/")
        record = json.loads(json.dumps(plausible(rng, image, serial)))
        if rng.random() < 0.4:
            record = damage(rng, record)
        before = write_checkpoint(image)
        try:
            apply_payload(image, record, f"record {serial}")
            accepted += 1
        except CorruptionError as error:
            assert f"record {serial}" in str(error)  # noqa: PT017
            assert write_checkpoint(image) == before
            refused += 1
        check(image)
        payload = json.loads(json.dumps(write_checkpoint(image)))
        again = read_checkpoint(payload, "root/", "checkpoint")
        check(again)
        assert json.loads(json.dumps(write_checkpoint(again))) == payload
        try:
            check(read_checkpoint(damage(rng, payload), "root/", "checkpoint 5"))
        except CorruptionError as error:
            assert "checkpoint 5" in str(error)  # noqa: PT017
    assert accepted > 20
    assert refused > 20
