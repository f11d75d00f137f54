from typing_extensions import Buffer

class BatchError(ValueError):
    position: int
    index: int
    def __init__(self, message: str, position: int, index: int) -> None: ...

def check_batches(buffer: Buffer, expected_base_offset: int, index: Buffer | None = None) -> int: ...
