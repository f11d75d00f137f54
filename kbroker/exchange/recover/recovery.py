"""Recovery of a cluster whose manifest cannot be loaded, from its readable part and from the objects themselves.

`look` reads and decides, `store` commits: by one checkpoint under a new broker epoch (restart.py). Nothing in the
bucket is deleted or overwritten, so a failed recovery can be repeated.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from kbroker.clock import Clock
from kbroker.cluster.image import MetadataImage
from kbroker.cluster.read_only import READER_EPOCH, load_topics, retried
from kbroker.errors import CorruptionError, StartError
from kbroker.exchange.recover.chain import choose
from kbroker.exchange.recover.image import build_image
from kbroker.exchange.recover.object_maker import ObjectMaker
from kbroker.exchange.recover.prefix import Position, PrefixReader, ReadablePrefix
from kbroker.exchange.recover.restart import LogRestart
from kbroker.exchange.recover.state import RecoveredPartition, fold
from kbroker.exchange.recover.survey import BucketSurvey, Survey
from kbroker.exchange.source_error import SourceError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import ObjectKeys
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.ledger.numbered_log_format import NONCE_BYTES
from kbroker.storage.ledger.ownership import Claim, Superseded, claim, newest_claim
from kbroker.storage.manifest.checkpoints.checkpoint import CheckpointWriter, read_checkpoint
from kbroker.storage.manifest.checkpoints.kept_parts import part_folder
from kbroker.storage.manifest.image import ManifestImage
from kbroker.storage.manifest.manifest import Manifest
from kbroker.storage.stores.object_store import ObjectStore, StoreError

CLAIM_HOST = "kbroker-recover:"  # prefix of the host in its claim


@dataclass(slots=True)
class Findings:
    """The facts and decisions of a look; `lines` is the report."""

    damage: str
    prefix: ReadablePrefix
    survey: Survey
    partitions: list[RecoveredPartition]
    listed: frozenset[tuple[str, str]]  # (key, ETag) of all listed objects

    def lines(self) -> Iterator[str]:
        """The lines of the report."""
        prefix, survey = self.prefix, self.survey
        yield f"damaged: {self.damage}"
        yield from prefix.faults
        yield (
            f"readable: up to record {prefix.number} (checkpoint {prefix.checkpoint_number}, {prefix.records} records "
            f"after it); of {prefix.records_after} records after the damage only ends and log starts are used"
        )
        yield f"{survey.read} objects that it does not name were read, {survey.read_bytes} bytes"
        yield from (f"missing: {line}" for line in survey.missing)
        yield from (f"unusable: {line}" for line in survey.unusable)
        for topic, found in sorted(survey.unknown_topics.items()):
            yield from (f"not used: {key}, of a topic that the metadata does not have: {topic}" for key in found)
        for partition in self.partitions:
            yield from _partition_lines(partition)
        yield from prefix.brokers.lines()
        yield (
            "lost, if only in records after the readable part: log starts set by DeleteRecords and retention, "
            "and what brokers had not flushed"
        )


def _partition_lines(partition: RecoveredPartition) -> Iterator[str]:
    where = f"{partition.topic}-{partition.position[1]}"
    known = f", of which the manifest knew {partition.known_end_offset}" if partition.known is not None else ""
    yield f"{where}: offsets {partition.log_start_offset} to {partition.end_offset}{known}"
    for piece in partition.chain.pieces:
        if piece.image is not None and not piece.image.known:
            yield f"{where}: taken: {piece.image.name}, offsets {piece.base_offset} to {piece.end_offset}"
    yield from (f"{where}: choice: {line}" for line in partition.chain.choices)
    yield from (f"{where}: gap: {line}" for line in partition.chain.gaps)
    yield from (f"{where}: {line}" for line in partition.notes)


class Recovery:
    """One cluster. Raises StoreError, CorruptionError, SourceError, StartError."""

    def __init__(self, store: ObjectStore, keys: ObjectKeys, clock: Clock, retries: RetryPolicy | None = None) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._retries = retries or RetryPolicy(20.0, clock=clock)

    def damage(self) -> str | None:
        """Why the manifest cannot be loaded; None when it can."""

        def load() -> None:
            log = NumberedLog(self._store, self._keys.manifest_dir, READER_EPOCH, bytes(NONCE_BYTES))
            Manifest(log, self._clock, root=self._keys.root).load_whole(self._store)

        try:
            retried(load)
        except CorruptionError as error:
            return str(error)
        return None

    def check_free(self, take_over: bool) -> None:
        """StartError while a broker owns the cluster, unless with `take_over`."""
        try:
            holder = newest_claim(self._store, self._keys.root)
        except CorruptionError as error:
            raise StartError(f"cannot tell which broker owns the cluster: {error}; nothing was changed") from None
        if holder is not None and not holder.released and not take_over:
            raise StartError(
                f"cluster {self._keys.cluster_id} was not released by epoch {holder.epoch} (host {holder.host}, pid "
                f"{holder.pid}). If that broker is stopped for good, use --take-over: what it had acknowledged and not "
                "yet flushed is only in its data directory, and is lost to the cluster; nothing was changed"
            )

    # -- deciding ----------------------------------------------------------------------------------------------

    def look(self) -> Findings:
        """Reads and decides everything, and changes nothing. SourceError: there is nothing to recover."""
        damage = self.damage()
        if damage is None:
            raise SourceError(f"the manifest of cluster {self._keys.cluster_id} can be loaded: nothing to recover")
        topics = load_topics(self._store, self._keys)
        if topics.number == 0:
            raise SourceError(f"{self._keys.metadata_dir}: no metadata: the topics are unknown")
        listed = self._listed()
        prefix = PrefixReader(self._store, self._keys).read()
        for key, _ in listed:
            prefix.brokers.add_key(self._keys.parse(key))
        survey = BucketSurvey(self._store, self._keys, prefix.image, topics, prefix.dropped).run()
        made = {position for position in prefix.brokers.modes if position[0] not in prefix.dropped}
        positions = survey.images.keys() | prefix.ends.keys() | self._known_positions(prefix) | made
        partitions = [self._partition(position, prefix, survey, topics) for position in positions]
        partitions.sort(key=lambda partition: (partition.topic, partition.position))
        return Findings(damage, prefix, survey, partitions, listed)

    def _listed(self) -> frozenset[tuple[str, str]]:
        folders = (f"{self._keys.manifest_dir}/", f"{self._keys.metadata_dir}/", f"{self._keys.claims_dir}/")
        metas = self._store.list(self._keys.root)
        return frozenset((meta.key, meta.etag) for meta in metas if not meta.key.startswith(folders))

    def _known_positions(self, prefix: ReadablePrefix) -> set[Position]:
        return {(state.topic_id, state.partition) for state in prefix.image.states()}

    def _partition(
        self, position: Position, prefix: ReadablePrefix, survey: Survey, topics: MetadataImage
    ) -> RecoveredPartition:
        known = prefix.image.partition(*position)
        images = survey.images.get(position, [])
        log_start = max(prefix.log_starts.get(position, 0), known.log_start_offset if known is not None else 0)
        seen = [known.end_offset if known is not None else 0, prefix.ends.get(position, 0)]
        highest = max(*seen, *(image.end_offset for image in images), 0)
        chain = choose(images, log_start, highest)
        topic = topics.by_id.get(position[0])
        notes: list[str] = []
        pieces = chain.pieces
        if pieces and pieces[0].base_offset > log_start:
            first = pieces[0].base_offset
            notes.append(f"offsets {log_start} to {first} are gone: retention took them, or they are lost")
            log_start = first
        end = pieces[-1].end_offset if pieces else highest
        if not pieces and log_start < highest:
            notes.append(f"offsets {log_start} to {highest}: no object is left of them")
            log_start = highest
        folded = fold(self._store, self._keys, position, known, chain, end)
        for producer_id, first in folded.open_transactions or ():
            notes.append(f"transaction of producer {producer_id} is open from offset {first} on")
        base = pieces[0].base_offset if pieces else end
        name = topic.name if topic is not None else position[0].hex()
        return RecoveredPartition(name, position, known, chain, log_start, base, end, folded, notes)

    # -- storing -----------------------------------------------------------------------------------------------

    def store(self, findings: Findings, take_over: bool) -> tuple[str, Findings]:
        """Claims the cluster and commits `findings`, or new ones if the bucket has changed: returns them with the key
        of the checkpoint. The claim is always released if the cluster was free."""
        owned = claim(
            self._store,
            self._keys.root,
            uuid.uuid4().hex,
            take_over,
            self._clock.now_ms(),
            host=f"{CLAIM_HOST}{socket.gethostname()}",
            retries=self._retries,
        )
        try:
            key, findings = self._store_owned(owned, findings)
        except BaseException:
            if owned.previous is None or owned.previous.released:
                self._release(owned)
            raise
        if (failure := self._release(owned)) is not None:
            raise StartError(f"recovered, but the cluster could not be released: {failure}; start with --take-over")
        return key, findings

    def _release(self, owned: Claim) -> Exception | None:
        try:
            owned.release(self._clock.now_ms())
        except (StoreError, Superseded) as error:
            return error
        return None

    def _store_owned(self, owned: Claim, findings: Findings) -> tuple[str, Findings]:
        nonce = os.urandom(NONCE_BYTES)
        try:
            restart = LogRestart(self._store, self._keys, owned.epoch, nonce, self._retries)
            restart.begin()
            metadata = NumberedLog(self._store, self._keys.metadata_dir, owned.epoch, nonce, retries=self._retries)
            metadata.load(lambda number, payload: None, lambda number, kind, payload: None)
            metadata.seal_previous()
            if self.damage() is None or self._listed() != findings.listed:
                findings = self.look()
            image = self._image(findings)
            payload = self._checkpoint(image, owned.epoch)
            owned.check()
            return restart.finish(payload), findings
        except (Fenced, Superseded) as error:
            raise StartError(f"another broker has taken over the cluster: {error}") from None

    def _image(self, findings: Findings) -> ManifestImage:
        maker = ObjectMaker(self._store, self._keys, self._retries)
        return build_image(findings.prefix, findings.partitions, maker, self._clock.now_ms())

    def _checkpoint(self, image: ManifestImage, epoch: int) -> object:
        """Stores the parts; the checkpoint is read back as a start reads it, which checks all of it."""
        parts = part_folder(self._store, self._keys.manifest_dir, epoch)
        version = load_topics(self._store, self._keys).forms.part
        writer = CheckpointWriter(parts, lambda: version)
        payload = writer.store(writer.snapshot(image))
        read_checkpoint(payload, self._keys.root, "recovered manifest", parts)
        return payload
