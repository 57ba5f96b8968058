/* Append values of a page, or codes of them, to the slots where they belong. */

#ifndef FEEDLINE_VALUES_H
#define FEEDLINE_VALUES_H

#include "_cursor.h"

static int append_string(Cursor *cursor, int32_t *offsets, int64_t index, const uint8_t *bytes, int64_t length) {
    Vector *target = &cursor->bytes;
    if (length > MOST_BYTES - (int64_t)target->used)
        return fail(cursor, TOO_LONG);
    if (target->used + (size_t)length + 64 > target->room && vector_reserve(target, (size_t)length) != 0)
        return fail(cursor, NO_MEMORY);
    memcpy(target->bytes + target->used, bytes, (size_t)length);
    target->used += (size_t)length;
    offsets[index] = (int32_t)target->used; /* where it ends */
    return 0;
}

#define GATHER(type)                                                                                        \
    for (int64_t index = 0; index < some; index++)                                                          \
        memcpy(out + (size_t)index * sizeof(type), entries + (size_t)block[index] * sizeof(type), sizeof(type)); \
    break;

FAST static void narrow(uint16_t *out, const uint32_t *codes, int64_t count) {
    for (int64_t index = 0; index < count; index++)
        out[index] = (uint16_t)codes[index];
}

/* Values that codes stand for. */
static int read_coded(Cursor *cursor, uint8_t *out, int64_t count) {
    uint32_t block[BLOCK];
    const uint8_t *entries = cursor->dictionary.buf;
    const int size = cursor->size;
    for (int64_t done = 0; done < count;) {
        const int64_t some = count - done < BLOCK ? count - done : BLOCK;
        if (runs_read(&cursor->runs, block, some, (uint32_t)cursor->entries) != 0)
            return fail(cursor, BAD_CODE);
        switch (size) {
        case 8:
            GATHER(uint64_t)
        case 4:
            GATHER(uint32_t)
        case 0:
            for (int64_t index = 0; index < some; index++) {
                const int64_t start = cursor->borders[2 * block[index]], stop = cursor->borders[2 * block[index] + 1];
                if (append_string(cursor, (int32_t *)out, index, entries + start, stop - start) != 0)
                    return -1;
            }
            out += (size_t)some * sizeof(int32_t);
            break;
        default:
            for (int64_t index = 0; index < some; index++)
                memcpy(out + index * size, entries + (size_t)block[index] * (size_t)size, (size_t)size);
        }
        out += some * size;
        done += some;
    }
    return 0;
}

static int read_strings(Cursor *cursor, int32_t *offsets, int64_t count) {
    if (cursor->lengths != NULL) { /* decoded */
        for (int64_t index = 0; index < count; index++) {
            const int64_t length = *cursor->lengths++;
            if (append_string(cursor, offsets, index, cursor->at, length) != 0)
                return -1;
            cursor->at += length;
        }
        cursor->strings -= count;
        return 0;
    }
    for (int64_t index = 0; index < count; index++) {
        uint32_t length;
        if (cursor->end - cursor->at < 4)
            return fail(cursor, VALUES_END);
        memcpy(&length, cursor->at, sizeof length);
        if ((int64_t)length > cursor->end - cursor->at - 4)
            return fail(cursor, VALUES_END);
        if (append_string(cursor, offsets, index, cursor->at + 4, (int64_t)length) != 0)
            return -1;
        cursor->at += 4 + (int64_t)length;
    }
    return 0;
}

/* Codes, as numbers of 16 bits: of dictionaries that are no longer than those count. */
static int read_short_codes(Cursor *cursor, uint16_t *out, int64_t count) {
    uint32_t block[BLOCK];
    for (int64_t done = 0; done < count;) {
        const int64_t some = count - done < BLOCK ? count - done : BLOCK;
        if (runs_read(&cursor->runs, block, some, (uint32_t)cursor->entries) != 0)
            return fail(cursor, BAD_CODE);
        narrow(out + done, block, some);
        done += some;
    }
    return 0;
}

/* The most values that the rest of the page's bytes may hold. Codes and Booleans in runs are bounded by levels alone. */
static int64_t values_left(const Cursor *cursor) {
    const int64_t bytes = cursor->end - cursor->at;
    if (cursor->encoding == RLE_DICTIONARY || cursor->encoding == RLE)
        return INT64_MAX;
    if (cursor->physical == BYTE_ARRAY)
        return cursor->lengths != NULL ? cursor->strings : bytes / 4;
    return cursor->physical == BOOLEAN ? bytes * 8 - cursor->bit : bytes / cursor->size;
}

/* Append values that are there, `count` of them, where `out` has room for them and the page has as many left. */
static int read_values(Cursor *cursor, uint8_t *out, int64_t count) {
    if (count == 0)
        return 0;
    switch (cursor->encoding) {
    case RLE_DICTIONARY:
        if (!cursor->codes)
            return read_coded(cursor, out, count);
        if (cursor->codes == 2)
            return read_short_codes(cursor, (uint16_t *)out, count);
        if (runs_read(&cursor->runs, (uint32_t *)out, count, (uint32_t)cursor->entries) != 0)
            return fail(cursor, BAD_CODE);
        return 0;
    case RLE:
        return runs_read_bytes(&cursor->runs, out, count, 1) == 0 ? 0 : fail(cursor, VALUES_END);
    }
    if (cursor->physical == BYTE_ARRAY)
        return read_strings(cursor, (int32_t *)out, count);
    if (cursor->physical == BOOLEAN) {
        for (int64_t index = 0; index < count; index++, cursor->bit++)
            out[index] = cursor->at[cursor->bit >> 3] >> (cursor->bit & 7) & 1;
        return 0;
    }
    memcpy(out, cursor->at, (size_t)(count * cursor->size));
    cursor->at += count * cursor->size;
    return 0;
}

