"""A cluster of one broker: it runs the cluster's protocol, with itself as the controller.

Its messages go through a queue in memory. It owns the cluster by the claim that it holds already, so no lease but its
own is alive, and whatever another broker number led is its to lead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kbroker.clock import Clock
from kbroker.cluster.metadata_state import MetadataState
from kbroker.cluster.own_changes import OwnChanges
from kbroker.cluster.own_surroundings import HeldClaim, OwnLease, OwnPost, OwnShare
from kbroker.cluster.protocol.broker import ClusterBroker, Surroundings
from kbroker.cluster.protocol.controller import Phase
from kbroker.cluster.protocol.ledger_copy import LedgerCopy
from kbroker.cluster.protocol.messages import Log, PartitionId
from kbroker.cluster.protocol.registration import Start
from kbroker.cluster.protocol.surroundings import PartitionHost
from kbroker.errors import CorruptionError, StartError
from kbroker.storage.ledger.numbered_log import Fenced
from kbroker.storage.ledger.ownership import Claim
from kbroker.storage.manifest.leadership import NO_LEADER
from kbroker.storage.stores.object_store import ObjectStore, StoreUnavailable

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0  # after a record that is in doubt


class OwnController:
    """Drives a ClusterBroker: delivers its messages, and appends what the controller has to say.

    The lock of both copies, which must be one, serialises the protocol's state, too. It is let go while a record is
    stored; the host's methods are called under it. It is taken after the lock of metadata changes, and before those of
    the host. The thread `controller` appends to the manifest; the threads that commit to it may do so beside.
    `on_end` is called once, on that thread and under no lock, when nothing can be appended any more: with Fenced,
    CorruptionError, or a fault. The broker must stop, and keep its WAL.
    """

    def __init__(
        self,
        ledger: LedgerCopy[MetadataState],
        start: Start,
        held: Claim,
        host: PartitionHost,
        clock: Clock,
        store: ObjectStore,
        on_end: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        if ledger.manifest.lock is None or ledger.metadata.lock is not ledger.manifest.lock:
            raise ValueError("the copies of the ledger have no lock in common")
        self._lock = ledger.manifest.lock  # notified when the state has changed, or something is to be done
        self._ledger = ledger
        self._start = start
        self._takes_over = held.record.take_over
        self._on_end = on_end
        self._post = OwnPost()
        self._is_due = self._is_stopped = False
        self._end: Exception | None = None  # why nothing is appended any more
        claims = HeldClaim(held, clock, self._lock)
        around = Surroundings(self._post, OwnLease(start, ledger), OwnShare(), clock, claims, store, host)
        self._broker = ClusterBroker(ledger, start, around)
        self._controller = self._broker.elected()
        # Of the metadata; for the thread that makes them.
        self.changes = OwnChanges(self._controller, self._wake_locked)
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    def begin(self) -> None:
        """Takes both logs over, and registers this start; every row that it may lead has it as leader then.

        Before `start`. Waits for the store. Raises StartError: it is refused; Fenced, CorruptionError, StoreError.
        """
        with self._lock:
            self._controller.claim()
            for log in Log:
                self._controller.seal(log)
            self._append_all_locked()
            if self._takes_over:
                self._controller.elect_unclean(self._places_of_others())
                self._append_all_locked()
            if self._broker.refusal:
                raise StartError(self._broker.refusal)
            if not self._broker.number or self._ledger.manifest.is_in_doubt:
                raise StoreUnavailable("this start could not be registered in the manifest")

    def _append_all_locked(self) -> None:
        while self._step_locked():
            pass
        self._check_term_locked()

    def _places_of_others(self) -> set[PartitionId]:
        """§5: what only the log of another directory has was given up by the take-over."""
        image, own = self._ledger.image, self._start.directory_id
        return {(row.topic_id, row.partition) for row in image.states() if row.tail is not None and row.tail[0] != own}

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; a record that is being stored ends first."""
        with self._lock:
            self._is_stopped = True
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def leave(self) -> bool:
        """§3, §5: leaves all partitions clean and without a leader, so that any directory may lead them, and releases
        the claim. False, and the claim stays: something is only in this log, or the store does not answer.

        After `stop`, and after the last flush. Waits for the store. Raises Fenced, CorruptionError; Superseded,
        StoreError: the claim is not known to be released.
        """
        with self._lock:
            self._broker.is_stopping = True
            leadership = self._broker.leadership
            for led in leadership or ():
                assert leadership is not None
                leadership.hand_over(led.place, NO_LEADER)
                leadership.hold(led.place)
                leadership.end_hold(led.place)
            self._append_all_locked()
            return self._controller.release()

    # -- what other threads ask for ------------------------------------------------------------------------------

    @contextmanager
    def state(self) -> Iterator[ClusterBroker]:
        """The broker's state, under the lock: nothing may wait in it. What it has to send is sent afterwards."""
        with self._lock:
            yield self._broker
            self._wake_locked()

    def wait_until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Waits until something holds of the state, which `holds` reads under the lock; False: it does not.

        Raises Fenced, CorruptionError: it never will.
        """
        with self._lock:
            self._lock.wait_for(lambda: holds() or self._end is not None, seconds)
            if holds():
                return True
            self._check_term_locked()
            return False

    # -- the thread ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Delivers what was sent, and appends one record if there is something to say. Waits for the store.

        False: nothing was stored, since nothing was due, or the record is in doubt. Raises Fenced, CorruptionError:
        nothing will be.
        """
        with self._lock:
            is_stored = self._step_locked()
            self._check_term_locked()
            return is_stored

    def _step_locked(self) -> bool:
        copy = self._ledger.manifest
        self._broker.send_requests()
        self._deliver_locked()
        copy.wait_idle()
        number = copy.number
        self._controller.append_manifest()
        self._deliver_locked()
        self._lock.notify_all()
        return copy.number > number

    def _deliver_locked(self) -> None:
        while self._post.messages:
            self._broker.deliver(self._post.messages.popleft())

    def _run(self) -> None:
        try:
            while self._wait_until_due():
                while self.step():
                    pass
        except Exception as error:
            if not isinstance(error, Fenced | CorruptionError):
                logger.exception("the controller has failed")
            with self._lock:
                self._controller.resign(str(error))  # other threads append to the metadata
                self._end = error
                self._lock.notify_all()
            self._on_end(error)

    def _wake_locked(self) -> None:
        self._is_due = True
        self._lock.notify_all()

    def _wait_until_due(self) -> bool:
        """False: it is to stop."""
        with self._lock:
            seconds = RETRY_SECONDS if self._ledger.manifest.is_in_doubt else None
            self._lock.wait_for(lambda: self._is_due or self._is_stopped, seconds)
            self._is_due = False
            return not self._is_stopped

    def _check_term_locked(self) -> None:
        if self._end is None and self._controller.phase is Phase.OVER:
            owner = self._ledger.manifest.epoch
            self._end = self._controller.failure or Fenced(f"epoch {owner} owns the log of the manifest")
            self._wake_locked()  # the thread tells the broker
        if self._end is not None:
            raise self._end
