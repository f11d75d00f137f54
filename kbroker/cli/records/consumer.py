"""kafka-python's consumer of one topic. Its failures are CommandFailed, and it logs nothing."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import BrokerResponseError, KafkaConnectionError, KafkaTimeoutError
from kafka.net.compat import KafkaNetClient
from kafka.structs import MemberState

from kbroker._fast.records.records import Record
from kbroker.cli.client_properties import ClientProperties
from kbroker.cli.failure import CommandFailed, reason
from kbroker.cli.records.reading import Reading
from kbroker.clock import SystemClock
from kbroker.limits import FRAME_BYTES_MAX

FETCH_WAIT_MS = 500
POSITION_MS = 100
CLOSE_MS = 10_000  # for the commit and for leaving the group: a member that does not leave holds up the next
LEAVE_MS = 2_000  # at least, for leaving the group
SESSION_MS = 10_000  # after which the coordinator removes a member that did not leave

logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)  # failures are raised, and retries are not the user's


class TopicConsumer:
    """Owns its connections and, in a group, the membership. For one thread. Use `consuming`."""

    def __init__(self, properties: ClientProperties, reading: Reading) -> None:
        """Raises CommandFailed."""
        self._topic = reading.topic
        self._group = reading.group
        self._joins = reading.group is not None and not reading.partitions
        self._positions = dict(reading.starts)
        self._bootstrap = properties.bootstrap
        self._clock = SystemClock()
        self._was_stable = False  # when `has_read_to` looked last
        with self._failures():
            self._consumer = KafkaConsumer(**_configs(properties, reading))
            if self._joins:
                self._consumer.subscribe([reading.topic])
                return
            self._consumer.assign([TopicPartition(reading.topic, partition) for partition in reading.partitions])
            for partition, offset in reading.starts.items():
                self._consumer.seek(TopicPartition(reading.topic, partition), offset)

    def poll(self, records_max: int, wait_ms: int) -> list[tuple[int, Record]]:
        """Records with their partitions, in order within each; none after `wait_ms`. Raises CommandFailed."""
        found: list[tuple[int, Record]] = []
        with self._failures():
            if self._joins:
                self._finish_join()
            for assigned, records in self._consumer.poll(wait_ms, records_max).items():
                found += [(assigned.partition, _record(record)) for record in records]
                self._positions[assigned.partition] = records[-1].offset + 1
            if not found:
                self._pass_what_is_not_records()
        return found

    def _finish_join(self) -> None:
        """The library (3.0.12) forgets a join after a change of the topic that is answered between two polls."""
        coordinator = self._consumer._coordinator
        if coordinator.rebalance_in_progress() and not coordinator.need_rejoin():
            coordinator.request_rejoin()

    def _pass_what_is_not_records(self) -> None:
        """Positions move over markers, aborted records and gaps too, which no record tells."""
        for assigned in self._consumer.assignment():
            high_watermark = self._consumer.highwater(assigned)
            known = self._positions.get(assigned.partition)
            if known is not None and high_watermark is not None and known >= high_watermark:
                continue
            position = self._consumer.position(assigned, POSITION_MS)
            if position is None:
                return  # not known yet; neither are the others
            self._positions[assigned.partition] = position

    def has_read_to(self, ends: Mapping[int, int]) -> bool:
        """Whether each partition that it reads, if these are known, has been read up to its offset in `ends`."""
        if self._joins:
            was_stable, self._was_stable = self._was_stable, self._consumer.group_metadata().state == MemberState.STABLE
            if not (was_stable and self._was_stable):  # it says "stable" a moment before it has the assignment
                return False
        return all(
            self._positions.get(assigned.partition, -1) >= ends.get(assigned.partition, 0)
            for assigned in self._consumer.assignment()
        )

    def lag(self) -> int | None:
        """Records between what was read and the high watermarks that the brokers sent last; None: not known yet."""
        lags = [self._lag_of(assigned) for assigned in self._consumer.assignment()]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if known and len(known) == len(lags) else None

    def _lag_of(self, assigned: TopicPartition) -> int | None:
        high_watermark = self._consumer.highwater(assigned)
        position = self._positions.get(assigned.partition)
        return None if high_watermark is None or position is None else max(high_watermark - position, 0)

    def rewind(self, records: Iterable[tuple[int, Record]]) -> None:
        """Takes back records of the last `poll`: they are not committed."""
        first: dict[int, int] = {}
        for partition, record in records:
            first.setdefault(partition, record.offset)
        with self._failures():
            for partition, offset in first.items():
                if TopicPartition(self._topic, partition) in self._consumer.assignment():
                    self._consumer.seek(TopicPartition(self._topic, partition), offset)

    def close(self) -> None:
        """Commits what was read, for a group, and leaves it. Raises CommandFailed if that was not possible."""
        started_s = self._clock.monotonic()
        try:
            if self._group is not None:
                with self._failures("the offsets were not committed"):
                    self._consumer.commit(timeout_ms=CLOSE_MS)
        finally:
            left_ms = CLOSE_MS - int((self._clock.monotonic() - started_s) * 1000)
            with contextlib.suppress(Exception):  # the coordinator removes a member that does not leave
                self._consumer.close(autocommit=False, timeout_ms=max(left_ms, LEAVE_MS))

    @contextlib.contextmanager
    def _failures(self, what: str = "") -> Iterator[None]:
        name = f"group {self._group}" if self._group is not None else self._topic
        place = f"{name}: {what}" if what else name
        try:
            yield
        except BrokerResponseError as error:
            raise CommandFailed(f"{place}: {reason(error.errno)}") from None
        except (KafkaTimeoutError, KafkaConnectionError):
            raise CommandFailed(f"{place}: no broker answers at {self._bootstrap}") from None
        except Exception as error:  # the library raises more than its KafkaError
            text = str(error) or type(error).__name__
            raise CommandFailed(f"{place}: {' '.join(text.split())}") from None


@contextlib.contextmanager
def consuming(properties: ClientProperties, reading: Reading) -> Iterator[TopicConsumer]:
    """An open consumer, closed at the end. Raises CommandFailed."""
    consumer = TopicConsumer(properties, reading)
    try:
        yield consumer
    except BaseException:
        with contextlib.suppress(CommandFailed):
            consumer.close()
        raise
    consumer.close()


class _CreatesNoTopics(KafkaNetClient):
    """Without it a consumer creates a deleted topic again: the library forgets allow_auto_create_topics (3.0.12)."""

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)
        self.cluster.config["allow_auto_create_topics"] = False


def _configs(properties: ClientProperties, reading: Reading) -> dict[str, Any]:
    request_timeout_ms = int(properties.request_timeout_s * 1000)
    return {
        "bootstrap_servers": properties.bootstrap.split(","),
        "client_id": properties.client_id,
        "group_id": reading.group,
        "auto_offset_reset": reading.reset,
        "isolation_level": "read_committed" if reading.read_committed else "read_uncommitted",
        "enable_auto_commit": reading.group is not None,
        "session_timeout_ms": SESSION_MS,
        "kafka_client": _CreatesNoTopics,
        "fetch_max_wait_ms": min(FETCH_WAIT_MS, request_timeout_ms // 2),
        "request_timeout_ms": request_timeout_ms,
        "connections_max_idle_ms": max(KafkaConsumer.DEFAULT_CONFIG["connections_max_idle_ms"], request_timeout_ms + 1),
        "bootstrap_timeout_ms": int(properties.api_timeout_s * 1000),
        "receive_message_max_bytes": FRAME_BYTES_MAX,
        "metrics_enabled": False,
    }


def _record(found: Any) -> Record:
    return Record(found.offset, found.timestamp, found.timestamp_type, found.key, found.value, found.headers)
