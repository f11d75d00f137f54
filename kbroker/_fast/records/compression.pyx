"""The codecs of record batches: bounded decompression of untrusted bytes, and compression as Java's client writes it.

    id  name    framing
    0   none
    1   gzip    one gzip member
    2   snappy  written: xerial blocks (SNAPPY_MAGIC, version i32, compatible version i32, then per block its
                compressed length i32 and one raw snappy block of at most 32 KiB input); read: these, or one raw block
    3   lz4     one LZ4 frame
    4   zstd    zstd frames, with or without content size

Decompression yields pieces of about PIECE_BYTES, so that a bomb costs time up to the caller's cap but not memory. Only
a block of raw snappy is in memory as a whole. What it takes comes out of one budget (decompression_memory) beforehand.
"""

import mmap
import zlib

import cramjam
import lz4.frame
import snappy
import zstandard

from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbroker import limits

from kbroker._fast.records.compressed_size cimport SNAPPY_HEADER_BYTES, Claim, read_claim
from kbroker._fast.base.cursor cimport Cursor, cursor_of, left, take_uvarint
from kbroker._fast.records.decompression_memory cimport Share, memory

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
CODEC_NAMES = tuple(CODECS)

PIECE_BYTES = 256 * 1024
INPUT_BYTES = 64 * 1024           # fed to a codec at a time: it copies what it has not used yet
ZSTD_WINDOW_BYTES_MAX = 1 << 27   # what zstd's own stream decoder accepts unless told otherwise
MAPPED_BYTES_MIN = 1 << 20        # memory of so many goes back to the system when it is dropped
ZSTD_WINDOW_BYTES_KEPT = 1 << 21  # that of level 3
ZSTD_DECODERS_KEPT = 4
idle_zstd_decoders = []               # pop and append are atomic under the GIL

LZ4_LEVEL_DEFAULT = 9             # Kafka's (KIP-390)

SNAPPY_MAGIC = b"\x82SNAPPY\x00"
SNAPPY_VERSION = 1
SNAPPY_BLOCK_BYTES = 32 * 1024
cdef enum:
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
    """Snappy blocks of SNAPPY_BLOCK_BYTES of input each, after one header."""

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


class DecompressionBusy(Exception):
    """The memory for decompression is in use, and the caller does not wait."""


cdef Plain plain_of(int codec, body):
    """All of ``body`` decompressed. DecompressionError when it is bad or larger than any batch may be."""
    cdef const uint8_t[::1] data = body
    cdef Plain plain = Plain.__new__(Plain)
    cdef Claim claim
    cdef int64_t size_max
    _read_claim(codec, data, &claim)
    size_max = min(claim.plain_bytes, limits.DECOMPRESSED_BATCH_BYTES_MAX)
    if claim.exact and size_max < claim.plain_bytes:
        raise DecompressionError(f"decompresses to {claim.plain_bytes} bytes, more than any batch may")
    plain.share = memory.take(size_max if codec == 2 else size_max + claim.working_bytes, True)
    plain.fill(decompress_pieces(codec, body), size_max)
    plain.share.shrink(plain.size)
    return plain


cdef Plain plain_held(bytes data, Share share):
    """Bytes that were decompressed elsewhere, with their share."""
    cdef Plain plain = Plain.__new__(Plain)
    plain.share = share
    plain.hold(data, len(data))
    share.shrink(plain.size)
    return plain


cdef class Plain:
    cdef int hold(self, data, Py_ssize_t size) except -1:
        if size:
            self.view = data
            self.data = &self.view[0]
        self.size = size
        return 0

    cdef int fill(self, pieces, int64_t size_max) except -1:
        """Takes a single piece as it is, and copies several into one block."""
        cdef uint8_t[::1] block = None
        cdef int64_t total = 0
        whole = b""
        for piece in pieces:
            if total + len(piece) > size_max:
                raise DecompressionError(f"decompresses to more than {size_max} bytes")
            if total == 0:
                whole = piece
            else:
                if block is None:
                    block = _block(size_max)      # what is not written of it takes no memory
                    _copy(block, 0, whole)
                    whole = block
                _copy(block, total, piece)
            total += len(piece)
        return self.hold(whole, total)

    def __len__(self):
        return self.size

    def release(self):
        """Releases its share, though the bytes stay: another pool accounts for them."""
        self.share.close()


