# A copy into memory that is not going to be read soon.

from libc.stdint cimport uint8_t

cdef extern from * nogil:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    #if defined(__SSE2__)
    #include <emmintrin.h>
    #endif
    enum { KB_STREAMED_BYTES_MIN = 8192 };  /* less is cheaper through the cache, where a reader that follows finds it */

    /* As memcpy. A large copy goes past the cache: what lies at `out` is not read before it is overwritten, and what
     * others have in the cache stays there. It is complete for other processors, and for the disk, on return. */
    static void kb_streaming_copy(uint8_t *out, const uint8_t *from, size_t n) {
    #if defined(__SSE2__)
        if (n >= KB_STREAMED_BYTES_MIN) {
            const size_t unaligned = (size_t)(-(uintptr_t)out & 63);
            memcpy(out, from, unaligned);
            out += unaligned, from += unaligned, n -= unaligned;
            for (; n >= 64; n -= 64, out += 64, from += 64) {
                __builtin_prefetch(from + 512);
                const __m128i a = _mm_loadu_si128((const __m128i *)from);
                const __m128i b = _mm_loadu_si128((const __m128i *)(from + 16));
                const __m128i c = _mm_loadu_si128((const __m128i *)(from + 32));
                const __m128i d = _mm_loadu_si128((const __m128i *)(from + 48));
                _mm_stream_si128((__m128i *)out, a);
                _mm_stream_si128((__m128i *)(out + 16), b);
                _mm_stream_si128((__m128i *)(out + 32), c);
                _mm_stream_si128((__m128i *)(out + 48), d);
            }
            _mm_sfence();
        }
    #endif
        memcpy(out, from, n);
    }
    """
    void streaming_copy "kb_streaming_copy"(uint8_t* out, const uint8_t* source, size_t n)
