"""The claim of a controller epoch in the bucket (cluster protocol §3)."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.clock import Clock
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.ownership import Claim, claim
from kbroker.storage.stores.object_store import ObjectStore


class ControllerClaims:
    """Claims for one broker of a cluster, and looks whether a newer claim exists. Waits for the store.

    `cluster`: etcd's cluster id and prefix, which the claim carries. `adopt`: also over the claim of another etcd.
    """

    def __init__(
        self,
        store: ObjectStore,
        root: str,
        data_dir_id: str,
        cluster: str,
        clock: Clock,
        *,
        adopt: bool = False,
        host: str | None = None,
        pid: int | None = None,
        retries: RetryPolicy | None = None,
        nonce: Callable[[], str] | None = None,
    ) -> None:
        self._store = store
        self._root = root
        self._data_dir_id = data_dir_id
        self._cluster = cluster
        self._clock = clock
        self._adopt = adopt
        self._host = host
        self._pid = pid
        self._retries = retries
        self._nonce = nonce
        self._claim: Claim | None = None

    def claim(self) -> int:
        """The next controller epoch, claimed. Raises StartError: the cluster is another's; StoreError."""
        self._claim = claim(
            self._store,
            self._root,
            self._data_dir_id,
            take_over=False,
            now_ms=self._clock.now_ms(),
            cluster=self._cluster,
            adopt=self._adopt,
            host=self._host,
            pid=self._pid,
            retries=self._retries,
            nonce=self._nonce() if self._nonce is not None else None,
        )
        return self._claim.epoch

    def look(self) -> None:
        """Raises Superseded if a higher epoch is claimed; StoreError if that is unknown."""
        if self._claim is not None:
            self._claim.look()

    def release(self) -> None:
        """By the last broker to stop, when every registered directory is recorded as clean. Raises as Claim.release."""
        if self._claim is not None:
            self._claim.release(self._clock.now_ms())
