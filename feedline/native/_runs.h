/* Read Parquet's hybrid of repeated values and bit-packed groups: levels, dictionary codes and Booleans.
 *
 * Every read is checked against the end of the bytes. A function returns 0, or -1 where the bytes are not of the format
 * or end early; nothing is written past the `count` values asked for.
 */

#ifndef FEEDLINE_RUNS_H
#define FEEDLINE_RUNS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_fast.h"

#define INLINE static inline __attribute__((always_inline, unused))

/* A position in a sequence of runs. Of the current run `left` values are to come: `value`, or those packed at `bit`. */
typedef struct {
    const uint8_t *at, *end; /* of the next run's header */
    uint32_t width, value;
    int packed;
    int64_t left;
    const uint8_t *bytes; /* of a packed run, up to `at` */
    uint64_t bit;
} Runs;

INLINE uint64_t load64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Up to 8 bytes, the others being 0. */
INLINE uint64_t load_some(const uint8_t *at, const uint8_t *end) {
    uint64_t word = 0;
    if (end - at >= 8)
        return load64(at);
    if (end > at)
        memcpy(&word, at, (size_t)(end - at));
    return word;
}

/* A variable-length integer of at most `bits` bits. Returns the bytes it takes, 0 if it is none. */
INLINE int read_varint(const uint8_t *at, const uint8_t *end, int bits, uint64_t *value) {
    uint64_t result = 0;
    for (int shift = 0, count = 1; at < end && shift < bits; shift += 7, count++) {
        const uint8_t byte = *at++;
        result |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            if (shift > 56 && bits == 64 && byte > 1)
                return 0;
            *value = result;
            return count;
        }
    }
    return 0;
}

/* The lowest bits of 8 bytes, the first byte's first. */
INLINE uint64_t lowest_bits(uint64_t bytes) {
    return (bytes & UINT64_C(0x0101010101010101)) * UINT64_C(0x0102040810204080) >> 56;
}

/* How many of bytes that are 0 or 1 are 1: in words, whose bytes do not overflow in 255 of them. */
INLINE int64_t count_ones(const uint8_t *bytes, int64_t count) {
    int64_t ones = 0, index = 0;
    while (count - index >= 8) {
        const int64_t stop = count - index < 255 * 8 ? index + (count - index) / 8 * 8 : index + 255 * 8;
        uint64_t sums = 0;
        for (; index < stop; index += 8)
            sums += load64(bytes + index);
        sums = (sums & UINT64_C(0x00ff00ff00ff00ff)) + (sums >> 8 & UINT64_C(0x00ff00ff00ff00ff));
        ones += (int64_t)(sums * UINT64_C(0x0001000100010001) >> 48);
    }
    for (; index < count; index++)
        ones += bytes[index];
    return ones;
}

static void runs_open(Runs *runs, const uint8_t *at, const uint8_t *end, uint32_t width) {
    memset(runs, 0, sizeof *runs);
    runs->at = at;
    runs->end = end;
    runs->width = width;
}

/* There are no further runs. */
INLINE int runs_fail(Runs *runs) {
    runs->at = runs->end;
    runs->left = 0;
    return -1;
}

/* Begin the next run. A packed run may lack bytes of its last group, as old writers left them out: it has as many values
 * as its bytes hold. */
static int runs_next(Runs *runs) {
    uint64_t header;
    if (runs->at < runs->end && *runs->at < 128) { /* most are short */
        header = *runs->at++;
    } else {
        const int bytes = read_varint(runs->at, runs->end, 35, &header);
        if (bytes == 0 || header >> 32)
            return runs_fail(runs);
        runs->at += bytes;
    }
    const uint64_t room = (uint64_t)(runs->end - runs->at);
    if (header & 1) {
        const uint64_t groups = header >> 1;
        uint64_t size = groups * runs->width;
        runs->left = (int64_t)(groups * 8);
        if (size > room) {
            if (size - room >= runs->width)
                return runs_fail(runs);
            size = room;
            runs->left = (int64_t)(size * 8 / runs->width);
        }
        if (groups == 0 || groups > INT32_MAX / 8 || runs->left == 0) /* of width 0 any number has its bytes */
            return runs_fail(runs);
        runs->packed = 1;
        runs->bytes = runs->at;
        runs->bit = 0;
        runs->at += size;
        return 0;
    }
    const uint32_t size = (runs->width + 7) / 8;
    if (size > room || header >> 1 == 0)
        return runs_fail(runs);
    runs->value = size == 1 ? *runs->at : (uint32_t)load_some(runs->at, runs->at + size);
    if (runs->width < 32 && runs->value >> runs->width)
        return runs_fail(runs);
    runs->packed = 0;
    runs->left = (int64_t)(header >> 1);
    runs->at += size;
    return 0;
}

/* Values of a constant width from a byte border; all 8 bytes from each value's first byte on must be readable. */
#define UNPACK(width)                                                                                       \
    case width:                                                                                             \
        for (; index + 8 <= count && end - at >= (width) + 8; index += 8, at += (width))                    \
            for (int each = 0; each < 8; each++)                                                            \
                out[index + each] =                                                                         \
                    (uint32_t)(load64(at + ((width) * each >> 3)) >> ((width) * each & 7)) & mask;          \
        break;

