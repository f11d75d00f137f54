"""When a checkpoint of the manifest is due.

A checkpoint is written after many records or rows, or after a few records when the last one is some time ago. So a
start reads and applies little, and a burst of records does not write checkpoints all the time.
"""

from __future__ import annotations

from kbroker.clock import Clock

CHECKPOINT_RECORDS = 64
CHECKPOINT_ROWS = 200_000  # references, producers and the like: takes a start about 3 s
CHECKPOINT_RECORDS_MIN = 6
CHECKPOINT_SECONDS = 60.0
CHECKPOINT_TIME_SHARES = (0.01, 0.05)  # of the time, for checkpoints after few and after many records


class CheckpointSchedule:
    """See the module. Not thread-safe: its caller serialises. `records` and `rows` are what the log's copy has counted.

    `seconds`: duration of the last checkpoint. `is_running`: one is being written.
    """

    def __init__(self, clock: Clock, records_max: int = CHECKPOINT_RECORDS) -> None:
        self.seconds = 0.0
        self.is_running = False
        self._clock = clock
        self._records_max = records_max
        self._records = self._rows = 0  # counted from here
        self._not_before = self._never_before = clock.monotonic() if clock is not None else 0.0
        self._written_at = self._not_before  # or when this process began

    @property
    def age_seconds(self) -> float:
        """Time since the last checkpoint of this process, or since its start."""
        return self._clock.monotonic() - self._written_at

    def records_since(self, records: int) -> int:
        """What the next start would read beside the checkpoint, about."""
        return records - self._records

    def loaded(self) -> None:
        """The log was loaded: the copy counts from the checkpoint that it has begun with."""
        self._records = self._rows = 0

    def begin(self, records: int, rows: int) -> bool:
        """Whether one is due; then it is running from now on."""
        now = self._clock.monotonic()
        since = self.records_since(records)
        many = since >= self._records_max or rows - self._rows >= CHECKPOINT_ROWS
        few = since >= CHECKPOINT_RECORDS_MIN and now >= self._not_before
        if self.is_running or not (few or (many and now >= self._never_before)):
            return False
        self.is_running = True
        return True

    def written(self, records: int, rows: int, started: float) -> None:
        """One that has everything up to there is stored; it was begun at this monotonic time."""
        now = self._clock.monotonic()
        self._records, self._rows = records, rows
        self._written_at, self.seconds = now, now - started
        seconds = [self.seconds / share for share in CHECKPOINT_TIME_SHARES]
        self._not_before, self._never_before = now + max(CHECKPOINT_SECONDS, seconds[0]), now + seconds[1]

    def failed(self, records: int, rows: int) -> None:
        """It is tried again later."""
        self._records, self._rows = records - self._records_max // 2, rows
        self._not_before = self._clock.monotonic() + CHECKPOINT_SECONDS
        self.is_running = False
