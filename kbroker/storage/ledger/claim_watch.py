"""Checks this broker's claim periodically, so that a superseded broker stops acknowledging within two seconds.

A flush finds out by itself, but a broker with nothing to flush would keep acknowledging records that only its own log
holds. A check that fails proves nothing: the broker continues, and the next answer decides.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from kbroker.storage.ledger.ownership import Superseded
from kbroker.storage.stores.object_store import StoreError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.5  # between checks: with an answer in half a second the proof is never older than two seconds
LOOKS_MAX = 24  # at a time: more than begin before the first times out in a dead network (5 s + 30 s)


class WatchedClaim(Protocol):
    """What ClaimWatch uses of storage.ledger.ownership.Claim."""

    def look(self) -> None:
        """Raises Superseded if a newer claim exists, StoreError if that is unknown."""
        ...


class ClaimWatch:
    """One thread that starts a check every ``LOOK_SECONDS``, and one thread per check.

    ``on_superseded`` is called once, on the thread of the check that found the newer claim. ``_lock`` protects the
    count of running checks.
    """

    def __init__(self, claim: WatchedClaim, on_superseded: Callable[[Superseded], None]) -> None:
        self._claim = claim
        self._on_superseded = on_superseded
        self._lock = threading.Lock()
        self._under_way = 0
        self._ended = threading.Event()  # stopped or superseded

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._run, name="claim-watch", daemon=True).start()

    def stop(self) -> None:
        """Starts no more checks; a running one ends by itself and reports nothing."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.begin_look()

    def begin_look(self) -> bool:
        """Starts a check; False when no thread can be started or LOOKS_MAX are running."""
        with self._lock:
            if self._under_way >= LOOKS_MAX:
                return False
            self._under_way += 1
        try:
            threading.Thread(target=self._look, name="claim-look", daemon=True).start()
        except RuntimeError:  # out of threads: retried at the next interval
            with self._lock:
                self._under_way -= 1
            logger.warning("no thread could be started to look at the claim")
            return False
        return True

    def _look(self) -> None:
        try:
            self._claim.look()
        except Superseded as error:
            with self._lock:
                is_news = not self._ended.is_set()
                self._ended.set()
            if is_news:
                self._on_superseded(error)
        except StoreError as error:
            logger.debug("the claim could not be looked at: %s", error)
        except Exception:
            logger.exception("the claim could not be looked at")
        finally:
            with self._lock:
                self._under_way -= 1