/* Bytes of a slot of the values: of a value, a code, or the end of a string. */
static size_t slot_size(const Cursor *cursor) {
    if (cursor->codes)
        return (size_t)cursor->codes;
    return cursor->physical == BYTE_ARRAY ? 4 : (size_t)cursor->size;
}

/* The second loop compiles to vectors, which leaves the first one with four instructions per slot. */
#define SPREAD(type)                                                                                        \
    for (int64_t slot = 0; slot < slots; slot++) {                                                          \
        ((type *)out)[slot] = ((const type *)values)[from];                                                 \
        from += valid[slot];                                                                                \
    }                                                                                                       \
    for (int64_t slot = 0; slot < slots; slot++)                                                            \
        ((type *)out)[slot] = valid[slot] ? ((type *)out)[slot] : (type)null;                               \
    break;

/* Copy values to the slots that have one; the others become `null`, of up to 8 bytes, or 0. There is one more value than
 * are copied, of any content. */
FAST static void spread(uint8_t *restrict out, const uint8_t *restrict values, const uint8_t *restrict valid,
                        int64_t slots, size_t size, uint64_t null) {
    int64_t from = 0;
    switch (size) {
    case 2:
        SPREAD(uint16_t)
    case 4:
        SPREAD(uint32_t)
    case 8:
        SPREAD(uint64_t)
    default:
        for (int64_t slot = 0; slot < slots; slot++) {
            if (valid[slot])
                memcpy(out + (size_t)slot * size, values + (size_t)from++ * size, size);
            else
                memset(out + (size_t)slot * size, 0, size);
        }
    }
}

/* Move the ends of strings to the slots that have one, from the last on; the others are empty: they end where the one
 * before does, which may lie before these slots. */
static void spread_ends(int32_t *out, const uint8_t *valid, int64_t slots, int64_t count) {
    for (int64_t slot = slots - 1; slot >= 0 && count <= slot; slot--)
        out[slot] = valid[slot] ? out[--count] : out[count - 1];
}

/* Read `count` values to the slots where they belong, fewer than `slots`, which are at most a block. */
static int read_sparse(Cursor *cursor, uint8_t *out, const uint8_t *valid, int64_t slots, int64_t count) {
    const size_t size = slot_size(cursor);
    uint64_t block[BLOCK + 1];
    if (cursor->physical == BYTE_ARRAY && !cursor->codes) {
        if (read_values(cursor, out, count) != 0)
            return -1;
        spread_ends((int32_t *)out, valid, slots, count);
        return 0;
    }
    if (size <= sizeof *block) {
        if (read_values(cursor, (uint8_t *)block, count) != 0)
            return -1;
        memset((uint8_t *)block + (size_t)count * size, 0, size);
        spread(out, (const uint8_t *)block, valid, slots, size, cursor->codes ? (uint64_t)cursor->entries : 0);
        return 0;
    }
    uint8_t *wide = malloc((size_t)(count + 1) * size);
    if (wide == NULL)
        return fail(cursor, NO_MEMORY);
    const int failed = read_values(cursor, wide, count);
    if (!failed)
        spread(out, wide, valid, slots, size, 0);
    free(wide);
    return failed;
}

/* Append `slots` values, of which those are there whose byte in `valid` is 1 (NULL: all). */
static int append_values(Cursor *cursor, const uint8_t *valid, int64_t slots, int64_t count) {
    const size_t size = slot_size(cursor);
    Vector *values = &cursor->values;
    if (count > 0 && count > values_left(cursor)) /* before memory is taken for them */
        return fail(cursor, VALUES_END);
    if (cursor->lists && slots > INT32_MAX - cursor->elements)
        return fail(cursor, TOO_MANY);
    if (reserve(cursor, values, slots + 1, size) != 0)
        return -1;
    if (values->used == 0 && cursor->physical == BYTE_ARRAY && !cursor->codes) { /* where the first string starts */
        memset(values->bytes, 0, size);
        values->used = size;
    }
    uint8_t *out = values->bytes + values->used;
    if (count < slots ? read_sparse(cursor, out, valid, slots, count) : read_values(cursor, out, count))
        return -1;
    values->used += (size_t)slots * size;
    /* Validity is kept from the first null on. */
    if (count < slots || cursor->nulls > 0) {
        Vector *bytes = &cursor->valid;
        if (cursor->nulls == 0) {
            if (reserve(cursor, bytes, cursor->elements, 1) != 0)
                return -1;
            memset(bytes->bytes, 1, (size_t)cursor->elements);
            bytes->used = (size_t)cursor->elements;
        }
        if (reserve(cursor, bytes, slots, 1) != 0)
            return -1;
        if (count < slots)
            memcpy(bytes->bytes + bytes->used, valid, (size_t)slots);
        else
            memset(bytes->bytes + bytes->used, 1, (size_t)slots);
        bytes->used += (size_t)slots;
        cursor->nulls += slots - count;
    }
    cursor->elements += slots;
    return 0;
}

#endif
