"""The producer of a task: kbroker's own where it knows every setting, else confluent-kafka's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.pipeline.sink.batch_writer import BatchWriter, can_follow
from kbroker.pipeline.sink.columns import RecordColumns
from kbroker.pipeline.sink.options import SinkOptions
from kbroker.pipeline.sink.producer import SinkProducer

if TYPE_CHECKING:
    import pyarrow as pa

_idle: dict[tuple[tuple[str, str], ...], TaskProducer] = {}  # of this process, by settings; one at most


class TaskProducer(Protocol):
    """Used by one task at a time. Not thread-safe. Raises SinkError."""

    options: SinkOptions

    def begin(self) -> None:
        """Gets a producer id. A transactional id fences any other producer that has it."""
        ...

    def resume(self) -> None:
        """Another task begins."""
        ...

    def send_batch(self, batch: pa.RecordBatch, columns: RecordColumns, topic: str | None) -> None:
        """Sends rows, or keeps them for a while. `topic` is for all; without it the column says."""
        ...

    def flush(self) -> None:
        """Waits until every record is in its topic."""
        ...

    def abort(self) -> None:
        """Aborts the transaction if the broker answers soon."""
        ...

    def close(self) -> None:
        """Closes the connections. An open transaction stays open."""
        ...


def new_producer(options: SinkOptions, transactional_id: str | None = None) -> TaskProducer:
    """OptionError for a setting that the client does not know."""
    kind = BatchWriter if can_follow(options) else SinkProducer
    return kind(options, transactional_id)


def idle_producer(options: SinkOptions) -> TaskProducer:
    """The producer that an earlier task of this worker gave back, else a new one. Raises OptionError."""
    found = _idle.pop(_settings_key(options), None)
    if found is None:
        found = new_producer(options)
        try:
            found.begin()
        except BaseException:
            found.close()
            raise
    else:
        found.resume()
    return found


def give_back(producer: TaskProducer) -> None:
    """Keeps it for the worker's next task. All its records must have been delivered."""
    for other in _idle.values():
        other.close()
    _idle.clear()
    _idle[_settings_key(producer.options)] = producer


def _settings_key(options: SinkOptions) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(options.client.items()))
