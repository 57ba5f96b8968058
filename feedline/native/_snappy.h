/* Decompress Snappy blocks to exactly as many bytes as a page declares. */

#ifndef FEEDLINE_SNAPPY_H
#define FEEDLINE_SNAPPY_H

#include "_lz4.h"

INLINE size_t little_endian(const uint8_t *at, size_t width) {
    size_t number = 0;
    for (size_t byte = 0; byte < width; byte++)
        number |= (size_t)at[byte] << 8 * byte;
    return number;
}

/* Returns the bytes written, at most `size`; -1 where the block is not valid, or says that it holds another number of
 * bytes. There are LZ4_SLACK more behind `out`. */
static int64_t snappy_block(const uint8_t *at, const uint8_t *end, uint8_t *out, size_t size) {
    uint8_t *to = out;
    uint64_t declared;
    const int bytes = read_varint(at, end, 35, &declared);
    if (bytes == 0 || declared != size)
        return -1;
    for (at += bytes; at < end;) {
        const uint8_t tag = *at++;
        size_t length = (size_t)(tag >> 2) + 1;
        if ((tag & 3) == 0) {
            if (length > 60) { /* it stands in the next one to four bytes */
                const size_t width = length - 60;
                if ((size_t)(end - at) < width)
                    return -1;
                length = little_endian(at, width) + 1;
                at += width;
            }
            if (length > (size_t)(end - at) || length > size - (size_t)(to - out))
                return -1;
            copy_input(to, at, end, length);
            at += length;
            to += length;
            continue;
        }
        const size_t width = (tag & 3) == 3 ? 4 : tag & 3;
        if ((size_t)(end - at) < width)
            return -1;
        size_t distance = little_endian(at, width);
        at += width;
        if (width == 1) {
            distance |= (size_t)(tag >> 5) << 8;
            length = (size_t)(tag >> 2 & 7) + 4;
        }
        if (distance == 0 || distance > (size_t)(to - out) || length > size - (size_t)(to - out))
            return -1;
        copy_match(to, distance, length);
        to += length;
    }
    return to - out;
}

#endif
