/* CRC-32C (Castagnoli), polynomial 0x1EDC6F41, bit-reflected 0x82F63B78.
 *
 * Behind one function pointer, chosen once at import:
 *   avx512    from 512 bytes on: 256 bytes at a time folded by 512-bit carry-less multiplications
 *   sse4.2    crc32 instruction on three interleaved streams, joined by one carry-less multiplication each
 *   armv8     the same with the ARMv8 CRC and PMULL instructions
 *   portable  slicing-by-8 tables
 *
 * Notation: a 32-bit state is a polynomial over GF(2) modulo P, bit 31 being x^0 (reflected). Appending n zero
 * bytes to a message multiplies its state by x^(8n); that is all that is needed to join streams and to combine.
 */
#ifndef KBROKER_CRC32C_IMPL_H
#define KBROKER_CRC32C_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KB_CRC_POLYNOMIAL 0x82F63B78u
#define KB_CRC_ONE 0x80000000u           /* x^0 */
#define KB_CRC_STREAM_WORDS 128          /* longest of the three streams: 1 KiB, so 3 KiB per round */
#define KB_CRC_AHEAD (2 * 24 * KB_CRC_STREAM_WORDS) /* fetched early: the streams are too short for the processor to foresee */

static uint32_t kb_crc_tables[8][256];                           /* slicing-by-8 */
static uint32_t kb_crc_x_pow_2[67];                              /* x^(2^k) */
static uint32_t kb_crc_word_shift[2 * KB_CRC_STREAM_WORDS + 1];  /* [i] = x^(64 i - 33): see kb_crc_fold */
static uint32_t kb_crc_unfold;                                   /* x^-66 */

/* a * b mod P, one bit at a time. */
static uint32_t kb_crc_multiply_portable(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = KB_CRC_ONE; bit != 0; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = (b >> 1) ^ ((b & 1) ? KB_CRC_POLYNOMIAL : 0);
    }
    return product;
}

static inline uint64_t kb_crc_load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static uint32_t kb_crc_portable(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    while (n >= 8) {
        uint64_t v = kb_crc_load64(p) ^ crc;
        crc = kb_crc_tables[7][v & 0xff] ^ kb_crc_tables[6][(v >> 8) & 0xff] ^
              kb_crc_tables[5][(v >> 16) & 0xff] ^ kb_crc_tables[4][(v >> 24) & 0xff] ^
              kb_crc_tables[3][(v >> 32) & 0xff] ^ kb_crc_tables[2][(v >> 40) & 0xff] ^
              kb_crc_tables[1][(v >> 48) & 0xff] ^ kb_crc_tables[0][v >> 56];
        p += 8;
        n -= 8;
    }
    while (n-- > 0)
        crc = (crc >> 8) ^ kb_crc_tables[0][(crc ^ *p++) & 0xff];
    return ~crc;
}

/* The hardware versions share their body; only these four primitives differ.
 * fold(crc, i) = crc * x^(64 i): the product of two reflected 32-bit values, read as a reflected 64-bit value, is
 * short of one factor x, and the crc instruction multiplies by x^32; hence the -33 in kb_crc_word_shift. */
#if defined(__x86_64__)
#include <immintrin.h>
#define KB_CRC_HARDWARE "sse4.2"
#ifdef __clang__ /* where crc32 is a feature of its own, which old versions of gcc do not know */
#define KB_CRC_FEATURES "sse4.2,crc32,pclmul"
#else
#define KB_CRC_FEATURES "sse4.2,pclmul"
#endif
#define KB_CRC_TARGET __attribute__((target(KB_CRC_FEATURES)))
#define KB_CRC_STEP8(crc, v) ((uint32_t)_mm_crc32_u64((crc), (v)))
#define KB_CRC_STEP1(crc, v) _mm_crc32_u8((crc), (v))
#define KB_CRC_CLMUL(a, b) \
    ((uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi32_si128((int)(a)), _mm_cvtsi32_si128((int)(b)), 0)))
