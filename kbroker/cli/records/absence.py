"""What is done and said while no broker answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kbroker.cli.client_properties import ClientProperties
from kbroker.cli.failure import check, reason
from kbroker.client.cluster_client import RETRIABLE, ClientError, ClusterClient, Timeouts
from kbroker.clock import Clock
from kbroker.protocol.apis.cluster.k03_metadata import MetadataRequest
from kbroker.protocol.apis.records.k02_list_offsets import LATEST
from kbroker.retry_policy import RetryPolicy

SILENCE_S = 2.0  # after which the cluster is asked whether it is there
AGAIN_S = 1.0  # between questions while it is not
BRIEFLY = RetryPolicy(0.5)  # a broker that has just restarted closed the connection, but answers


def remark(error: ClientError, patience_s: float) -> str:
    """What is said of a failure that may pass."""
    return f"{error}; trying again for {patience_s:g} s"


class Presence:
    """Whether the cluster is there, asked when it is silent. Not thread-safe."""

    def __init__(self, ask: Callable[[], None], patience_s: float, clock: Clock) -> None:
        """`ask` raises ClientError while there is no cluster, which may last for `patience_s`."""
        self._ask = ask
        self._patience_s = patience_s
        self._clock = clock
        self.heard()

    def heard(self) -> None:
        """The cluster has sent something."""
        self._away_since_s: float | None = None
        self._next_s = self._clock.monotonic() + SILENCE_S

    def check(self) -> str | None:
        """Asks if it is time to. A remark when the cluster has just gone; ClientError when it stays away."""
        if self._clock.monotonic() < self._next_s:
            return None
        try:
            self._ask()
        except ClientError as error:
            return self._failed(error)
        self.heard()
        return None

    def _failed(self, error: ClientError) -> str | None:
        now_s = self._clock.monotonic()
        self._next_s = now_s + AGAIN_S
        if self._away_since_s is None:
            self._away_since_s = now_s
            return remark(error, self._patience_s)
        if now_s - self._away_since_s >= self._patience_s:
            raise error
        return None


@dataclass(frozen=True)
class RemarkedRetries(RetryPolicy):
    """Remarks once, in what is retried, that no broker answers; `ask` raises ClientError then."""

    ask: Callable[[], object] = lambda: None
    note: Callable[[str], None] = lambda line: None

    def attempts(self) -> Iterator[int]:
        """As of a RetryPolicy."""
        is_said = False
        for attempt in RetryPolicy.attempts(self):
            if attempt and not is_said:
                is_said = self._remarks()
            yield attempt

    def _remarks(self) -> bool:
        try:
            self.ask()
        except ClientError as error:
            self.note(remark(error, self.deadline_s or 0))
            return True
        return False


def asks_for(client: ClusterClient, topic: str, partition: int) -> Callable[[], None]:
    """A question that raises ClientError while the cluster does not answer it, CommandFailed when the topic is gone."""

    def ask() -> None:
        for (name, index), answer in client.offsets({(topic, partition): LATEST}).items():
            if answer.error_code in RETRIABLE:
                raise ClientError(f"{name}-{index}: {reason(answer.error_code)}")
            check(answer.error_code, f"{name}-{index}")

    return ask


@contextlib.contextmanager
def asking_briefly(properties: ClientProperties) -> Iterator[ClusterClient]:
    """A client that soon gives up."""
    timeouts = Timeouts(properties.request_timeout_s, properties.api_timeout_s)
    with contextlib.closing(ClusterClient(properties.bootstrap, properties.client_id, timeouts, BRIEFLY)) as client:
        yield client


@contextlib.contextmanager
def delivering(properties: ClientProperties, note: Callable[[str], None]) -> Iterator[ClusterClient]:
    """A client that repeats requests for delivery.timeout.ms, and tells `note` when no broker answers."""
    with asking_briefly(properties) as probe:
        ask = lambda: probe.any_broker(MetadataRequest(topics=[], allow_auto_topic_creation=False))  # noqa: E731
        retries = RemarkedRetries(properties.delivery_timeout_s, wait_max_s=1.0, ask=ask, note=note)
        timeouts = Timeouts(properties.request_timeout_s, properties.delivery_timeout_s)
        with contextlib.closing(ClusterClient(properties.bootstrap, properties.client_id, timeouts, retries)) as client:
            yield client
