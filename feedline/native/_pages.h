/* Find the levels, values and entries of pages whose bytes are decompressed. */

#ifndef FEEDLINE_PAGES_H
#define FEEDLINE_PAGES_H

#include "_cursor.h"

static void release(Py_buffer *view) {
    if (view->obj != NULL)
        PyBuffer_Release(view);
    memset(view, 0, sizeof *view);
}

/* Find the levels of a first version's page, each behind its size. */
static int open_levels(Cursor *cursor, Runs *runs, uint32_t width) {
    uint32_t size;
    if (cursor->end - cursor->at < 4)
        return fail(cursor, LEVELS_END);
    memcpy(&size, cursor->at, sizeof size);
    cursor->at += 4;
    if ((int64_t)size > cursor->end - cursor->at)
        return fail(cursor, LEVELS_END);
    runs_open(runs, cursor->at, cursor->at + size, width);
    cursor->at += size;
    return 0;
}

/* Decode the lengths of strings; what follows them are their bytes. */
static int open_strings(Cursor *cursor, int64_t **lengths, int64_t *count) {
    int32_t *short_ones = malloc(((size_t)cursor->slots + 1) * sizeof *short_ones);
    *lengths = malloc(((size_t)cursor->slots + 1) * sizeof **lengths);
    if (short_ones == NULL || *lengths == NULL) {
        free(short_ones);
        return fail(cursor, NO_MEMORY);
    }
    *count = decode_delta(cursor->at, cursor->end, (uint8_t *)short_ones, 4, cursor->slots, &cursor->at);
    int failed = *count < 0;
    for (int64_t index = 0; index < *count; index++) {
        (*lengths)[index] = short_ones[index];
        failed |= short_ones[index] < 0;
    }
    free(short_ones);
    return failed ? fail(cursor, "its lengths are not valid") : 0;
}

/* Build strings from the ones before them: of each, the length of what it shares and the bytes that are its own. */
static int join_strings(Cursor *cursor, const int64_t *shared, int64_t count) {
    int64_t total = 0, before = 0, own = 0;
    for (int64_t index = 0; index < count; index++) {
        if (shared[index] > before || cursor->lengths[index] > cursor->end - cursor->at - own)
            return fail(cursor, "its shared prefixes are not valid");
        own += cursor->lengths[index];
        before = cursor->lengths[index] + shared[index];
        total += before;
        if (total > MOST_BYTES)
            return fail(cursor, TOO_LONG);
    }
    uint8_t *out = cursor->decoded = malloc((size_t)total + 1);
    if (out == NULL)
        return fail(cursor, NO_MEMORY);
    const uint8_t *bytes = cursor->at, *previous = out;
    for (int64_t index = 0; index < count; index++) {
        uint8_t *start = out;
        memmove(out, previous, (size_t)shared[index]);
        out += shared[index];
        memcpy(out, bytes, (size_t)cursor->lengths[index]);
        bytes += cursor->lengths[index];
        out += cursor->lengths[index];
        cursor->lengths[index] += shared[index];
        previous = start;
    }
    cursor->at = cursor->decoded;
    cursor->end = out;
    return 0;
}

static int open_delta_strings(Cursor *cursor, int64_t **base) {
    int64_t *shared = NULL, count = 0, total = 0;
    if (cursor->encoding == DELTA_BYTES) {
        if (open_strings(cursor, &shared, &count) != 0) {
            free(shared);
            return -1;
        }
    }
    const int64_t prefixes = count;
    int failed = open_strings(cursor, &cursor->lengths, &count);
    *base = cursor->lengths;
    if (!failed && shared != NULL)
        failed = prefixes != count ? fail(cursor, "its prefixes and suffixes differ in number")
                                   : join_strings(cursor, shared, count);
    free(shared);
    for (int64_t index = 0; !failed && index < count; index++) {
        total += cursor->lengths[index];
        if (cursor->physical == FIXED_LEN_BYTE_ARRAY && cursor->lengths[index] != cursor->size)
            failed = fail(cursor, "a value has another length than its type");
    }
    if (!failed && total > cursor->end - cursor->at)
        failed = fail(cursor, VALUES_END);
    cursor->strings = count;
    if (!failed && cursor->physical == FIXED_LEN_BYTE_ARRAY) { /* values of one size need no lengths */
        cursor->end = cursor->at + total;
        cursor->lengths = NULL;
    }
    return failed;
}

