from collections.abc import Iterator

from typing_extensions import Buffer

CODECS: dict[str, int]
CODEC_NAMES: tuple[str, ...]
PIECE_BYTES: int
SNAPPY_MAGIC: bytes

class DecompressionError(ValueError): ...

def compress(codec: int, data: Buffer, level: int | None = None) -> bytes: ...
def decompress(codec: int, body: Buffer, max_bytes: int) -> bytes: ...
def decompress_pieces(codec: int, body: Buffer) -> Iterator[bytes]: ...
