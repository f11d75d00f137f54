"""The codecs of record batches: bounded decompression of untrusted bytes, and compression as Java's client writes it.

    id  name    framing
    0   none
    1   gzip    one gzip member
    2   snappy  written: xerial blocks (SNAPPY_MAGIC, version i32, compatible version i32, then per block its
                compressed length i32 and one raw snappy block of at most 32 KiB input); read: these, or one raw block
    3   lz4     one LZ4 frame
    4   zstd    zstd frames, with or without content size

Decompression yields pieces of about PIECE_BYTES, so that a bomb costs time up to the caller's cap but not memory.
"""

import zlib

import lz4.frame
import snappy
import zstandard

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._fast.cursor cimport Cursor, cursor_of, left, take_bytes, take_uvarint

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
CODEC_NAMES = tuple(CODECS)

PIECE_BYTES = 256 * 1024
INPUT_BYTES = 64 * 1024           # fed to a codec at a time: it copies what it has not used yet
ZSTD_WINDOW_BYTES_MAX = 1 << 27   # what zstd's own stream decoder accepts unless told otherwise
ZSTD_WINDOW_BYTES_KEPT = 1 << 22  # levels up to 15 stay within it
ZSTD_DECODERS_KEPT = 8
_zstd_decoders = []               # idle ones; pop and append are atomic under the GIL

LZ4_LEVEL_DEFAULT = 9             # Kafka's (KIP-390)

SNAPPY_MAGIC = b"\x82SNAPPY\x00"
SNAPPY_VERSION = 1
SNAPPY_BLOCK_BYTES = 32 * 1024
cdef enum:
    SNAPPY_HEADER_BYTES = 16
    # The densest snappy element copies 64 bytes and takes 3.
    SNAPPY_RATIO_MAX = 22


class DecompressionError(ValueError):
    """Compressed bytes that their codec does not accept, or that end early."""


def compress(int codec, data, level=None):
    """Compresses the records section of a batch. ``level`` None is the codec's default in Kafka."""
    if codec == 0:
        return bytes(data)
    if codec == 1:
        compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
        return compressor.compress(data) + compressor.flush()
    if codec == 2:
        return _compress_snappy(bytes(data))
    if codec == 3:
        return lz4.frame.compress(
            bytes(data), compression_level=_lz4_level(level), block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False, store_size=False)
    if codec == 4:
        return zstandard.ZstdCompressor(level=3 if level is None else level, write_content_size=False).compress(data)
    raise ValueError(f"unknown compression codec {codec}")


def _lz4_level(level):
    """The library's level for one of Kafka's: there 9, the default, is the fast compressor, and all others the high one."""
    if level is None or level == LZ4_LEVEL_DEFAULT:
        return 0
    return max(level, lz4.frame.COMPRESSIONLEVEL_MINHC)      # below it the library takes the fast one


def _compress_snappy(bytes data):
    return SNAPPY_MAGIC + SNAPPY_VERSION.to_bytes(4, "big") * 2 + _snappy_blocks(data)


def _snappy_blocks(bytes data):
    parts = []
    for start in range(0, len(data), SNAPPY_BLOCK_BYTES):
        block = snappy.compress(data[start:start + SNAPPY_BLOCK_BYTES])
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def compressor(int codec, level=None):
    """What `compress` does, piece by piece: an object with ``compress(data) -> bytes`` and ``flush() -> bytes``."""
    if codec == 0:
        return _Plain()
    if codec == 1:
        return zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
    if codec == 2:
        return _Xerial()
    if codec == 3:
        return _Lz4Frame(_lz4_level(level))
    if codec == 4:
        return zstandard.ZstdCompressor(level=3 if level is None else level, write_content_size=False).compressobj()
    raise ValueError(f"unknown compression codec {codec}")


class _Plain:
    def compress(self, data):
        return bytes(data)

    def flush(self):
        return b""


