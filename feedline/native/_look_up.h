/* Look up the truth of codes: whether a condition holds for the entry that each of them stands for.
 *
 * Truths are bytes, 0 or 1. A condition that holds for a few entries, or for all but a few, is that codes equal these,
 * which is compared many codes at once; else each code is an index.
 */

#ifndef FEEDLINE_LOOK_UP_H
#define FEEDLINE_LOOK_UP_H

#include "_runs.h"

#define FEW_CODES 4
#define LOOKED_UP 1024 /* codes at a time: they are read twice */

/* A table of truths. If `few` is not negative, so many entries have another truth than `usual`: `codes`. */
typedef struct {
    const uint8_t *truths;
    int64_t count;
    uint8_t usual, null;
    int few;
    uint32_t codes[FEW_CODES];
} Truths;

/* A table of at least one truth, the last of which is that of null. */
static Truths truths_of(const uint8_t *truths, int64_t count) {
    const int64_t ones = count_ones(truths, count);
    Truths table = {truths, count, ones > count / 2, truths[count - 1] != 0, -1, {0}};
    if ((table.usual ? count - ones : ones) > FEW_CODES)
        return table;
    const uint8_t *at = truths, *end = truths + count;
    for (table.few = 0; table.few < FEW_CODES; at++) {
        at = memchr(at, !table.usual, (size_t)(end - at));
        if (at == NULL)
            break;
        table.codes[table.few++] = (uint32_t)(at - truths);
    }
    return table;
}

#define LOOK_UP(name, type)                                                                                 \
    FAST static int name(const type *codes, int64_t count, const Truths *table, uint8_t *out) {             \
        for (; count > 0; codes += LOOKED_UP, out += LOOKED_UP, count -= LOOKED_UP) {                       \
            const int64_t some = count < LOOKED_UP ? count : LOOKED_UP;                                     \
            type largest = 0;                                                                               \
            for (int64_t index = 0; index < some; index++)                                                  \
                largest = codes[index] > largest ? codes[index] : largest;                                  \
            if (largest >= table->count)                                                                    \
                return -1;                                                                                  \
            if (table->few < 0) {                                                                           \
                for (int64_t index = 0; index < some; index++)                                              \
                    out[index] = table->truths[codes[index]] != 0;                                          \
                continue;                                                                                   \
            }                                                                                               \
            memset(out, table->usual, (size_t)some);                                                        \
            for (int each = 0; each < table->few; each++) {                                                 \
                const type code = (type)table->codes[each];                                                 \
                for (int64_t index = 0; index < some; index++)                                              \
                    out[index] ^= codes[index] == code;                                                     \
            }                                                                                               \
        }                                                                                                   \
        return 0;                                                                                           \
    }

/* Write the truth of each code. Returns -1 if one has none. */
LOOK_UP(look_up_2, uint16_t)
LOOK_UP(look_up_4, uint32_t)

/* Give those their truth that are null in a bitmap, which begins `offset` bits before theirs. There is room for 8 more
 * bytes than `count`. */
static void set_nulls(uint8_t *out, int64_t count, const uint8_t *valid, const uint8_t *end, int64_t offset,
                      uint8_t null) {
    const uint64_t nulls = null * UINT64_C(0x0101010101010101);
    const int shift = (int)(offset & 7);
    const uint8_t *at = valid + (offset >> 3);
    for (int64_t index = 0; index < count; index += 8, at++) {
        const uint32_t both = at[0] | (uint32_t)(shift && at + 1 < end ? at[1] : 0) << 8;
        uint64_t there = (both >> shift & 255) * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
        there = (there + UINT64_C(0x7f7f7f7f7f7f7f7f)) >> 7 & UINT64_C(0x0101010101010101);
        const uint64_t word = (load64(out + index) & there) | (nulls & ~there);
        memcpy(out + index, &word, sizeof word);
    }
}

#endif
