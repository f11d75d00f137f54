from types import TracebackType

class Share:
    bytes: int
    def __enter__(self) -> Share: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def close(self) -> None: ...

class DecompressionMemory:
    limit: int
    used: int
    waits: int
    refusals: int
    def __init__(self, limit: int) -> None: ...
    def share(self, n: int) -> Share: ...
    def refuse(self) -> None: ...

decompression: DecompressionMemory
