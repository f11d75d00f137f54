"""Producer ids: handed out from blocks that are claimed in the metadata log before use, so that none is used twice.

The rest of a block is lost at a stop or crash, not reused: there are 2^63 / 1000 blocks.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from kbroker.cluster.topics import Topics
from kbroker.errors import KafkaError
from kbroker.futures import chain_future, completed
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

        def claimed(_: None) -> Future[int]:
            taken = self.take()
            return self.take_later() if taken is None else completed(taken)  # None: more waiters than a block has ids

        return chain_future(self._start_claim(), claimed)

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
