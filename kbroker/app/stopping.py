"""The stop of a broker: in which order its parts stop, what is kept where, and the exit code.

What was acknowledged survives any stop: it is in the bucket or in the log, and the log is closed in any case. One
deadline (kbroker.app.stop_deadline) bounds all steps; closing the log may take a little longer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kbroker.app.broker import Broker
from kbroker.log.unflushed import described, unflushed_ranges
from kbroker.retry_policy import RetryPolicy
from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.stores.object_store import StoreError

logger = logging.getLogger("kbroker")

# Of `kbroker serve`; 2 is a usage error.
EXIT_CLEAN = 0  # everything is in the bucket, and the claim is released
EXIT_FAILED = 1  # the start or the run failed, or the log holds something that was not flushed
EXIT_SUPERSEDED = 3  # another broker owns the cluster

DRAIN_SECONDS = 10.0
CLOSE_SECONDS = 10.0  # for the log, if its disk hangs


class Stopping:
    """Stops one broker, once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._deadline = broker.deadline
        self._in_order = True  # no step was abandoned
        self._released = False

    def run(self) -> int:
        """Stops accepting, answers what is in flight, flushes, releases the cluster. Returns the exit code."""
        broker = self._broker
        broker.ready = False
        self._deadline.begin()
        broker.wire.stop_accepting()
        self._step(self._stop_coordinators)
        self._drain()
        flushed = self._flush()
        self._close_log()
        if flushed:
            self._step(self._release)
        if self._in_order:  # else something may still use them; the end of the process releases the lock
            broker.cluster.metadata_store.close()
            self._step(broker.store.plain.close)
            self._step(broker.data_dir.close)
        if broker.superseded:
            return EXIT_SUPERSEDED
        return EXIT_CLEAN if self._released and broker.fatal is None else EXIT_FAILED

    def _step(self, *steps: Callable[[], object]) -> bool:
        done = self._deadline.run(*steps)
        self._in_order = self._in_order and done
        return done

    def _stop_coordinators(self) -> None:
        broker = self._broker
        if broker.share_partitions is not None:
            broker.share_partitions.stop()
        broker.transactions.stop()
        broker.groups.stop()
        if broker.share_states is not None:
            broker.share_states.stop()

    def _drain(self) -> None:
        broker, seconds = self._broker, min(DRAIN_SECONDS, self._deadline.left_seconds)
        drained = threading.Event()

        def drain() -> None:
            if broker.wire.drain(seconds):
                drained.set()

        self._deadline.run(drain)
        if not drained.is_set():
            logger.warning("some connections were cut with requests in flight")
        self._step(broker.wire.stop)
        broker.claim_watch.stop()  # no more acknowledgements
        broker.stop_workers()

    def _flush(self) -> bool:
        """Stops the background tasks and flushes meanwhile; True when everything in the log is in the bucket."""
        broker = self._broker
        background: list[Callable[[], object]] = [
            broker.cluster.topics.close,
            broker.cleaner.stop,
            broker.converter.stop,
            broker.proposals.stop,
            broker.log_starts.stop,
            broker.retention.stop,
        ]
        if broker.fatal is None:
            if broker.flusher.unflushed_bytes:
                logger.info(
                    "flushing the last %d bytes, for at most %.0f s; one more signal keeps them in %s",
                    broker.flusher.unflushed_bytes, self._deadline.left_seconds, broker.data_dir.wal,
                )  # fmt: skip
            background.append(lambda: broker.flusher.flush(wait=True, timeout=self._deadline.left_seconds))
        self._step(*background)
        # A flush under way is abandoned; a request that hangs is not waited for.
        self._step(lambda: broker.flusher.stop(flush=False))
        if broker.fatal is None and broker.flusher.unflushed_bytes:
            logger.error(
                "not everything was flushed: %d bytes of the log are kept in %s, with %s; the next start on this data "
                "directory continues with them",
                broker.flusher.unflushed_bytes, broker.data_dir.wal,
                described(unflushed_ranges(broker.logs.all_partitions())),
            )  # fmt: skip
            return False
        return broker.fatal is None

    def _close_log(self) -> None:
        broker = self._broker
        self._step(broker.cold_reader.close)
        closing = threading.Thread(target=broker.wal.close, name="kbroker-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            self._in_order = False
            logger.error("the log could not be closed: its disk does not answer")

    def _release(self) -> None:
        """Writes checkpoints of both logs where they help the next start, then releases the claim."""
        broker = self._broker
        if self._deadline.left_seconds > 0:  # else only the release: without it the next broker needs a take-over
            broker.cluster.manifest.close()
            broker.cluster.topics.checkpoint()
        try:
            # Not the start's retry policy: a stop cancels that one.
            retries = RetryPolicy(self._deadline.left_seconds, clock=broker.clock)
            broker.cluster.claim.release(broker.clock.now_ms(), retries)
            self._released = True
        except (StoreError, Superseded) as error:
            broker.superseded = isinstance(error, Superseded)
            logger.error("the cluster could not be released: %s", error)