static int open_values(Cursor *cursor, int64_t **base) {
    const int physical = cursor->physical;
    const int integer = physical == INT32 || physical == INT64;
    if (cursor->codes && cursor->encoding != RLE_DICTIONARY && cursor->encoding != PLAIN_DICTIONARY)
        return fail(cursor, "its values have no codes");
    switch (cursor->encoding) {
    case PLAIN:
        return 0;
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
        cursor->encoding = RLE_DICTIONARY;
        if (cursor->entries < 0)
            return fail(cursor, "it has no dictionary");
        if (cursor->at < cursor->end && *cursor->at > 32)
            return fail(cursor, "its codes have more than 32 bits");
        if (cursor->at < cursor->end)
            runs_open(&cursor->runs, cursor->at + 1, cursor->end, *cursor->at);
        else
            runs_open(&cursor->runs, cursor->end, cursor->end, 0);
        return 0;
    case RLE:
        if (physical != BOOLEAN)
            break;
        return open_levels(cursor, &cursor->runs, 1);
    case DELTA:
    case SPLIT:
        if (!integer && (cursor->encoding == DELTA || physical == BYTE_ARRAY || physical == BOOLEAN))
            break;
        const size_t room = cursor->encoding == DELTA ? ((size_t)cursor->slots + 1) * (size_t)cursor->size
                                                      : (size_t)(cursor->end - cursor->at) + 1;
        if ((cursor->decoded = malloc(room)) == NULL)
            return fail(cursor, NO_MEMORY);
        const int64_t count = cursor->encoding == DELTA
            ? decode_delta(cursor->at, cursor->end, cursor->decoded, cursor->size, cursor->slots, &cursor->at)
            : decode_split(cursor->at, cursor->end, cursor->decoded, cursor->size, cursor->slots);
        if (count < 0)
            return fail(cursor, "its values are not valid in their encoding");
        cursor->at = cursor->decoded;
        cursor->end = cursor->decoded + count * cursor->size;
        cursor->encoding = PLAIN;
        return 0;
    case DELTA_LENGTH:
    case DELTA_BYTES:
        if (physical != BYTE_ARRAY && (physical != FIXED_LEN_BYTE_ARRAY || cursor->encoding == DELTA_LENGTH))
            break;
        if (open_delta_strings(cursor, base) != 0)
            return -1;
        cursor->encoding = PLAIN;
        return 0;
    }
    return fail(cursor, "its encoding does not fit its type");
}

/* Find levels and values of a page. def_bytes, rep_bytes: of levels that stand alone, -1 where they precede the values. */
static int open_page(Cursor *cursor, int64_t rep_bytes, int64_t def_bytes, int64_t **base) {
    const uint32_t def_width = cursor->max_def > 1 ? 2 : 1;
    cursor->at = cursor->value_bytes.buf;
    cursor->end = cursor->at + cursor->value_bytes.len;
    if (def_bytes >= 0) {
        const uint8_t *levels = cursor->level_bytes.buf;
        const int64_t size = cursor->level_bytes.len;
        if (rep_bytes < 0 || rep_bytes > size || def_bytes > size - rep_bytes)
            return fail(cursor, LEVELS_END);
        runs_open(&cursor->reps, levels, levels + rep_bytes, 1);
        runs_open(&cursor->defs, levels + rep_bytes, levels + rep_bytes + def_bytes, def_width);
    } else {
        if (cursor->lists && open_levels(cursor, &cursor->reps, 1) != 0)
            return -1;
        if (cursor->max_def > 0 && open_levels(cursor, &cursor->defs, def_width) != 0)
            return -1;
    }
    return open_values(cursor, base);
}