/* Unpack values of a packed run. `end`: of all that may be read. */
INLINE void unpack(const uint8_t *bytes, const uint8_t *end, uint64_t bit, uint32_t width, uint32_t *out,
                   int64_t count) {
    const uint32_t mask = width == 32 ? UINT32_MAX : ((uint32_t)1 << width) - 1;
    int64_t index = 0;
    if (width == 0) {
        memset(out, 0, (size_t)count * sizeof *out);
        return;
    }
    for (; index < count && (bit & 7); index++, bit += width)
        out[index] = (uint32_t)(load_some(bytes + (bit >> 3), end) >> (bit & 7)) & mask;
    const uint8_t *at = bytes + (bit >> 3);
    switch (width) {
        UNPACK(1) UNPACK(2) UNPACK(3) UNPACK(4) UNPACK(5) UNPACK(6) UNPACK(7) UNPACK(8)
        UNPACK(9) UNPACK(10) UNPACK(11) UNPACK(12) UNPACK(13) UNPACK(14) UNPACK(15) UNPACK(16)
        UNPACK(17) UNPACK(18) UNPACK(19) UNPACK(20) UNPACK(21) UNPACK(22) UNPACK(23) UNPACK(24)
        UNPACK(25) UNPACK(26) UNPACK(27) UNPACK(28) UNPACK(29) UNPACK(30) UNPACK(31) UNPACK(32)
    }
    bit = (uint64_t)(at - bytes) * 8;
    for (; index < count; index++, bit += width)
        out[index] = (uint32_t)(load_some(bytes + (bit >> 3), end) >> (bit & 7)) & mask;
}

/* Read values below `limit`. */
FAST static int runs_read(Runs *runs, uint32_t *out, int64_t count, uint32_t limit) {
    while (count > 0) {
        if (runs->left == 0 && runs_next(runs) != 0)
            return -1;
        const int64_t some = runs->left < count ? runs->left : count;
        uint32_t largest = 0;
        if (runs->packed) {
            unpack(runs->bytes, runs->end, runs->bit, runs->width, out, some);
            runs->bit += (uint64_t)some * runs->width;
            for (int64_t index = 0; index < some; index++)
                largest = out[index] > largest ? out[index] : largest;
        } else {
            largest = runs->value;
            for (int64_t index = 0; index < some; index++)
                out[index] = runs->value;
        }
        if (largest >= limit)
            return -1;
        runs->left -= some;
        out += some;
        count -= some;
    }
    return 0;
}

/* Read values of at most 8 bits, up to and including `most`, as bytes. */
FAST static int runs_read_bytes(Runs *runs, uint8_t *out, int64_t count, uint32_t most) {
    while (count > 0) {
        if (runs->left == 0 && runs_next(runs) != 0)
            return -1;
        const int64_t some = runs->left < count ? runs->left : count;
        if (runs->packed) {
            const uint32_t width = runs->width, mask = ((uint32_t)1 << width) - 1;
            uint32_t largest = 0;
            int64_t index = 0;
            const uint8_t *groups = runs->bytes + (runs->bit >> 3); /* of 8 values */
            if (width == 1 && (runs->bit & 7) == 0) {
                for (; index + 8 <= some; index += 8) {
                    uint64_t eight = (*groups++ * UINT64_C(0x0101010101010101)) & UINT64_C(0x8040201008040201);
                    eight = (eight + UINT64_C(0x7f7f7f7f7f7f7f7f)) >> 7 & UINT64_C(0x0101010101010101);
                    memcpy(out + index, &eight, sizeof eight);
                }
                largest = index > 0; /* as if there were a 1: levels of one bit are all allowed */
            } else if (width == 2 && (runs->bit & 7) == 0) {
                uint64_t threes = 0;
                for (; index + 8 <= some; index += 8, groups += 2) {
                    uint64_t eight = groups[0] | (uint64_t)groups[1] << 32;
                    eight = (eight | eight << 12) & UINT64_C(0x000f000f000f000f);
                    eight = (eight | eight << 6) & UINT64_C(0x0303030303030303);
                    memcpy(out + index, &eight, sizeof eight);
                    threes |= eight & eight >> 1 & UINT64_C(0x0101010101010101);
                }
                largest = threes ? 3 : index > 0 ? 2 : 0; /* as if there were a 2, which is allowed */
            }
            for (; index < some; index++) {
                const uint64_t bit = runs->bit + (uint64_t)index * width;
                const uint8_t *at = runs->bytes + (bit >> 3);
                uint32_t value = *at;
                if (width > 1 && at + 1 < runs->at)
                    value |= (uint32_t)at[1] << 8;
                value = value >> (bit & 7) & mask;
                largest = value > largest ? value : largest;
                out[index] = (uint8_t)value;
            }
            if (largest > most)
                return -1;
            runs->bit += (uint64_t)some * width;
        } else {
            if (runs->value > most)
                return -1;
            memset(out, (int)runs->value, (size_t)some);
        }
        runs->left -= some;
        out += some;
        count -= some;
    }
    return 0;
}

/* How many of the next `count` values are known to be `value` without reading them: those of a run. */
INLINE int64_t runs_repeated(Runs *runs, uint32_t value, int64_t count) {
    if (runs->left == 0 && runs_next(runs) != 0)
        return 0;
    if (runs->packed || runs->value != value)
        return 0;
    return runs->left < count ? runs->left : count;
}

#endif