class _Xerial:
    """Snappy blocks of SNAPPY_BLOCK_BYTES of input each, behind one header."""

    def __init__(self):
        self.head = SNAPPY_MAGIC + SNAPPY_VERSION.to_bytes(4, "big") * 2
        self.rest = b""

    def compress(self, data):
        data = self.rest + bytes(data)
        whole = len(data) - len(data) % SNAPPY_BLOCK_BYTES
        self.rest = data[whole:]
        return self.take_head() + _snappy_blocks(data[:whole])

    def flush(self):
        return self.take_head() + _snappy_blocks(self.rest)

    def take_head(self):
        head, self.head = self.head, b""
        return head


class _Lz4Frame:
    def __init__(self, level):
        self.encoder = lz4.frame.LZ4FrameCompressor(
            compression_level=level, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False)
        self.head = self.encoder.begin()

    def compress(self, data):
        head, self.head = self.head, b""
        return head + self.encoder.compress(bytes(data))

    def flush(self):
        head, self.head = self.head, b""
        return head + self.encoder.flush()


def decompress(int codec, body, int64_t max_bytes):
    """All of ``body`` decompressed; DecompressionError when it is bad or larger than ``max_bytes``."""
    cdef int64_t total = 0
    parts = []
    for piece in decompress_pieces(codec, body):
        total += len(piece)
        if total > max_bytes:
            raise DecompressionError(f"decompresses to more than {max_bytes} bytes")
        parts.append(piece)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decompress_into(int codec, body, bytearray out not None, int64_t max_bytes):
    """What `decompress` does, to the front of ``out``: it grows where it has to. Returns how many bytes they are.

    For a caller with many batches: memory that is used again spares allocations, their page faults and a copy.
    """
    cdef int64_t total = 0
    if codec == 4:
        return _zstd_into(body, out, max_bytes)
    for piece in decompress_pieces(codec, body):
        if total + len(piece) > max_bytes:
            raise DecompressionError(f"decompresses to more than {max_bytes} bytes")
        out[total:total + len(piece)] = piece
        total += len(piece)
    return total


def decompress_pieces(int codec, body):
    """Iterator over the decompressed bytes of ``body``, which is borrowed until the iterator is dropped.

    Raises DecompressionError, at the latest when the last piece has been taken.
    """
    if codec == 0:
        return iter((bytes(body),))
    if codec == 1:
        return _gzip_pieces(body)
    if codec == 2:
        return _snappy_pieces(body)
    if codec == 3:
        return _lz4_pieces(body)
    if codec == 4:
        return _zstd_pieces(body)
    raise DecompressionError(f"unknown compression codec {codec}")


def _gzip_pieces(body):
    decoder = zlib.decompressobj(31)
    start = 0
    data = b""
    while not decoder.eof:
        if not data:
            data = body[start:start + INPUT_BYTES]
            start += INPUT_BYTES
            if not len(data):
                raise DecompressionError("gzip: the stream ends early")
        try:
            piece = decoder.decompress(data, PIECE_BYTES)
            while len(piece) == PIECE_BYTES and not decoder.unconsumed_tail and not decoder.eof:
                yield piece               # the tail is used up but the decoder may hold more output
                piece = decoder.decompress(b"", PIECE_BYTES)
        except zlib.error as error:
            raise DecompressionError(f"gzip: {error}") from None
        if piece:
            yield piece
        data = decoder.unconsumed_tail
    if decoder.unused_data or start < len(body):
        raise DecompressionError("gzip: bytes after the end of the stream")


def _lz4_pieces(body):
    decoder = lz4.frame.LZ4FrameDecompressor()
    start = 0
    while not decoder.eof:
        data = b""
        if decoder.needs_input:
            data = body[start:start + INPUT_BYTES]
            start += INPUT_BYTES
            if not len(data):
                raise DecompressionError("lz4: the frame ends early")
        try:
            piece = decoder.decompress(data, max_length=PIECE_BYTES)
        except RuntimeError as error:
            raise DecompressionError(f"lz4: {error}") from None
        if piece:
            yield piece
    if decoder.unused_data or start < len(body):
        raise DecompressionError("lz4: bytes after the end of the frame")


def _zstd_pieces(body):
    # The stream reader takes a truncated frame for a short one, so the frames are walked first.
    window_bytes = _check_zstd_frames(body)
    decoder = _take_zstd_decoder()
    try:
        with decoder.stream_reader(body, read_across_frames=True, closefd=False) as reader:
            while piece := reader.read(PIECE_BYTES):
                yield piece
    except zstandard.ZstdError as error:
        raise DecompressionError(f"zstd: {error}") from None
    finally:
        _keep_zstd_decoder(decoder, window_bytes)