static int kb_crc_hardware_present(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <arm_neon.h>
#include <sys/auxv.h>
#define KB_CRC_HARDWARE "armv8"
#define KB_CRC_TARGET __attribute__((target("+crc+crypto")))
#define KB_CRC_STEP8(crc, v) __crc32cd((crc), (v))
#define KB_CRC_STEP1(crc, v) __crc32cb((crc), (v))
#define KB_CRC_CLMUL(a, b) \
    vgetq_lane_u64(vreinterpretq_u64_p128(vmull_p64((poly64_t)(uint64_t)(a), (poly64_t)(uint64_t)(b))), 0)
static int kb_crc_hardware_present(void)
{
    unsigned long present = getauxval(16 /* AT_HWCAP */);
    return (present & (1ul << 7) /* CRC32 */) && (present & (1ul << 4) /* PMULL */);
}
#endif

#ifdef KB_CRC_HARDWARE
KB_CRC_TARGET static inline uint32_t kb_crc_fold(uint32_t crc, uint32_t shift)
{
    return KB_CRC_STEP8(0, KB_CRC_CLMUL(crc, shift));
}

KB_CRC_TARGET static uint32_t kb_crc_multiply_hardware(uint32_t a, uint32_t b)
{
    /* Each fold brings a factor x^33 along; x^-66 takes both out again. */
    return kb_crc_fold(kb_crc_fold(a, b), kb_crc_unfold);
}

KB_CRC_TARGET static uint32_t kb_crc_hardware(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    while (n >= 24) {
        size_t words = n / 24;
        if (words > KB_CRC_STREAM_WORDS)
            words = KB_CRC_STREAM_WORDS;
        const uint8_t *q = p + 8 * words, *r = q + 8 * words, *end = q;
        const size_t ahead = n > 24 * words ? KB_CRC_AHEAD : 0;
        uint32_t second = 0, third = 0;
        while (p < end) {
            const uint8_t *line_end = end - p > 64 ? p + 64 : end;
            __builtin_prefetch(p + ahead);
            __builtin_prefetch(q + ahead);
            __builtin_prefetch(r + ahead);
            for (; p < line_end; p += 8, q += 8, r += 8) {
                crc = KB_CRC_STEP8(crc, kb_crc_load64(p));
                second = KB_CRC_STEP8(second, kb_crc_load64(q));
                third = KB_CRC_STEP8(third, kb_crc_load64(r));
            }
        }
        crc = kb_crc_fold(crc, kb_crc_word_shift[2 * words]) ^ kb_crc_fold(second, kb_crc_word_shift[words]) ^ third;
        p = r;
        n -= 24 * words;
    }
    for (; n >= 8; p += 8, n -= 8)
        crc = KB_CRC_STEP8(crc, kb_crc_load64(p));
    for (; n > 0; p++, n--)
        crc = KB_CRC_STEP1(crc, *p);
    return ~crc;
}
#endif

#if defined(__x86_64__)
#define KB_CRC_WIDE "avx512"
#define KB_CRC_WIDE_TARGET __attribute__((target("avx512f,avx512vl,avx512dq,vpclmulqdq," KB_CRC_FEATURES)))
#define KB_CRC_WIDE_BYTES_MIN 512

static uint64_t kb_crc_far[2], kb_crc_near[2];  /* constants that move 128 bits by 256 and by 64 bytes */

static int kb_crc_wide_present(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq");
}

/* lane * x^D + next in each 128-bit lane, D being what k was made for. */
KB_CRC_WIDE_TARGET static inline __m512i kb_crc_fold_lanes(__m512i lanes, __m512i k, __m512i next)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, k, 0x00),
                                     _mm512_clmulepi64_epi128(lanes, k, 0x11), next, 0x96);
}

KB_CRC_WIDE_TARGET static uint32_t kb_crc_wide(uint32_t crc, const uint8_t *p, size_t n)
{
    if (n < KB_CRC_WIDE_BYTES_MIN)
        return kb_crc_hardware(crc, p, n);
    const __m512i far = _mm512_broadcast_i64x2(_mm_set_epi64x((long long)kb_crc_far[1], (long long)kb_crc_far[0]));
    const __m512i near = _mm512_broadcast_i64x2(_mm_set_epi64x((long long)kb_crc_near[1], (long long)kb_crc_near[0]));
    __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
    __m512i c = _mm512_loadu_si512(p + 128), d = _mm512_loadu_si512(p + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        a = kb_crc_fold_lanes(a, far, _mm512_loadu_si512(p));
        b = kb_crc_fold_lanes(b, far, _mm512_loadu_si512(p + 64));
        c = kb_crc_fold_lanes(c, far, _mm512_loadu_si512(p + 128));
        d = kb_crc_fold_lanes(d, far, _mm512_loadu_si512(p + 192));
    }
    a = kb_crc_fold_lanes(a, near, b);
    a = kb_crc_fold_lanes(a, near, c);
    a = kb_crc_fold_lanes(a, near, d);
    for (; n >= 64; p += 64, n -= 64)
        a = kb_crc_fold_lanes(a, near, _mm512_loadu_si512(p));
    /* 64 bytes that are congruent to all that came before. */
    uint64_t words[8];
    _mm512_storeu_si512(words, a);
    crc = 0;
    for (int i = 0; i < 8; i++)
        crc = KB_CRC_STEP8(crc, words[i]);
    return kb_crc_hardware(~crc, p, n);
}
#endif

