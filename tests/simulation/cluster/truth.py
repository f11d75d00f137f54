"""What is in the bucket's two logs at each moment, by the real modules that read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.cluster.features import LEADERSHIP
from kbroker.cluster.image import MetadataImage
from kbroker.cluster.records import parse_payload
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.loaded_log import LoadedLog
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.manifest.record_apply import apply_record
from kbroker.storage.manifest.record_check import check_record
from kbroker.storage.manifest.record_decode import read_record
from tests.simulation.cluster import codec
from tests.simulation.cluster.bucket import Bucket
from tests.simulation.cluster.records import Entry, Place, named
from tests.simulation.cluster.violation import Violation

KEYS = ObjectKeys("4L6g3nShT-eMCtK--X86sw")


class Body(dict[Place, list[Entry]]):
    """An object of data: the entries of one or more partitions."""


class Brief:
    """A record as the trace shows it."""

    def __init__(self, record: ManifestRecord) -> None:
        self._record = record

    def __str__(self) -> str:
        record = self._record
        said = [
            f"{named(place)} +{[(row.base_offset, row.end_offset) for row in delta.added]}"
            f" -{list(delta.removed)} start {delta.log_start_offset} by {delta.number} epoch {delta.leader_epoch}"
            for place, delta in record.partitions.items()
        ]
        said += [f"files {[entry.key for entry in record.files]}"] if record.files else []
        said += [f"broker {entry.number} of {entry.directory_id}" for entry in record.registrations]
        said += [f"fence {number}" for number in record.fences]
        said += [f"new {named(entry[:2])} {entry.mode.name}" for entry in record.new_partitions]
        said += [f"{named(move[:2])} to {move[2:]}" for move in record.moves]
        said += [f"{named(mode[:2])} reaches {mode.mode.name}" for mode in record.modes]
        said += [f"drop {named((topic_id, 0))}" for topic_id, _ in record.dropped_topics]
        said += [f"deleted {list(record.deleted)}"] if record.deleted else []
        return "; ".join(said)


class Truth:
    """Follows the bucket as its objects appear. `before` and `after` get each record of the manifest."""

    def __init__(
        self,
        bucket: Bucket,
        note: Callable[..., None],
        before: Callable[[ManifestRecord], None],
        after: Callable[[ManifestRecord], None],
    ) -> None:
        self.manifest = ManifestImage(KEYS.root)
        self.metadata = MetadataImage()
        self._note = note
        self._bucket, self._before, self._after = bucket, before, after
        store: Any = bucket  # LoadedLog.advance reads nothing
        self.manifest_log = LoadedLog(store, f"{KEYS.manifest_dir}/", self._on_manifest)
        self.metadata_log = LoadedLog(store, f"{KEYS.metadata_dir}/", self._on_metadata)

    def created(self, key: str, body: Any) -> None:
        """An object has appeared."""
        for log, directory in ((self.manifest_log, KEYS.manifest_dir), (self.metadata_log, KEYS.metadata_dir)):
            if key.startswith(directory):
                while (data := self._bucket.objects.get(log.record_key(log.last + 1, log.authority))) is not None:
                    log.advance(data)

    def _on_manifest(self, number: int, kind: str, payload: Any) -> None:
        name = f"manifest record {number}"
        record = read_record(payload, name)
        if codec.version(payload) > codec.BEFORE and self.metadata.level < LEADERSHIP:
            raise Violation(f"{name}, at level {self.metadata.level}, is of a version that it does not allow")
        self._note("manifest %d: %s", number, Brief(record))
        self._before(record)
        check_record(self.manifest, record, name)
        apply_record(self.manifest, record)
        self._after(record)

    def _on_metadata(self, number: int, kind: str, payload: Any) -> None:
        where = f"metadata record {number}"
        changes = parse_payload(payload, where)
        self._note("metadata %d: %s", number, changes)
        self.metadata = self.metadata.apply(number, changes, where)

    @property
    def positions(self) -> tuple[int, int]:
        """The last number of each log."""
        return self.manifest_log.last, self.metadata_log.last

    def entries(self, place: Place) -> list[Entry]:
        """The records of a partition in the objects that the ledger names, in order."""
        found = []
        for ref in self.manifest.objects_from(*place):
            body = self._bucket.objects[ref.key]
            found += [entry for entry in body[place] if ref.base_offset <= entry.offset < ref.end_offset]
        return found

    def stored(self, place: Place, offset: int) -> Entry | None:
        """The record at an offset, if the ledger has it."""
        ref = self.manifest.find(*place, offset)
        if ref is None or ref.base_offset > offset:
            return None
        return next((entry for entry in self._bucket.objects[ref.key][place] if entry.offset == offset), None)