def _zstd_into(body, bytearray out, int64_t max_bytes):
    cdef int64_t total = 0
    cdef int64_t more = 0
    window_bytes = _check_zstd_frames(body)
    decoder = _take_zstd_decoder()
    try:
        with decoder.stream_reader(body, read_across_frames=True, closefd=False) as reader:
            while True:
                if total == len(out):
                    out.extend(bytes(max(PIECE_BYTES, total)))
                with memoryview(out) as room:      # given back before `out` can grow
                    more = reader.readinto(room[total:])
                total += more
                if total > max_bytes:
                    raise DecompressionError(f"decompresses to more than {max_bytes} bytes")
                if more == 0:
                    return total
    except zstandard.ZstdError as error:
        raise DecompressionError(f"zstd: {error}") from None
    finally:
        _keep_zstd_decoder(decoder, window_bytes)


def _take_zstd_decoder():
    # Making a decoder costs more than decoding a small batch.
    try:
        return _zstd_decoders.pop()
    except IndexError:
        return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)


def _keep_zstd_decoder(decoder, uint64_t window_bytes):
    # One that had to allocate a large window is not kept.
    if window_bytes <= ZSTD_WINDOW_BYTES_KEPT and len(_zstd_decoders) < ZSTD_DECODERS_KEPT:
        _zstd_decoders.append(decoder)


def _check_zstd_frames(const uint8_t[::1] body not None):
    """Checks that the bytes are whole frames and returns their largest window in bytes."""
    if body.shape[0] == 0:
        raise DecompressionError("zstd: no frame")
    cdef Cursor c = cursor_of(&body[0], body.shape[0])
    cdef uint64_t window = 0
    cdef int bad = 0
    with nogil:
        while left(&c) > 0 and bad == 0:
            bad = _skip_zstd_frame(&c, &window)
    if bad:
        raise DecompressionError("zstd: the bytes are not a sequence of whole frames")
    if window > ZSTD_WINDOW_BYTES_MAX:
        raise DecompressionError(f"zstd: a window of {window} bytes is too large")
    return window


cdef int _skip_zstd_frame(Cursor* c, uint64_t* window) noexcept nogil:
    """Moves over one frame of RFC 8878 section 3.1 and raises *window to its window. -1: it is not whole."""
    cdef const uint8_t* p = take_bytes(c, 4)
    cdef uint32_t magic, block
    cdef uint8_t descriptor
    if p == NULL:
        return -1
    magic = <uint32_t>_load_le(p, 4)
    if magic & 0xFFFFFFF0U == 0x184D2A50U:       # skippable frame: its size follows the magic
        p = take_bytes(c, 4)
        return -1 if p == NULL or take_bytes(c, <int64_t>_load_le(p, 4)) == NULL else 0
    p = take_bytes(c, 1)
    if magic != 0xFD2FB528U or p == NULL:
        return -1
    descriptor = p[0]
    if _take_zstd_frame_header(c, descriptor, window) < 0:
        return -1
    while True:
        p = take_bytes(c, 3)
        if p == NULL:
            return -1
        block = <uint32_t>_load_le(p, 3)         # bit 0: last; bits 1-2: type; then the size
        # A run-length block (type 1) is one byte, whatever its size says.
        if take_bytes(c, 1 if (block >> 1) & 3 == 1 else block >> 3) == NULL:
            return -1
        if block & 1:
            break
    return -1 if descriptor & 4 and take_bytes(c, 4) == NULL else 0       # checksum


