"""Decompresses and compresses the records sections of many batches; see section_codec.pxd."""

import zstandard
from isal import isal_zlib

from libc.stdint cimport int64_t, uint8_t

from kbroker import limits
from kbroker._fast.records.compression import DecompressionError, compress
from kbroker._fast.records.record_batch import CorruptRecordsError

from kbroker._fast.records.compressed_size cimport Claim, read_claim
from kbroker._fast.records.compression cimport Plain, plain_held, plain_of
from kbroker._fast.records.decompression_memory cimport Share, memory
from kbroker._fast.records.record_batch cimport BATCH_HEADER_BYTES

cdef enum:
    GZIP = 1
    ZSTD = 4
    GZIP_LEVEL = 2
    GZIP_WINDOW_BITS = 31            # one gzip member, largest window
    DEFLATED = 8
    ZSTD_LEVEL = 3
    ZSTD_WINDOW_BYTES_MAX = 1 << 22  # levels up to 15 stay within it; the decoder keeps what it once needed
    ZSTD_BYTES_MIN = 64 * 1024
    ZSTD_RATIO = 8
    SECTION_OVERHEAD_BYTES = 200     # of the bytes object, its key, and their share of a dict


cdef class SectionCodec:
    cdef Plain plain(self, int codec, object body):
        cdef bytes plain = None
        cdef Share share = _share_for(codec, body)
        if codec == GZIP:
            plain = _gunzip(body, share.bytes)
        elif codec == ZSTD:
            plain = self.unzstd(body)
        if plain is not None:
            return plain_held(plain, share)
        share.close()
        try:
            return plain_of(codec, body)
        except DecompressionError as error:
            raise CorruptRecordsError(str(error), BATCH_HEADER_BYTES) from None

    cdef bytes packed(self, int codec, bytes plain):
        if codec == GZIP:
            encoder = isal_zlib.compressobj(GZIP_LEVEL, DEFLATED, GZIP_WINDOW_BITS)
            return encoder.compress(plain) + encoder.flush()
        if codec == ZSTD:
            if self.zstd_encoder is None:
                # A new one for each batch would cost half as much as compressing the batch.
                self.zstd_encoder = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=False)
            return self.zstd_encoder.compress(plain)
        return compress(codec, plain)


    cdef bytes unzstd(self, body):
        """One frame that holds no more than can be expected; None for anything else, which is then judged as usual."""
        cdef int64_t size_max = max(ZSTD_BYTES_MIN, ZSTD_RATIO * len(body))
        if self.zstd_decoder is None:
            self.zstd_decoder = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
        try:
            if zstandard.frame_content_size(body) > size_max:
                return None
            return self.zstd_decoder.decompress(body, max_output_size=size_max, allow_extra_data=False)
        except zstandard.ZstdError:
            return None


cdef Share _share_for(int codec, const uint8_t[::1] body):
    cdef Claim claim
    if body.shape[0] == 0 or read_claim(codec, &body[0], body.shape[0], &claim) < 0:
        return memory.take(0, True)          # it cannot be decompressed: the usual way says why
    return memory.take(claim.plain_bytes, True)


cdef bytes _gunzip(body, int64_t size_max):
    """One whole gzip member of at most so many bytes; None for anything else, which is then judged by the usual way."""
    decoder = isal_zlib.decompressobj(GZIP_WINDOW_BITS)
    try:
        plain = decoder.decompress(body, max(size_max, 1))
    except isal_zlib.error:
        return None
    return plain if decoder.eof and not decoder.unused_data else None


cdef class PlainSections:
    def __cinit__(self, int64_t room_bytes=0):
        """Keeps the first sections that fit into ``room_bytes``: a second pass takes them in the same order."""
        self.sections = {}
        self.room_bytes = room_bytes

    def __len__(self):
        return len(self.sections)

    cdef int keep(self, int64_t base_offset, Plain plain) except -1:
        if plain.size + SECTION_OVERHEAD_BYTES <= self.room_bytes:
            self.room_bytes -= plain.size + SECTION_OVERHEAD_BYTES
            plain.release()                  # it counts as part of the cleaner's buffer from now on
            self.sections[base_offset] = plain
        return 0

    cdef Plain take(self, int64_t base_offset):
        return self.sections.pop(base_offset, None)
