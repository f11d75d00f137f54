from typing import NamedTuple

from typing_extensions import Buffer

REASONS: tuple[str, ...]

class CorruptRecordsError(ValueError):
    position: int
    def __init__(self, message: str, position: int = -1) -> None: ...

class ValidationOutcome(NamedTuple):
    error_code: int
    message: str
    first_bad_record: int
    true_max_timestamp: int
    renumber: bool = False
    disorder_ms: int = 0

def reason_text(reason: int) -> str: ...
def validate(
    batch: Buffer,
    *,
    now_ms: int = 0,
    before_max_ms: int = ...,
    after_max_ms: int = ...,
    max_message_bytes: int = ...,
    max_decompressed_message_bytes: int = ...,
    compacted: bool = False,
    log_append_time: bool = False,
    produce_version: int = 9,
    stamp: bool = False,
) -> ValidationOutcome: ...
