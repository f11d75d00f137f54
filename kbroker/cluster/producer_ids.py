"""Producer ids: handed out from blocks that are claimed in the metadata log before use, so that none is used twice.

The rest of a block is lost at a stop or crash, not reused: there are 2^63 / 1000 blocks.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from kbroker.cluster.topics import Topics
from kbroker.errors import KafkaError
from kbroker.limits import PRODUCER_ID_BLOCK

logger = logging.getLogger(__name__)

CLAIM_BELOW = PRODUCER_ID_BLOCK // 10  # ids left when the next block is claimed ahead


class ProducerIds:
    """Thread-safe. `_lock` protects the blocks and is never held while claiming."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._lock = threading.Lock()
        self._blocks: list[range] = []  # what is left of the blocks, oldest first
        self._claim: Future[None] | None = None  # the claim under way

    def take(self) -> int | None:
        """The next id, or None until the next block is claimed. Does not block."""
        with self._lock:
            taken = self._take_locked()
            ahead = sum(map(len, self._blocks)) < CLAIM_BELOW
        if taken is not None and ahead:
            self._start_claim()
        return taken

    def take_later(self) -> Future[int]:
        """The next id once a block is there. The future raises KafkaError when none can be claimed now."""
        result: Future[int] = Future()
        self._wait_for_claim(result)
        return result

    def _wait_for_claim(self, result: Future[int]) -> None:
        def on_claimed(claim: Future[None]) -> None:
            try:
                claim.result()
                taken = self.take()
            except BaseException as error:  # the waiting request gets it
                result.set_exception(error)
                return
            if taken is None:  # more waiters than a block has ids
                self._wait_for_claim(result)
            else:
                result.set_result(taken)

        self._start_claim().add_done_callback(on_claimed)

    def _start_claim(self) -> Future[None]:
        with self._lock:
            if self._claim is None or self._claim.done():
                self._claim = self._topics.submit(self._add_block)
            return self._claim

    def _add_block(self) -> None:
        try:
            block = self._topics.claim_producer_ids()
        except KafkaError as error:
            logger.warning("no block of producer ids: %s", error)
            raise
        with self._lock:
            self._blocks.append(block)

    def _take_locked(self) -> int | None:
        if not self._blocks:
            return None
        block = self._blocks.pop(0)
        if len(block) > 1:
            self._blocks.insert(0, block[1:])
        return block[0]