cdef int _take_zstd_frame_header(Cursor* c, uint8_t descriptor, uint64_t* window) noexcept nogil:
    """What follows the descriptor byte: window descriptor, dictionary id, content size."""
    cdef bint single_segment = descriptor & 0x20 != 0
    cdef int dictionary_bytes = descriptor & 3
    cdef int size_bytes = 1 << (descriptor >> 6)
    cdef uint64_t size
    cdef const uint8_t* p
    if not single_segment:
        p = take_bytes(c, 1)
        if p == NULL:
            return -1
        size = <uint64_t>1 << (10 + (p[0] >> 3))
        window[0] = max(window[0], size + (size >> 3) * (p[0] & 7))
    if take_bytes(c, 4 if dictionary_bytes == 3 else dictionary_bytes) == NULL:
        return -1
    if size_bytes == 1 and not single_segment:
        return 0
    p = take_bytes(c, size_bytes)
    if p == NULL:
        return -1
    if single_segment:
        size = _load_le(p, size_bytes) + (256 if size_bytes == 2 else 0)
        window[0] = max(window[0], size)
    return 0


cdef inline uint64_t _load_le(const uint8_t* p, int n) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(n):
        value |= <uint64_t>p[i] << (8 * i)
    return value


def _snappy_pieces(body):
    if bytes(body[:8]) != SNAPPY_MAGIC or len(body) < SNAPPY_HEADER_BYTES:
        yield _snappy_block(body)
        return
    if int.from_bytes(body[12:16], "big") < 1:
        raise DecompressionError("snappy: incompatible xerial version")
    cdef Py_ssize_t position = SNAPPY_HEADER_BYTES
    cdef Py_ssize_t length
    cdef Py_ssize_t end = len(body)
    while position < end:
        if end - position < 4:
            raise DecompressionError("snappy: a block length is cut off")
        if bytes(body[position:position + 8]) == SNAPPY_MAGIC:        # streams may be concatenated
            position += SNAPPY_HEADER_BYTES
            continue
        length = int.from_bytes(body[position:position + 4], "big")
        position += 4
        if length > end - position:
            raise DecompressionError("snappy: a block ends beyond the data")
        yield _snappy_block(body[position:position + length])
        position += length


def _snappy_block(block):
    cdef const uint8_t[::1] data = block
    cdef Cursor c
    cdef uint32_t declared
    if data.shape[0] == 0:
        raise DecompressionError("snappy: empty block")
    c = cursor_of(&data[0], data.shape[0])
    if take_uvarint(&c, &declared) < 0:
        raise DecompressionError("snappy: no uncompressed length")
    if declared > SNAPPY_RATIO_MAX * <int64_t>data.shape[0]:
        raise DecompressionError(f"snappy: {data.shape[0]} bytes cannot hold the declared {declared}")
    try:
        return bytes(snappy.uncompress(block))
    except Exception as error:
        raise DecompressionError(f"snappy: {error}") from None


cdef class PieceReader:
    cdef int open(self, int codec, object body, int64_t total_max) except -1:
        self.iterator = decompress_pieces(codec, body)
        self.c = cursor_of(NULL, 0)
        self.total = 0
        self.total_max = total_max
        self.budget = INT64_MAX
        return 0

    cdef int close(self) except -1:
        self.iterator = None
        return 0

    cdef int refill(self) except -1:
        while self.c.p == self.c.end:
            self.piece = next(self.iterator, None)
            if self.piece is None:
                self.c = cursor_of(NULL, 0)
                return 0
            self.c = cursor_of(<const uint8_t*><const char*>self.piece, len(self.piece))
            self.total += len(self.piece)
            if self.total > self.total_max:
                raise OverflowError(f"decompresses to more than {self.total_max} bytes")
        return 1

    cdef int varint(self, int bytes_max, int64_t* out) except -1:
        cdef uint64_t value = 0
        cdef uint8_t byte
        cdef int shift
        self.at_end = False
        for shift in range(0, 7 * bytes_max, 7):
            if self.budget == 0:
                return 0
            if self.refill() == 0:
                self.at_end = True
                return 0
            byte = self.c.p[0]
            self.c.p += 1
            self.budget -= 1
            value |= <uint64_t>(byte & 0x7F) << shift
            if byte < 0x80:
                if bytes_max == 5:
                    value = <uint32_t>value
                out[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
                return 1
        return 0

    cdef int skip(self, int64_t n) except -1:
        cdef int64_t step
        self.at_end = False
        if n > self.budget:
            return 0
        self.budget -= n
        while n > 0:
            if self.refill() == 0:
                self.at_end = True
                return 0
            step = min(n, <int64_t>left(&self.c))
            self.c.p += step
            n -= step
        return 1
