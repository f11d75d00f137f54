from typing_extensions import Buffer

def recode(
    batch: Buffer, codec: int, *, level: int | None = None, size_max: int = ..., renumber: bool = False
) -> bytes | int: ...
