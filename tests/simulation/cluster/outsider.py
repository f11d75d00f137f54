"""A job, or a single broker, that wants the bucket: it may have it only after the cluster has released it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.cluster.protocol.election import is_all_clean
from kbroker.errors import StartError
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger import ownership
from kbroker.storage.ledger.numbered_log import Fenced, NumberedLog
from kbroker.storage.manifest.record import ManifestRecord
from kbroker.storage.stores.object_store import StoreError
from tests.simulation.cluster import codec
from tests.simulation.cluster.beginning import EMPTY as EMPTY_RECORD
from tests.simulation.cluster.bucket import ALWAYS, BrokerStore
from tests.simulation.cluster.flushing import EMPTY as UNCHANGED
from tests.simulation.cluster.truth import KEYS
from tests.simulation.cluster.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

ONCE = RetryPolicy(deadline_s=0.0, wait=lambda seconds: True)
FOREIGN = "etcd-2/kbroker"


class Outsider:
    """`is_running`: it has the bucket, or tries to get it."""

    def __init__(self, world: World) -> None:
        self.is_running = False
        self._world = world
        self._store = BrokerStore(world.bucket, ALWAYS, world.rng)

    def begin(self, cluster: str) -> None:
        """One run. `cluster`: of another etcd, or empty."""
        if not self.is_running:
            self.is_running = True
            self._world.spawn(lambda: self._run(cluster))

    def _run(self, cluster: str) -> None:
        try:
            claim = self._claim(cluster)
            if claim is not None:
                self._world.note("an outsider claims epoch %d", claim.epoch)
                self._change(claim.epoch)
                while not self._try(lambda: claim.release(self._world.clock.now_ms(), ONCE)):
                    pass
                self._world.note("the outsider releases epoch %d", claim.epoch)
        finally:
            self.is_running = False

    def _claim(self, cluster: str) -> ownership.Claim | None:
        world = self._world
        try:
            return ownership.claim(
                self._store, KEYS.root, "d-outside", False, world.clock.now_ms(),
                cluster=cluster, host="outside", pid=1, nonce=f"{world.new_id():032x}", retries=ONCE,
            )  # fmt: skip
        except (StartError, StoreError) as error:
            world.note("an outsider is refused: %s", error)
            return None

    def _change(self, epoch: int) -> None:
        """Takes both logs over, as a start does, and deletes the oldest object of a partition."""
        truth = self._world.checker.truth
        for directory in (KEYS.metadata_dir, KEYS.manifest_dir):
            log = NumberedLog(self._store, directory, epoch, self._world.new_id().to_bytes(16, "big"), retries=ONCE)
            self._until_done(lambda log=log: log.load(lambda *_: None, lambda *_: None))
            self._until_done(log.seal_previous)
        if not is_all_clean(truth.manifest):
            raise Violation(f"an outsider has the bucket under epoch {epoch}, and a broker leads a partition")
        record = self._record()
        if record is not None:
            payload = codec.encode_record(record)
            self._until_done(lambda: log.append("manifest", payload))

    def _record(self) -> ManifestRecord | None:
        for row in self._world.checker.truth.manifest.states():
            if row.object_count > 1 and row.topic_id != self._world.transaction_place[0]:
                place, offset = (row.topic_id, row.partition), row.row(1).base_offset
                self._world.checker.contents.ask_start(place, offset)
                delta = UNCHANGED._replace(log_start_offset=max(offset, row.log_start_offset))
                return EMPTY_RECORD._replace(partitions={place: delta})
        return None

    def _until_done(self, request: Any) -> None:
        while not self._try(request):
            pass

    def _try(self, request: Any) -> bool:
        try:
            request()
        except StoreError:
            return False
        except (Fenced, ownership.Superseded) as error:
            raise Violation(f"an outsider that has the bucket is fenced: {error}") from error
        return True
