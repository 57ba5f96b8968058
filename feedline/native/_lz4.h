/* Decompress LZ4 blocks to exactly as many bytes as a page declares. */

#ifndef FEEDLINE_LZ4_H
#define FEEDLINE_LZ4_H

#include "_runs.h"

#define LZ4_SLACK 32 /* bytes behind the output that may be overwritten */

/* A length of 15 goes on in further bytes. */
INLINE int lz4_length(const uint8_t **at, const uint8_t *end, size_t *length) {
    if (*length != 15)
        return 0;
    uint8_t byte;
    do {
        if (*at >= end || *length > INT32_MAX)
            return -1;
        byte = *(*at)++;
        *length += byte;
    } while (byte == 255);
    return 0;
}

/* Copy 16 bytes at a time; up to 15 more are overwritten. */
INLINE void copy_wild(uint8_t *to, const uint8_t *from, size_t length) {
    for (size_t done = 0; done < length; done += 16)
        memcpy(to + done, from + done, 16);
}

/* Copy bytes of the input, which hold so many. A few are copied without a loop, whose end would be guessed wrong. */
INLINE void copy_input(uint8_t *to, const uint8_t *at, const uint8_t *end, size_t length) {
    if (length <= 16 && end - at >= 16)
        memcpy(to, at, 16);
    else if (end - at >= (ptrdiff_t)length + 16)
        copy_wild(to, at, length);
    else
        memcpy(to, at, length);
}

/* Repeat what lies `distance` bytes before; the ranges may overlap. Up to 23 more bytes are overwritten. */
INLINE void copy_match(uint8_t *to, size_t distance, size_t length) {
    const uint8_t *from = to - distance;
    if (distance >= 8 && length <= 24) {
        memcpy(to, from, 8);
        memcpy(to + 8, from + 8, 8);
        memcpy(to + 16, from + 16, 8);
        return;
    }
    if (distance >= 16) {
        copy_wild(to, from, length);
        return;
    }
    size_t done = 0;
    if (distance < 8) { /* a multiple of the distance that is 8 at least repeats the same */
        for (; done < 8; done++)
            to[done] = from[done];
        distance *= (7 + distance) / distance;
    }
    for (from = to - distance; done < length; done += 8)
        memcpy(to + done, from + done, 8);
}

/* Returns the bytes written, at most `size`; -1 where the block is not valid. There are LZ4_SLACK more behind `out`. */
static int64_t lz4_block(const uint8_t *at, const uint8_t *end, uint8_t *out, size_t size) {
    uint8_t *to = out;
    while (at < end) {
        const uint8_t token = *at++;
        size_t length = token >> 4;
        if (lz4_length(&at, end, &length) != 0 || length > (size_t)(end - at) || length > size - (size_t)(to - out))
            return -1;
        copy_input(to, at, end, length);
        at += length;
        to += length;
        if (at == end) /* the last sequence has literals alone */
            return to - out;
        if (end - at < 2)
            return -1;
        const size_t distance = (size_t)at[0] | (size_t)at[1] << 8;
        at += 2;
        length = token & 15;
        if (lz4_length(&at, end, &length) != 0)
            return -1;
        length += 4;
        if (distance == 0 || distance > (size_t)(to - out) || length > size - (size_t)(to - out))
            return -1;
        copy_match(to, distance, length);
        to += length;
    }
    return size == 0 ? 0 : -1;
}

INLINE uint32_t big_endian(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Hadoop's frames: the sizes of a block before and after, and the block. */
static int64_t lz4_frames(const uint8_t *at, const uint8_t *end, uint8_t *out, size_t size) {
    size_t done = 0;
    while (end - at >= 8) {
        const size_t full = big_endian(at), packed = big_endian(at + 4);
        at += 8;
        if (packed > (size_t)(end - at) || full > size - done
            || lz4_block(at, at + packed, out + done, full) != (int64_t)full)
            return -1;
        at += packed;
        done += full;
    }
    return at == end ? (int64_t)done : -1;
}

#endif