static uint32_t (*kb_crc_update)(uint32_t, const uint8_t *, size_t) = kb_crc_portable;
static uint32_t (*kb_crc_multiply)(uint32_t, uint32_t) = kb_crc_multiply_portable;

/* a * x^(n << k): the product of the x^(2^k) for the bits set in the exponent. */
static uint32_t kb_crc_shift(uint32_t a, uint64_t n, int k)
{
    for (; n != 0; n >>= 1, k++)
        if (n & 1)
            a = kb_crc_multiply(a, kb_crc_x_pow_2[k]);
    return a;
}

/* CRC of a + b. */
static uint32_t kb_crc_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b)
{
    return kb_crc_shift(crc_a, length_b, 3) ^ crc_b;
}

static void kb_crc_fill_tables(void)
{
    kb_crc_multiply = kb_crc_multiply_portable;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? KB_CRC_POLYNOMIAL : 0);
        kb_crc_tables[0][i] = crc;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++)
            kb_crc_tables[t][i] =
                (kb_crc_tables[t - 1][i] >> 8) ^ kb_crc_tables[0][kb_crc_tables[t - 1][i] & 0xff];

    kb_crc_x_pow_2[0] = KB_CRC_ONE >> 1;
    for (int k = 1; k < 67; k++)
        kb_crc_x_pow_2[k] = kb_crc_multiply_portable(kb_crc_x_pow_2[k - 1], kb_crc_x_pow_2[k - 1]);

    uint32_t inverse = KB_CRC_ONE;  /* x^-33: divide by x 33 times */
    for (int i = 0; i < 33; i++)
        inverse = (inverse & KB_CRC_ONE) ? ((inverse ^ KB_CRC_POLYNOMIAL) << 1) | 1 : inverse << 1;
    kb_crc_unfold = kb_crc_multiply_portable(inverse, inverse);
    for (int i = 0; i <= 2 * KB_CRC_STREAM_WORDS; i++) {
        kb_crc_word_shift[i] = inverse;
        inverse = kb_crc_multiply_portable(inverse, kb_crc_x_pow_2[6]);
    }
#ifdef KB_CRC_WIDE
    /* Two 64-bit halves of a lane; a product of reflected values lacks one factor x (see kb_crc_fold). */
    kb_crc_far[0] = (uint64_t)kb_crc_shift(KB_CRC_ONE, 2048 + 63, 0) << 32;
    kb_crc_far[1] = (uint64_t)kb_crc_shift(KB_CRC_ONE, 2048 - 1, 0) << 32;
    kb_crc_near[0] = (uint64_t)kb_crc_shift(KB_CRC_ONE, 512 + 63, 0) << 32;
    kb_crc_near[1] = (uint64_t)kb_crc_shift(KB_CRC_ONE, 512 - 1, 0) << 32;
#endif
}

/* Chooses the best implementation that is present, up to level 0 portable, 1 crc instruction, 2 wide; returns its
 * name. Not for concurrent use. */
static const char *kb_crc_select(int level_max)
{
    kb_crc_fill_tables();
    kb_crc_update = kb_crc_portable;
#ifdef KB_CRC_HARDWARE
    if (level_max >= 1 && kb_crc_hardware_present()) {
        kb_crc_multiply = kb_crc_multiply_hardware;
        kb_crc_update = kb_crc_hardware;
#ifdef KB_CRC_WIDE
        if (level_max >= 2 && kb_crc_wide_present()) {
            kb_crc_update = kb_crc_wide;
            return KB_CRC_WIDE;
        }
#endif
        return KB_CRC_HARDWARE;
    }
#endif
    return "portable";
}

#endif
