"""Codecs: framing, bounds, damaged and truncated streams."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kbroker._fast.records import compression
from kbroker._fast.records.compression import (
    CODECS,
    DecompressionError,
    PlainStream,
    compress,
    compressor,
    decompress,
    decompress_pieces,
)
from tests.reference import record_twin as twin

COMPRESSED = [name for name in CODECS if name != "none"]
TEXT = b"the quick brown fox jumps over the lazy dog. " * 5000


@given(st.binary(max_size=5000), st.sampled_from(list(CODECS)))
def test_round_trip(data: bytes, codec: str) -> None:
    packed = compress(CODECS[codec], data)
    assert decompress(CODECS[codec], memoryview(packed), len(data)) == data
    assert twin.decompress(CODECS[codec], packed) == data


def streamed(codec: str, packed: bytes, room: int, total_max: int = 1 << 30) -> bytes:
    """What a PlainStream gives to a caller that has room for so many bytes at a time."""
    stream, out, data = PlainStream(CODECS[codec], packed, total_max), bytearray(room), b""
    while count := stream.readinto(out):
        data += out[:count]
    assert stream.readinto(out) == 0
    return data


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("room", [1, 1000, 1 << 20])
def test_a_stream_fills_the_callers_memory(codec: str, room: int) -> None:
    data = TEXT[: 3000 if room == 1 else len(TEXT)]
    assert streamed(codec, compress(CODECS[codec], data), room) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_stream_refuses_what_is_damaged_or_too_large(codec: str) -> None:
    packed = compress(CODECS[codec], TEXT)
    with pytest.raises(DecompressionError, match="more than"):
        streamed(codec, packed, 10_000, len(TEXT) - 1)
    with pytest.raises(DecompressionError):
        streamed(codec, packed[: len(packed) // 2], 10_000)
    stream = PlainStream(CODECS[codec], packed, 1 << 30)
    stream.readinto(bytearray(100))
    stream.close()  # before its end: the codec's state serves the next one
    assert streamed(codec, packed, 10_000) == TEXT


@pytest.mark.parametrize("codec", COMPRESSED)
def test_large_and_incompressible(codec: str) -> None:
    data = TEXT * 10 + bytes(i * i >> 3 & 0xFF for i in range(300_000))
    pieces = list(decompress_pieces(CODECS[codec], compress(CODECS[codec], data)))
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= compression.PIECE_BYTES


@pytest.mark.parametrize("codec", COMPRESSED)
def test_truncated_anywhere(codec: str) -> None:
    packed = compress(CODECS[codec], TEXT[:3000])
    for length in range(len(packed)):
        try:
            assert decompress(CODECS[codec], packed[:length], 10**6) != TEXT[:3000]
            # Only xerial blocks can end between two blocks without a trace.
            assert codec == "snappy"
        except DecompressionError:
            pass


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_bytes_after_the_end(codec: str) -> None:
    with pytest.raises(DecompressionError):
        decompress(CODECS[codec], compress(CODECS[codec], TEXT) + b"x", 10**6)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_size_limit(codec: str) -> None:
    packed = compress(CODECS[codec], TEXT)
    assert decompress(CODECS[codec], packed, len(TEXT)) == TEXT
    with pytest.raises(DecompressionError, match="more than"):
        decompress(CODECS[codec], packed, len(TEXT) - 1)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_bomb_does_not_fill_memory(codec: str) -> None:
    packed = compress(CODECS[codec], bytes(40_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionError, match="more than"):
            decompress(CODECS[codec], packed, 2_000_000)
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=300), st.sampled_from(COMPRESSED))
def test_any_bytes_end_in_the_named_error(data: bytes, codec: str) -> None:
    prefix = {
        "gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\xff",
        "snappy": b"",
        "lz4": b"\x04\x22\x4d\x18",
        "zstd": b"\x28\xb5\x2f\xfd",
    }
    for content in (data, prefix[codec] + data):
        try:
            decompress(CODECS[codec], content, 10**7)
        except DecompressionError:
            pass


def test_unknown_codec() -> None:
    for call in (lambda: compress(5, b""), lambda: decompress(5, b"", 1)):
        with pytest.raises(ValueError, match="unknown compression codec 5"):
            call()


# -- framing --------------------------------------------------------------------------------------------------


def test_gzip_is_one_member() -> None:
    assert gzip.decompress(compress(1, TEXT)) == TEXT
    with pytest.raises(DecompressionError, match="after the end"):
        decompress(1, gzip.compress(b"a") + gzip.compress(b"b"), 100)


def test_snappy_is_written_in_xerial_blocks() -> None:
    packed = compress(2, TEXT[:70_000])
    assert packed[:16].hex() == "82534e41505059000000000100000001"
    sizes, position = [], 16
    while position < len(packed):
        length = int.from_bytes(packed[position : position + 4], "big")
        sizes.append(len(snappy.uncompress(packed[position + 4 : position + 4 + length])))
        position += 4 + length
    assert sizes == [32768, 32768, 70_000 - 65536]


def test_snappy_without_framing_is_one_raw_block() -> None:
    assert decompress(2, snappy.compress(TEXT), 10**6) == TEXT


def test_snappy_streams_may_be_concatenated() -> None:
    assert decompress(2, compress(2, b"abc") + compress(2, b"def"), 10) == b"abcdef"


def test_snappy_declared_length_is_checked_before_allocation() -> None:
    four_gib = b"\xff\xff\xff\xff\x0f" + b"\0" * 20
    with pytest.raises(DecompressionError, match="more than any batch"):
        decompress(2, four_gib, 2**33)
    two_mib = b"\x80\x80\x80\x01" + b"\0" * 20
    with pytest.raises(DecompressionError, match="cannot hold"):
        decompress(2, two_mib, 2**33)


def test_snappy_framing_damage() -> None:
    packed = compress(2, b"abc")
    for bad in (
        packed[:12] + b"\0\0\0\0" + packed[16:],
        packed + b"\0\0",
        packed + b"\x7f\xff\xff\xff",
        packed + b"\0\0\0\0",
    ):
        with pytest.raises(DecompressionError, match="snappy"):
            decompress(2, bad, 100)


def test_lz4_is_a_frame_of_64_kib_independent_blocks() -> None:
    info = lz4.frame.get_frame_info(compress(3, TEXT))
    assert (info["block_size"], info["block_linked"], info["content_size"]) == (65536, False, 0)
    assert (
        decompress(3, lz4.frame.compress(TEXT, block_size=7, block_linked=True, content_checksum=True), 10**6) == TEXT
    )


@pytest.mark.parametrize("streamed", [False, True])
def test_lz4s_default_level_is_the_fast_compressor(streamed: bool) -> None:
    """As in Kafka: 9 is the default and means the fast compressor, every other level the high one."""
    rng = random.Random(1)
    words = [rng.randbytes(5) for _ in range(300)]
    text = b"".join(rng.choices(words, k=20_000))

    def size(level: int | None) -> int:
        if not streamed:
            return len(compress(3, text, level))
        encoder = compressor(3, level)
        return len(encoder.compress(text) + encoder.flush())

    framing = {"block_size": lz4.frame.BLOCKSIZE_MAX64KB, "block_linked": False}
    fast = len(lz4.frame.compress(text, compression_level=0, **framing))
    assert abs(fast - size(None)) <= 8  # with or without the content's size
    assert size(None) == size(9)
    sizes = [size(level) for level in (1, 3, 8, 10, 17)]
    assert sizes == sorted(sizes, reverse=True)
    assert fast > sizes[0] == size(2) > sizes[-1]


def test_zstd_frames_with_and_without_content_size() -> None:
    assert zstandard.frame_content_size(compress(4, TEXT)) == -1
    for options in ({"write_content_size": True}, {"write_checksum": True}, {"level": 19}):
        assert decompress(4, zstandard.ZstdCompressor(**options).compress(TEXT), 10**6) == TEXT


def test_zstd_frames_may_follow_each_other() -> None:
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    assert decompress(4, compress(4, b"abc") + skippable + compress(4, b"def"), 10) == b"abcdef"


def zstd_frame(header: str) -> bytes:
    """A frame of one empty last raw block after a header in hex."""
    return b"\x28\xb5\x2f\xfd" + bytes.fromhex(header) + b"\x01\0\0"


@pytest.mark.parametrize(
    ("header", "window_bytes"),
    [
        ("0058", 2**21),
        ("0088", 2**27),
        ("005f", 2**21 + 7 * 2**18),
        ("2000", 0),
        ("207f", 127),
        ("60ffff", 65535 + 256),
    ],
)
def test_zstd_window_is_read_from_the_frame_header(header: str, window_bytes: int) -> None:
    assert compression.zstd_window_bytes(zstd_frame(header)) == window_bytes
    assert compression.zstd_window_bytes(zstd_frame("2001") + zstd_frame(header)) == max(1, window_bytes)


@pytest.mark.parametrize("header", ["0089", "00b8", "00ff", "a000000010", "e0ffffffffffffffff"])
def test_zstd_window_is_limited(header: str) -> None:
    with pytest.raises(DecompressionError, match="too large"):
        decompress(4, zstd_frame(header), 10)


def test_zstd_dictionary_ids_are_skipped() -> None:
    for header in ("0058", "015800", "02580000", "035800000000"):
        assert compression.zstd_window_bytes(zstd_frame(header)) == 2**21


def test_zstd_decoders_are_reused_but_not_with_large_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    idle: list[object] = []
    monkeypatch.setattr(compression, "idle_zstd_decoders", idle)
    assert decompress(4, compress(4, TEXT), 10**6) == TEXT
    assert len(idle) == 1
    first = idle[0]
    with pytest.raises(DecompressionError):
        decompress(4, compress(4, TEXT)[:-3] + b"\xff\xff\xff", 10**6)
    assert decompress(4, compress(4, TEXT), 10**6) == TEXT
    assert idle == [first]
    interleaved = [decompress_pieces(4, compress(4, TEXT * 2)) for _ in range(3)]
    heads = [next(pieces) for pieces in interleaved]
    assert [head + b"".join(pieces) for head, pieces in zip(heads, interleaved, strict=True)] == [TEXT * 2] * 3
    assert len(idle) == 3
    idle.clear()
    assert decompress(4, zstd_frame("0088"), 10) == b""
    assert idle == []


@given(st.lists(st.binary(max_size=70_000), max_size=5), st.sampled_from(list(CODECS)))
def test_piecewise_compression_is_compression(pieces: list[bytes], codec: str) -> None:
    encoder = compressor(CODECS[codec])
    packed = b"".join(encoder.compress(memoryview(piece)) for piece in pieces) + encoder.flush()
    assert decompress(CODECS[codec], packed, 10**6) == b"".join(pieces)
    if codec != "zstd" and codec != "lz4":  # these cut blocks where the input was cut
        assert packed == compress(CODECS[codec], b"".join(pieces))
