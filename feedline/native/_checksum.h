/* The CRC-32 of a page's bytes, as of zlib. */

#ifndef FEEDLINE_CHECKSUM_H
#define FEEDLINE_CHECKSUM_H

#include "_runs.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define FOLDS 1
#include <immintrin.h>
#else
#define FOLDS 0
#endif

static uint32_t crc_table[16][256];

static void make_crc_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int table = 1; table < 16; table++)
            crc_table[table][byte] = crc_table[table - 1][byte] >> 8 ^ crc_table[0][crc_table[table - 1][byte] & 255];
}

/* Go on with bytes, 16 at a time. */
static uint32_t crc_by_table(uint32_t crc, const uint8_t *at, const uint8_t *end) {
    for (; end - at >= 16; at += 16) {
        uint64_t low = load64(at) ^ crc, high = load64(at + 8);
        crc = 0;
        for (int byte = 0; byte < 8; byte++, low >>= 8, high >>= 8)
            crc ^= crc_table[15 - byte][low & 255] ^ crc_table[7 - byte][high & 255];
    }
    for (; at < end; at++)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *at) & 255];
    return crc;
}

#if FOLDS
#define PCLMUL __attribute__((target("pclmul,sse2")))

/* 16 bytes that leave the remainder of `lane` followed by `next`: as far ahead of it as `powers` say (V. Gopal and others,
 * "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009). */
PCLMUL static inline __m128i fold(__m128i lane, __m128i powers, __m128i next) {
    const __m128i low = _mm_clmulepi64_si128(lane, powers, 0x00), high = _mm_clmulepi64_si128(lane, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

PCLMUL static inline __m128i load_lane(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)at);
}

/* The same of at least 64 bytes, in four lanes that are folded to one. */
PCLMUL static uint32_t crc_by_folds(uint32_t crc, const uint8_t *at, const uint8_t *end) {
    const __m128i by_64 = _mm_set_epi64x(0x01C6E41596, 0x0154442BD4), by_16 = _mm_set_epi64x(0x00CCAA009E, 0x01751997D0);
    __m128i lanes[4];
    uint8_t rest[16];
    for (int lane = 0; lane < 4; lane++)
        lanes[lane] = load_lane(at + 16 * lane);
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)crc));
    for (at += 64; end - at >= 64; at += 64)
        for (int lane = 0; lane < 4; lane++)
            lanes[lane] = fold(lanes[lane], by_64, load_lane(at + 16 * lane));
    for (int lane = 1; lane < 4; lane++)
        lanes[0] = fold(lanes[0], by_16, lanes[lane]);
    for (; end - at >= 16; at += 16)
        lanes[0] = fold(lanes[0], by_16, load_lane(at));
    _mm_storeu_si128((__m128i *)rest, lanes[0]);
    return crc_by_table(crc_by_table(0, rest, rest + 16), at, end);
}
#endif

static uint32_t crc_of(const uint8_t *at, const uint8_t *end) {
#if FOLDS
    if (end - at >= 64 && __builtin_cpu_supports("pclmul"))
        return ~crc_by_folds(~UINT32_C(0), at, end);
#endif
    return ~crc_by_table(~UINT32_C(0), at, end);
}

#endif