static void close_page(Cursor *cursor) {
    release(&cursor->level_bytes);
    release(&cursor->value_bytes);
    free(cursor->decoded);
    cursor->decoded = NULL;
    cursor->lengths = NULL;
}

/* Begin a page of so many levels, whose bytes are set. */
static int open_slots(Cursor *cursor, int64_t slots, int encoding, int64_t rep_bytes, int64_t def_bytes) {
    cursor->slots = slots;
    cursor->encoding = encoding;
    cursor->bit = cursor->strings = 0;
    cursor->ahead = cursor->level = 0;
    free(cursor->page_lengths);
    cursor->page_lengths = NULL;
    if (open_page(cursor, rep_bytes, def_bytes, &cursor->page_lengths) == 0)
        return 0;
    cursor->slots = 0;
    return -1;
}

/* Find the entries of a dictionary whose bytes are set. */
static int open_dictionary(Cursor *cursor, int64_t count) {
    const int64_t size = cursor->dictionary.len, most = cursor->codes == 2 ? UINT16_MAX + 1 : INT32_MAX;
    const uint8_t *start = cursor->dictionary.buf;
    if (cursor->entries >= 0)
        return fail(cursor, "it has two dictionaries");
    if (cursor->physical == BOOLEAN || count < 0 || count > most)
        return fail(cursor, "its dictionary is not valid");
    if (count > size / (cursor->physical == BYTE_ARRAY ? 4 : cursor->size ? cursor->size : 1))
        return fail(cursor, ENTRIES_END);
    if (cursor->physical == BYTE_ARRAY) {
        int64_t at = 0;
        if ((cursor->borders = malloc(((size_t)count * 2 + 1) * sizeof(int64_t))) == NULL)
            return fail(cursor, NO_MEMORY);
        for (int64_t entry = 0; entry < count; entry++) {
            uint32_t length;
            if (size - at < 4)
                return fail(cursor, ENTRIES_END);
            memcpy(&length, start + at, sizeof length);
            at += 4;
            if ((int64_t)length > size - at)
                return fail(cursor, ENTRIES_END);
            cursor->borders[2 * entry] = at;
            cursor->borders[2 * entry + 1] = at += (int64_t)length;
        }
    }
    cursor->entries = count;
    return 0;
}

/* Lay the strings of the dictionary end to end. */
static int join_entries(Cursor *cursor) {
    int64_t total = 0;
    cursor->longest = 0;
    for (int64_t entry = 0; entry < cursor->entries; entry++) {
        const int64_t length = cursor->borders[2 * entry + 1] - cursor->borders[2 * entry];
        cursor->longest = length > cursor->longest ? length : cursor->longest;
        total += length;
    }
    if (total > MOST_BYTES)
        return fail(cursor, TOO_LONG);
    Vector *ends = &cursor->entry_ends, *bytes = &cursor->entry_bytes;
    ends->used = bytes->used = 0;
    if (reserve(cursor, ends, cursor->entries + 1, 4) != 0 || reserve(cursor, bytes, total, 1) != 0)
        return -1;
    const uint8_t *start = cursor->dictionary.buf;
    ((int32_t *)ends->bytes)[0] = 0;
    for (int64_t entry = 0; entry < cursor->entries; entry++) {
        const int64_t first = cursor->borders[2 * entry], length = cursor->borders[2 * entry + 1] - first;
        memcpy(bytes->bytes + bytes->used, start + first, (size_t)length);
        bytes->used += (size_t)length;
        ((int32_t *)ends->bytes)[entry + 1] = (int32_t)bytes->used;
    }
    ends->used = ((size_t)cursor->entries + 1) * 4;
    uint8_t high = 0; /* the bits of all bytes: 128 is only in those of characters that are not ASCII */
    for (size_t at = 0; at < bytes->used; at++)
        high |= bytes->bytes[at];
    cursor->is_ascii = high < 128;
    cursor->has_strings = 1;
    return 0;
}

#endif
