"""The brokers' part of ``tail=broker``: offsets, and batches that are not in the bucket yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kbroker._fast.records.batch_check import check_batches
from kbroker._fast.records.records import CONTROL_ABORT, iter_batches, parse_marker
from kbroker.client.cluster_client import Answer, ClientError, ClusterClient, Timeouts
from kbroker.client.first_contact import reached
from kbroker.errors import CorruptionError, ErrorCode, error_name
from kbroker.limits import MIB
from kbroker.pipeline.options import OptionError, TopicPartition
from kbroker.protocol.apis.records.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.fields import Bytes, Message

CLIENT_ID = "kbroker-spark"
FETCH_NEWEST = 12  # the last with topic names
CONTACT_SECONDS = 2.5  # to connect to a broker, and again for its first answer
TIMEOUT_SECONDS = 60.0
RETRY_SECONDS = 30.0  # for a broker that restarts
FETCH_BYTES = 8 * MIB
FETCH_WAIT_MS = 500
EMPTY_FETCHES_MAX = 60
READ_COMMITTED = 1
NEVER_ENDED = (1 << 63) - 1

Aborted = dict[int, list[tuple[int, int]]]


class BrokerError(Exception):
    """The broker cannot be reached or refused a request; the message names it."""


class OffsetGone(BrokerError):
    """The offset asked for is below the log start or beyond the end."""


class BrokerTail:
    """What the leaders of partitions have. Not thread-safe. Raises BrokerError.

    All requests are read-only: they are repeated for RETRY_SECONDS if a broker closes the connection (idle, or
    stopping) or does not lead the partition any more. With `retries_connect` the first contact, too, is retried;
    otherwise its failure is raised at once.
    """

    def __init__(self, bootstrap: str, *, retries_connect: bool = False) -> None:
        self._where = bootstrap
        self._cluster_id: str | None = None  # that the brokers must serve
        timeouts = Timeouts(TIMEOUT_SECONDS, RETRY_SECONDS, CONTACT_SECONDS)
        try:
            self._client = (reached if retries_connect else ClusterClient)(bootstrap, CLIENT_ID, timeouts)
        except ValueError as error:
            raise OptionError(f"kafka.bootstrap.servers: {error}") from None
        except ClientError as error:
            raise BrokerError(f"tail=broker: {error}") from None
        try:
            self._check_served()
        except BrokerError:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def check_cluster(self, cluster_id: str) -> None:
        """Raises OptionError if the brokers serve another cluster than the bucket holds, now or after a reconnect."""
        self._cluster_id = cluster_id
        self._check_served()

    def _check_served(self) -> None:
        """Asks the cluster only if there was a reconnect."""
        try:
            served = self._client.cluster_id()
        except ClientError as error:
            raise BrokerError(f"tail=broker: {error}") from None
        if self._cluster_id is not None and served != self._cluster_id:
            self.close()
            raise OptionError(
                f"tail=broker: the broker at {self._where} serves cluster {served}, the bucket holds {self._cluster_id}"
            )

    def offsets(self, asked: Mapping[TopicPartition, int], *, read_committed: bool) -> dict[TopicPartition, int]:
        """Offsets by timestamp (or EARLIEST, LATEST); -1 if no record has that timestamp or a later one."""
        try:
            answers = self._client.offsets(asked, read_committed)
        except ClientError as error:
            raise BrokerError(f"tail=broker: {error}") from None
        self._check_served()
        for (topic, partition), answer in answers.items():
            self._check(answer.error_code, f"{topic}-{partition}")
        return {pair: answer.value.offset for pair, answer in answers.items()}

    def batches(
        self,
        where: TopicPartition,
        first: int,
        stop: int,
        *,
        read_committed: bool,
        fetch_bytes: int = FETCH_BYTES,
    ) -> Iterator[tuple[Bytes, Aborted]]:
        """Checked whole batches of the offsets [first, stop), and the aborted ranges in them (read_committed).

        About `fetch_bytes` at a time, or one larger batch.
        """
        offset, empty = first, 0
        what = f"{where[0]}-{where[1]}"
        while offset < stop:
            answer = self._fetched(where, offset, fetch_bytes, read_committed)
            self._check(answer.error_code, f"{what} at offset {offset}")
            data = answer.value.records or b""
            if not data:
                # The rest may be a gap left by compaction: the log then ends at or beyond `stop`.
                empty += 1
                end = answer.value.last_stable_offset if read_committed else answer.value.high_watermark
                if empty >= EMPTY_FETCHES_MAX or (empty > 1 and end <= offset):
                    raise BrokerError(f"tail=broker: {what} ends at {end}, offsets up to {stop} were planned")
                continue
            empty = 0
            offset = self._next_offset(data, what)
            yield data, aborted_ranges(data, answer.value.aborted_transactions or ())

    def _fetched(self, where: TopicPartition, offset: int, fetch_bytes: int, read_committed: bool) -> Answer:
        def build(partitions: Mapping[str, Sequence[int]]) -> Message:
            topics = [
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=fetch_bytes)
                        for index in indexes
                    ],
                )
                for topic, indexes in partitions.items()
            ]
            return FetchRequest(
                max_wait_ms=FETCH_WAIT_MS,
                min_bytes=1,
                max_bytes=fetch_bytes,
                isolation_level=READ_COMMITTED if read_committed else 0,
                topics=topics,
            )

        def read(response: Any) -> Iterator[tuple[str, int, int, Any]]:
            for topic in response.responses:
                for part in topic.partitions:
                    yield topic.topic, part.partition_index, response.error_code or part.error_code, part

        try:
            answer = self._client.by_leader([where], build, read, FETCH_NEWEST)[where]
        except ClientError as error:
            raise BrokerError(f"tail=broker: {error}") from None
        self._check_served()
        return answer

    def _next_offset(self, data: Bytes, what: str) -> int:
        try:
            check_batches(data, 0)
        except ValueError as error:
            raise CorruptionError(f"{what}, as the broker at {self._where} sent it: {error}") from None
        offset = 0
        for header, _ in iter_batches(data):
            offset = header.next_offset
        return offset

    def _check(self, code: int, what: str) -> None:
        if code == ErrorCode.NONE:
            return
        kind = OffsetGone if code == ErrorCode.OFFSET_OUT_OF_RANGE else BrokerError
        raise kind(f"tail=broker: {what}: the broker at {self._where} answers {error_name(code)}")


def aborted_ranges(data: Bytes, aborted: Iterable[Any]) -> Aborted:
    """Offset ranges by producer id of the aborted transactions of one fetch: each ends at its abort marker."""
    ranges: Aborted = {}
    pending: dict[int, list[int]] = {}
    for entry in aborted:
        pending.setdefault(entry.producer_id, []).append(entry.first_offset)
    if not pending:
        return {}
    for header, batch in iter_batches(data):
        firsts = pending.get(header.producer_id)
        if not header.is_control or not firsts:
            continue
        marker = parse_marker(batch)
        if marker is not None and marker.control_type == CONTROL_ABORT and min(firsts) <= header.base_offset:
            first = min(firsts)
            firsts.remove(first)
            ranges.setdefault(header.producer_id, []).append((first, header.base_offset))
    for producer_id, firsts in pending.items():
        ranges.setdefault(producer_id, []).extend((first, NEVER_ENDED) for first in firsts)
    return ranges
