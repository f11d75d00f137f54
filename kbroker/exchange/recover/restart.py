"""Restarts a damaged numbered log at a number above those of all its objects.

Nothing is deleted or overwritten. In this order, each object by a conditional write:

1. a seal at the next number of the epoch that owned the log: an owner that was paused finds its key taken;
2. a seal under epoch 0 at the restart's number, as every log begins with one: its creator owns the log from there;
3. a checkpoint of that number and epoch, with the recovered state: now the log can be loaded, and objects with lower
   numbers are covered.

Each run continues an earlier one: a restart without a checkpoint is taken over by a seal, under the key that its
owner's first record would need. The checkpoint's key is the same for all runs, so only one succeeds.
"""

from __future__ import annotations

from kbroker.errors import CorruptionError
from kbroker.exchange.source_error import SourceError
from kbroker.limits import NUMBERED_LOG_OBJECT_BYTES_MAX
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.formats.object_keys import CLAIMS_DIR, ObjectKeys
from kbroker.storage.ledger.numbered_log_format import (
    FrameKind,
    checkpoint_name,
    decode_frame,
    encode_frame,
    encode_seal,
    log_objects,
    record_name,
    sealed_by,
)
from kbroker.storage.stores.conditional_write import create_once
from kbroker.storage.stores.object_store import ObjectStore

STEP = 1_000_000  # restarts are at its multiples: beyond the numbers that a running owner could reach
TRIES = 10


class LogRestart:
    """One restart of the manifest log by the owner of broker epoch `epoch`. Raises StoreError, SourceError."""

    def __init__(self, store: ObjectStore, keys: ObjectKeys, epoch: int, nonce: bytes, retries: RetryPolicy) -> None:
        self.number = 0
        self._store = store
        self._keys = keys
        self._directory = f"{keys.manifest_dir}/"
        self._epoch = epoch
        self._nonce = nonce
        self._retries = retries
        self._owner = 0  # the epoch that may append after `number`
        self._records: set[tuple[int, int]] = set()  # (number, epoch)
        self._newest = 0

    def begin(self) -> None:
        """Steps 1 and 2: from now on no earlier owner can append."""
        for _ in range(TRIES):
            self._list()
            sealed = [self._create_seal(number, epoch) is None for number, epoch in self._next_of_owners()]
            if all(sealed):
                break
        else:
            raise SourceError(f"{self._directory}: another broker is still writing; stop it")
        while not self._own(self.number):
            self.number += STEP

    def finish(self, payload: object) -> str:
        """Step 3; returns the checkpoint's key. From now on it is the cluster's state."""
        key = self._directory + checkpoint_name(self.number)
        content = {"kind": "checkpoint", "payload": payload}
        data = encode_frame(FrameKind.CHECKPOINT, self.number, self._owner, self._nonce, content)
        present = create_once(self._store, key, data, self._retries, NUMBERED_LOG_OBJECT_BYTES_MAX)
        if present is not None:
            raise SourceError(f"{key}: another recovery has finished")
        return key

    def _list(self) -> None:
        listed = (meta.key for meta in self._store.list(self._directory))
        self._records, checkpoints = log_objects(listed, self._directory)
        newest = max(checkpoints, default=0)
        # A restart of an earlier run without a checkpoint is no part of the log.
        begun = [number for number, epoch in self._records if epoch == 0 and number > max(newest, 1)]
        region = min(begun, default=None)
        if region is not None:
            self._records = {key for key in self._records if key[0] < region}
        self._newest = max([newest, *(number for number, _ in self._records)])
        self.number = region if region is not None else (self._newest // STEP + 1) * STEP

    def _next_of_owners(self) -> list[tuple[int, int]]:
        """(number, epoch) of the owner's next record; of several possible owners if damage hides the owner."""
        if not self._records:
            return []  # unknown
        epoch = max(epoch for _, epoch in self._records)
        sealed_by = self._sealed_by(max(at for at, of in self._records if of == epoch), epoch)
        if sealed_by is not None:
            return [(self._newest + 1, sealed_by)] if sealed_by != self._epoch else []
        claims = f"{self._keys.root}{CLAIMS_DIR}/"
        names = (meta.key[len(claims) :].removesuffix(".json") for meta in self._store.list(claims))
        later = [int(name) for name in names if name.isdigit() and epoch < int(name) < self._epoch]
        return [(self._newest + 1, owner) for owner in (epoch, *later)]

    def _sealed_by(self, number: int, epoch: int) -> int | None:
        key = self._directory + record_name(epoch, number)
        try:
            return sealed_by(decode_frame(self._store.get(key, 0, NUMBERED_LOG_OBJECT_BYTES_MAX), key))
        except CorruptionError:
            return None

    def _create_seal(self, number: int, epoch: int) -> bytes | None:
        """Creates a seal; None when it is there, else the object that is there."""
        key = self._directory + record_name(epoch, number)
        data = encode_seal(number, epoch, self._nonce, self._epoch)
        return create_once(self._store, key, data, self._retries, NUMBERED_LOG_OBJECT_BYTES_MAX)

    def _own(self, number: int) -> bool:
        """Follows the seals from the restart's number on, and appends ours. False: the first one is unreadable."""
        epoch, at = 0, number
        while (present := self._create_seal(at, epoch)) is not None:
            key = self._directory + record_name(epoch, at)
            try:
                by = sealed_by(decode_frame(present, key))
            except CorruptionError:
                if epoch == 0:
                    return False
                raise
            if by is None or not epoch < by < self._epoch:
                raise SourceError(f"{key}: another broker owns the log now")
            if epoch == 0:
                self._owner = by
            epoch, at = by, at + 1
        if epoch == 0:
            self._owner = self._epoch
        return True