cdef int _copy(uint8_t[::1] block, int64_t position, const uint8_t[::1] piece) except -1:
    if piece.shape[0]:
        memcpy(&block[position], &piece[0], piece.shape[0])
    return 0


def _block(int64_t size):
    return mmap.mmap(-1, size) if size >= MAPPED_BYTES_MIN else bytearray(size)


cdef int _read_claim(int codec, const uint8_t[::1] data, Claim* claim) except -1:
    if data.shape[0] == 0 or read_claim(codec, &data[0], data.shape[0], claim) < 0:
        raise DecompressionError(f"{CODEC_NAMES[codec]}: the data is not whole"
                                 if codec < len(CODEC_NAMES) else f"unknown compression codec {codec}")
    return 0


def decompress(int codec, body, int64_t max_bytes):
    """All of ``body`` decompressed; DecompressionError when it is bad or larger than ``max_bytes``."""
    cdef Plain plain = plain_of(codec, body) if codec else plain_held(bytes(body), memory.take(0, True))
    if plain.size > max_bytes:
        raise DecompressionError(f"decompresses to more than {max_bytes} bytes")
    return plain.data[:plain.size] if plain.size else b""


def shared_pieces(int codec, body, bint wait=True):
    """What `decompress_pieces` does, with a share of the budget while it goes on.

    Without ``wait`` DecompressionBusy is raised where the budget is in use.
    """
    cdef Claim claim
    cdef Share share
    if codec == 0:
        yield bytes(body)
        return
    _read_claim(codec, body, &claim)
    share = memory.take(claim.working_bytes, wait)
    if share is None:
        raise DecompressionBusy
    try:
        yield from decompress_pieces(codec, body)
    finally:
        share.close()


