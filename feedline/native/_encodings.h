/* Decode whole pages of Parquet's delta and byte-stream-split encodings to plain values.
 *
 * A page of these encodings is decoded when it is reached: values depend on the ones before. Functions return the number
 * of values, or -1 where the bytes are not of the format.
 */

#ifndef FEEDLINE_ENCODINGS_H
#define FEEDLINE_ENCODINGS_H

#include <stdlib.h>

#include "_runs.h"

#define DELTA_VALUES 1048576 /* the most values of a block that is believed */

/* Read a block header's or a value's zigzag integer of 4 or 8 bytes. */
INLINE int read_zigzag(const uint8_t *at, const uint8_t *end, int size, int64_t *value) {
    uint64_t raw = 0;
    const int bytes = read_varint(at, end, size == 4 ? 35 : 64, &raw);
    if (size == 4 && raw >> 32)
        return 0;
    *value = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
    return bytes;
}

INLINE uint64_t unpack_wide(const uint8_t *bytes, const uint8_t *end, uint64_t bit, uint32_t width) {
    const uint8_t *at = bytes + (bit >> 3);
    const uint32_t shift = (uint32_t)(bit & 7);
    uint64_t word = load_some(at, end) >> shift;
    if (shift + width > 64 && at + 8 < end)
        word |= (uint64_t)at[8] << (64 - shift);
    return width == 64 ? word : word & (((uint64_t)1 << width) - 1);
}

/* Decode DELTA_BINARY_PACKED to integers of `size` bytes, at most `room` of them. `next`: the first byte behind. */
static int64_t decode_delta(const uint8_t *at, const uint8_t *end, uint8_t *out, int size, int64_t room,
                            const uint8_t **next) {
    uint64_t block, minis, total;
    int64_t value;
    int bytes;
    if ((bytes = read_varint(at, end, 35, &block)) == 0)
        return -1;
    at += bytes;
    if ((bytes = read_varint(at, end, 35, &minis)) == 0)
        return -1;
    at += bytes;
    if ((bytes = read_varint(at, end, 35, &total)) == 0)
        return -1;
    at += bytes;
    if ((bytes = read_zigzag(at, end, size, &value)) == 0)
        return -1;
    at += bytes;
    if (block == 0 || block > DELTA_VALUES || block % 128 || minis == 0 || block % minis || block / minis % 32
        || total > (uint64_t)room)
        return -1;
    const int64_t per_mini = (int64_t)(block / minis), count = (int64_t)total;
    uint64_t last = (uint64_t)value;
    int64_t index = 0;
    if (count > 0) {
        memcpy(out, &last, (size_t)size);
        index = 1;
    }
    while (index < count) {
        int64_t smallest;
        if ((bytes = read_zigzag(at, end, size, &smallest)) == 0)
            return -1;
        at += bytes;
        const uint8_t *widths = at;
        if ((uint64_t)(end - at) < minis)
            return -1;
        at += minis;
        for (uint64_t mini = 0; mini < minis && index < count; mini++) {
            const uint32_t width = widths[mini];
            const int64_t some = count - index < per_mini ? count - index : per_mini;
            const uint64_t packed = (uint64_t)width * (uint64_t)per_mini / 8; /* the last one is filled up */
            if (width > (uint32_t)size * 8 || packed > (uint64_t)(end - at))
                return -1;
            const uint8_t *stop = at + packed;
            for (int64_t each = 0; each < some; each++) {
                last += (uint64_t)smallest + (width ? unpack_wide(at, stop, (uint64_t)each * width, width) : 0);
                memcpy(out + (index + each) * size, &last, (size_t)size);
            }
            index += some;
            at = stop;
        }
    }
    *next = at;
    return count;
}

/* Decode BYTE_STREAM_SPLIT: byte k of all values, for each k. */
static int64_t decode_split(const uint8_t *at, const uint8_t *end, uint8_t *out, int size, int64_t room) {
    const int64_t count = (end - at) / size;
    if ((end - at) % size || count > room)
        return -1;
    if (size == 4 || size == 8) { /* in blocks, whose bytes stay in the cache */
        for (int64_t start = 0; start < count; start += 256) {
            const int64_t stop = start + 256 < count ? start + 256 : count;
            for (int byte = 0; byte < size; byte++) {
                const uint8_t *stream = at + byte * count;
                for (int64_t index = start; index < stop; index++)
                    out[index * size + byte] = stream[index];
            }
        }
    } else {
        for (int byte = 0; byte < size; byte++)
            for (int64_t index = 0; index < count; index++)
                out[index * size + byte] = at[byte * count + index];
    }
    return count;
}

#endif