def decompress_pieces(int codec, body):
    """Iterator over the decompressed bytes of ``body``, which is borrowed until the iterator is dropped.

    The caller has a share of the budget. Raises DecompressionError, at the latest when the last piece has been taken.
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
    window_bytes = zstd_window_bytes(body)
    decoder = _take_zstd_decoder()
    try:
        with decoder.stream_reader(body, read_across_frames=True, closefd=False) as reader:
            while piece := reader.read(PIECE_BYTES):
                yield piece
    except zstandard.ZstdError as error:
        raise DecompressionError(f"zstd: {error}") from None
    finally:
        _keep_zstd_decoder(decoder, window_bytes)


def _take_zstd_decoder():
    # Making a decoder costs more than decoding a small batch.
    try:
        return idle_zstd_decoders.pop()
    except IndexError:
        return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)


def _keep_zstd_decoder(decoder, uint64_t window_bytes):
    # One that had to allocate a large window is not kept.
    if window_bytes <= ZSTD_WINDOW_BYTES_KEPT and len(idle_zstd_decoders) < ZSTD_DECODERS_KEPT:
        idle_zstd_decoders.append(decoder)


def zstd_window_bytes(const uint8_t[::1] body not None):
    """Checks that the bytes are whole frames and returns their largest window in bytes."""
    cdef Claim claim
    if body.shape[0] == 0:
        raise DecompressionError("zstd: no frame")
    if read_claim(4, &body[0], body.shape[0], &claim) < 0:
        raise DecompressionError("zstd: the bytes are not a sequence of whole frames")
    if claim.window_bytes > ZSTD_WINDOW_BYTES_MAX:
        raise DecompressionError(f"zstd: a window of {claim.window_bytes} bytes is too large")
    return claim.window_bytes


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
    if declared == 0:
        return b""
    plain = _block(declared)
    try:
        size = cramjam.snappy.decompress_raw_into(block, plain)
    except Exception as error:
        raise DecompressionError(f"snappy: {error}") from None
    if size != declared:
        raise DecompressionError("snappy: the block is shorter than it says")
    return plain


cdef class PlainStream:
    def __init__(self, int codec, body, int64_t total_max):
        cdef Claim claim
        _read_claim(codec, body, &claim)
        self.working_bytes = claim.working_bytes
        self.total_max = self.total_left = min(total_max, claim.plain_bytes)
        if codec == 4:
            self.window_bytes = zstd_window_bytes(body)
        self.codec = codec
        self.body = body
        self.piece = None

    cdef int start(self) except -1:
        if self.codec == 4:
            self.decoder = _take_zstd_decoder()
            self.reader = self.decoder.stream_reader(self.body, read_across_frames=True, closefd=False)
        else:
            self.pieces = decompress_pieces(self.codec, self.body)
        return 0

    cdef Py_ssize_t read(self, uint8_t* out, Py_ssize_t n) except -1:
        cdef Py_ssize_t count
        if self.body is None:
            return 0
        if self.reader is None and self.pieces is None:
            self.start()
        count = self.read_zstd(out, n) if self.codec == 4 else self.read_piece(out, n)
        self.total_left -= count
        if self.total_left < 0:
            raise DecompressionError(f"decompresses to more than {self.total_max} bytes")
        if count == 0 and n > 0:
            self.close()
        return count

    cdef Py_ssize_t read_zstd(self, uint8_t* out, Py_ssize_t n) except -1:
        try:
            return self.reader.readinto(PyMemoryView_FromMemory(<char*>out, n, PyBUF_WRITE))
        except zstandard.ZstdError as error:
            raise DecompressionError(f"zstd: {error}") from None

    cdef Py_ssize_t read_piece(self, uint8_t* out, Py_ssize_t n) except -1:
        cdef Py_ssize_t count
        while self.piece is None or self.taken == self.piece.shape[0]:
            self.piece = next(self.pieces, None)
            self.taken = 0
            if self.piece is None:
                return 0
        count = min(n, self.piece.shape[0] - self.taken)
        memcpy(out, &self.piece[self.taken], count)
        self.taken += count
        return count

    def readinto(self, uint8_t[::1] out not None):
        """Fills the front of `out`; returns how many bytes it has, 0 at the end. Raises DecompressionError."""
        return self.read(&out[0], out.shape[0]) if out.shape[0] else 0

    def close(self):
        """Ends it; may be called again."""
        if self.decoder is not None:
            _keep_zstd_decoder(self.decoder, self.window_bytes)
        self.body = self.reader = self.decoder = self.pieces = self.piece = None


cdef class PieceReader:
    cdef int open(self, int codec, object body, int64_t total_max, bint wait) except -2:
        cdef Claim claim
        _read_claim(codec, body, &claim)
        self.c = cursor_of(NULL, 0)
        self.total = 0
        self.total_max = total_max
        self.budget = INT64_MAX
        if claim.exact and claim.plain_bytes > total_max:
            return OPEN_TOO_LARGE
        self.share = memory.take(claim.working_bytes, wait)
        if self.share is None:
            return OPEN_BUSY
        self.iterator = decompress_pieces(codec, body)
        return 0

    cdef int close(self) except -1:
        self.iterator = None
        self.piece = None
        if self.share is not None:
            self.share.close()
        return 0

    cdef int refill(self) except -1:
        while self.c.p == self.c.end:
            self.piece = next(self.iterator, None)
            if self.piece is None:
                self.c = cursor_of(NULL, 0)
                return 0
            self.c = cursor_of(&self.piece[0] if self.piece.shape[0] else NULL, self.piece.shape[0])
            self.total += self.piece.shape[0]
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
